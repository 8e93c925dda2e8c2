// Catch2 2 has its main in the header; this is the one file that compiles it.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
