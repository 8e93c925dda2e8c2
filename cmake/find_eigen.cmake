# Provides Eigen3::Eigen, version 3.4 or 5, or sets heed_eigen_problem to a sentence. Read by our own build and by the installed package.
# The package files of Eigen 3.4 refuse a request for 5 and those of 5 refuse one for 3.4, so any version is asked for and then looked at.
set(heed_eigen_problem "")
if(NOT TARGET Eigen3::Eigen)
  find_package(Eigen3 CONFIG QUIET)
  if(NOT Eigen3_FOUND)
    set(heed_eigen_problem
        "heed needs Eigen 3.4 or 5 and found no Eigen3Config.cmake: install it (Debian, Ubuntu: libeigen3-dev) or set Eigen3_DIR")
  elseif(Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6)
    set(heed_eigen_problem "heed needs Eigen 3.4 or 5 and found ${Eigen3_VERSION} in ${Eigen3_DIR}")
  endif()
endif()
