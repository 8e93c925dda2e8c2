# cmake -DSOURCE=... -DBUILD=... -DPREFIX=... -DARGUMENTS=... -P install_as_user.cmake: configures and installs as README says. That takes the
# library alone: nothing of the tests is configured, let alone fetched.
# The sources are a copy, because CMake refuses to install headers into the folder that it configures.
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE "${BUILD}" "${PREFIX}")
file(COPY "${SOURCE}/CMakeLists.txt" "${SOURCE}/cmake" "${SOURCE}/include" "${SOURCE}/src" DESTINATION "${BUILD}/source")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${BUILD}/source" -B "${BUILD}" ${ARGUMENTS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX}" COMMAND_ERROR_IS_FATAL ANY)
foreach(folder _deps tests examples bench)
  if(EXISTS "${BUILD}/${folder}")
    message(FATAL_ERROR "a user's build has a folder ${folder}")
  endif()
endforeach()
