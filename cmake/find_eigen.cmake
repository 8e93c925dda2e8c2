# Provides Eigen3::Eigen, version 3.4 or 5, or sets heed_eigen_problem to a sentence. Read by our own build and by the installed package.
# EIGEN3_INCLUDE_DIR, the folder that holds Eigen/Core, may name Eigen as it comes from its repository, without a package.
set(heed_eigen_problem "")
set(heed_eigen_folder "")
if(NOT TARGET Eigen3::Eigen)
  if(EIGEN3_INCLUDE_DIR)
    get_filename_component(heed_eigen_folder "${EIGEN3_INCLUDE_DIR}" ABSOLUTE)
    if(EXISTS "${heed_eigen_folder}/Eigen/Core")
      add_library(Eigen3::Eigen INTERFACE IMPORTED)
      set_target_properties(Eigen3::Eigen PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${heed_eigen_folder}")
    else()
      set(heed_eigen_problem "EIGEN3_INCLUDE_DIR is ${heed_eigen_folder}, which holds no Eigen/Core")
    endif()
  else()
    # The package files of Eigen 3.4 refuse a request for 5 and those of 5 refuse one for 3.4, so any version is asked for and then looked at.
    find_package(Eigen3 CONFIG QUIET)
    if(NOT Eigen3_FOUND)
      set(heed_eigen_problem
          "heed needs Eigen 3.4 or 5 and found no Eigen3Config.cmake: install it (Debian, Ubuntu: libeigen3-dev), or set Eigen3_DIR, or EIGEN3_INCLUDE_DIR for a folder of headers")
    elseif(Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6)
      set(heed_eigen_problem "heed needs Eigen 3.4 or 5 and found ${Eigen3_VERSION} in ${Eigen3_DIR}")
    endif()
  endif()
endif()
