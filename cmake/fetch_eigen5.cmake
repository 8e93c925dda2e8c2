# cmake -D FOLDER=... -P fetch_eigen5.cmake: puts the headers of Eigen 5 and a package file for find_package(Eigen3) into FOLDER.
# Distributions ship 3.4 for years to come; the PyPI package eigency carries the headers of 5. Prints a line with SKIP when it cannot be had.
cmake_minimum_required(VERSION 3.24)
include(CMakePackageConfigHelpers)

if(EXISTS "${FOLDER}/Eigen3Config.cmake")
  return()
endif()
file(MAKE_DIRECTORY "${FOLDER}")
# The headers are the same in every wheel: one is named, so that any Python will do.
execute_process(
  COMMAND python3 -m pip download --quiet --no-deps --timeout 15 --retries 1 --only-binary :all: --implementation cp --python-version 3.11
          --platform manylinux2014_x86_64 eigency==5.0.1.1
  WORKING_DIRECTORY "${FOLDER}"
  RESULT_VARIABLE status
  ERROR_VARIABLE message)
if(NOT status EQUAL 0)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "SKIP: Eigen 5 could not be fetched from PyPI (${status}) ${message}")
  return()
endif()
file(GLOB wheel "${FOLDER}/eigency-*.whl")
file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${FOLDER}" PATTERNS "eigency/eigen/*")

# As Eigen 5 itself installs it: a request for another major version is refused.
write_basic_package_version_file("${FOLDER}/Eigen3ConfigVersion.cmake" VERSION 5.0.1 COMPATIBILITY SameMajorVersion ARCH_INDEPENDENT)
file(WRITE "${FOLDER}/Eigen3Config.cmake" [[
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED)
  target_include_directories(Eigen3::Eigen INTERFACE "${CMAKE_CURRENT_LIST_DIR}/eigency/eigen")
endif()
]])
