# What `cmake --install` leaves behind: the headers, find_package(heed), and heed.pc. Nothing in it depends on the machine.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(heed_cmake_dir "${CMAKE_INSTALL_DATADIR}/cmake/heed")
install(DIRECTORY include/heed DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.hpp" PATTERN "*.inc")
install(TARGETS heed EXPORT heed_targets)
install(EXPORT heed_targets NAMESPACE heed:: FILE heedTargets.cmake DESTINATION "${heed_cmake_dir}")

configure_package_config_file(cmake/heedConfig.cmake.in heedConfig.cmake INSTALL_DESTINATION "${heed_cmake_dir}")
write_basic_package_version_file(heedConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/heedConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/heedConfigVersion.cmake" cmake/find_eigen.cmake
        DESTINATION "${heed_cmake_dir}")

configure_file(cmake/heed.pc.in heed.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/heed.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
