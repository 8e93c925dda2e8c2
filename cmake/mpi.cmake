# heed::mpi, for programs that include heed/mpi.hpp: heed, and the MPI that CMake finds. Read by our build and by the installed package,
# after heed::heed; without MPI 3 it defines no target and says so in heed_mpi_problem.
set(heed_mpi_problem "")
if(NOT TARGET heed::mpi)
  set(MPI_CXX_SKIP_MPICXX ON)  # only C functions are called
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(heed_mpi INTERFACE)
    target_link_libraries(heed_mpi INTERFACE heed::heed MPI::MPI_CXX)
    add_library(heed::mpi ALIAS heed_mpi)
  else()
    set(heed_mpi_problem "heed::mpi needs MPI 3 (Open MPI, MPICH), which CMake's FindMPI has not found")
  endif()
endif()
