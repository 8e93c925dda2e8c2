# Flags and dependencies of our own programs. A user of heed::heed never meets them.
if(CMAKE_VERSION VERSION_LESS 3.24)
  message(FATAL_ERROR "heed's own tests, examples and benchmarks need CMake 3.24; this is ${CMAKE_VERSION}")
endif()
include(FetchContent)

# -O2 and no -march: the build that the library must be fast in.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

# heed with our warnings, which are errors for us alone. Eigen's headers come as system headers and stay silent.
add_library(heed_developer INTERFACE)
target_link_libraries(heed_developer INTERFACE heed::heed)
set(heed_warnings -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Werror)
target_compile_options(heed_developer INTERFACE ${heed_warnings})
target_compile_options(heed_kernels PRIVATE ${heed_warnings})
set(CMAKE_CXX_EXTENSIONS OFF)

# heed_use_compiled_kernels(TARGET): where the tests are built too, a program takes heed::kernels instead of compiling them; the
# presets bench and demo build it as a user does.
function(heed_use_compiled_kernels target)
  if(HEED_BUILD_TESTS)
    target_link_libraries(${target} PRIVATE heed::kernels)
  endif()
endfunction()

# heed_require(NAME REPOSITORY TAG): an installed package if there is one, whatever its version, else the release from its project.
function(heed_require name repository tag)
  set(system "")
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.25)
    set(system SYSTEM)
  endif()
  FetchContent_Declare(${name} GIT_REPOSITORY "https://github.com/${repository}" GIT_TAG "${tag}" GIT_SHALLOW TRUE ${system} FIND_PACKAGE_ARGS)
  FetchContent_MakeAvailable(${name})
endfunction()

# heed_skip(NAME REASON): a test that this machine cannot run shows as skipped, with the reason in ctest's list.
function(heed_skip name reason)
  message(NOTICE "Skipped test ${name}: ${reason}")
  add_test(NAME "${name}" COMMAND "${CMAKE_COMMAND}" -E echo "SKIP: ${reason}")
  set_tests_properties("${name}" PROPERTIES SKIP_REGULAR_EXPRESSION "^SKIP: ")
endfunction()
