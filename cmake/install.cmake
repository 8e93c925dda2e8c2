# What `cmake --install` leaves behind: the headers, find_package(heed), and heed.pc. Nothing in it depends on the machine, unless folders
# outside the prefix were given: CMAKE_INSTALL_INCLUDEDIR and CMAKE_INSTALL_DATADIR may be absolute, and EIGEN3_INCLUDE_DIR is.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(heed_cmake_dir "${CMAKE_INSTALL_DATADIR}/cmake/heed")
target_include_directories(heed INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
install(DIRECTORY include/heed DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS heed EXPORT heed_targets)
install(EXPORT heed_targets NAMESPACE heed:: FILE heedTargets.cmake DESTINATION "${heed_cmake_dir}")

configure_package_config_file(cmake/heedConfig.cmake.in heedConfig.cmake INSTALL_DESTINATION "${heed_cmake_dir}")
write_basic_package_version_file(heedConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/heedConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/heedConfigVersion.cmake" cmake/find_eigen.cmake
              cmake/mpi.cmake DESTINATION "${heed_cmake_dir}")

# heed.pc finds the prefix from where it is itself, so that `cmake --install --prefix` may choose another.
if(IS_ABSOLUTE "${CMAKE_INSTALL_DATADIR}")
  set(heed_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_DATADIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(heed_pc_prefix "\${pcfiledir}/${up}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(heed_pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
else()
  set(heed_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
if(heed_eigen_folder)
  set(heed_pc_eigen "")
  set(heed_pc_cflags " -I${heed_eigen_folder}")
else()
  set(heed_pc_eigen "Requires: eigen3 >= 3.4")
  set(heed_pc_cflags "")
endif()
configure_file(cmake/heed.pc.in heed.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/heed.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
