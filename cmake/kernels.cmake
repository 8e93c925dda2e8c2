add_library(heed_kernels src/plans.cpp src/baseline.cpp src/avx2.cpp src/avx512.cpp)
add_library(heed::kernels ALIAS heed_kernels)
target_link_libraries(heed_kernels PUBLIC heed)
target_compile_definitions(heed_kernels PUBLIC HEED_EXTERN_KERNELS)
set_target_properties(
  heed_kernels
  PROPERTIES OUTPUT_NAME heed-kernels EXPORT_NAME kernels POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET default VERSION ${PROJECT_VERSION}
             SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(NOT HEED_BUILD_KERNELS)
  set_target_properties(heed_kernels PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
# A build without a type has no optimisation at all, which nobody wants of kernels.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  target_compile_options(heed_kernels PRIVATE -O2)
endif()
