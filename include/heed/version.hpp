#pragma once

// The version, in one place: the build files read these three lines.

/// The first number of the version.
#define HEED_VERSION_MAJOR 0
/// The second number of the version; below 1.0 it grows with every change of the interface.
#define HEED_VERSION_MINOR 1
/// The third number of the version.
#define HEED_VERSION_PATCH 0
