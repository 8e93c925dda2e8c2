# cmake -D SOURCE=... -D BUILD=... -D COMPILER=... -D LAUNCHER=... -P run.cmake: builds and runs a part of the tests against Eigen 5.
cmake_minimum_required(VERSION 3.24)

set(FOLDER "${BUILD}/eigen5")
include("${SOURCE}/cmake/fetch_eigen5.cmake")
if(NOT EXISTS "${FOLDER}/Eigen3Config.cmake")
  return()
endif()

execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BUILD}" -G Ninja "-DEigen3_DIR=${FOLDER}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
          "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -DHEED_BUILD_TESTS=ON
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target heed_headers heed_check_plain heed_test_attention heed_test_multi_head
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${CMAKE_CTEST_COMMAND}" --test-dir "${BUILD}" --output-on-failure --no-tests=error
          -R "^(test_attention|test_multi_head|flags_plain|consumer_(add_subdirectory|install|find_package|pkg_config).*)$"
  COMMAND_ERROR_IS_FATAL ANY)
