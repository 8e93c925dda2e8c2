#pragma once

/// The version, in one place: the build files read these three lines.
#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 1
#define HEED_VERSION_PATCH 0
