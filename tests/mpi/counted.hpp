#pragma once

// What MPI has been asked for and not been given back: its functions are replaced through PMPI, the
// profiling interface of the standard.

#include <heed/mpi_group.hpp>

namespace testing {

/// How many there are.
struct counts {
  long requests = 0, types = 0, communicators = 0;
};
inline counts alive;
/// The next MPI_Isend fails.
inline bool fail_next_send = false;

inline long active(int count, const MPI_Request* requests) {
  long sum = 0;
  for (int i = 0; i < count; ++i) sum += requests[i] != MPI_REQUEST_NULL;
  return sum;
}

}  // namespace testing

extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (testing::fail_next_send) {
    testing::fail_next_send = false;
    return MPI_ERR_OTHER;
  }
  ++testing::alive.requests;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  ++testing::alive.requests;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  const long before = testing::active(count, requests);
  const int error = PMPI_Waitall(count, requests, statuses);
  testing::alive.requests -= before - testing::active(count, requests);
  return error;
}
int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
  const long before = testing::active(count, requests);
  const int error = PMPI_Testall(count, requests, done, statuses);
  testing::alive.requests -= before - testing::active(count, requests);
  return error;
}
int MPI_Request_free(MPI_Request* request) {
  --testing::alive.requests;
  return PMPI_Request_free(request);
}
int MPI_Type_contiguous(int count, MPI_Datatype type, MPI_Datatype* made) {
  ++testing::alive.types;
  return PMPI_Type_contiguous(count, type, made);
}
int MPI_Type_free(MPI_Datatype* type) {
  --testing::alive.types;
  return PMPI_Type_free(type);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  ++testing::alive.communicators;
  return PMPI_Comm_dup(comm, made);
}
int MPI_Comm_free(MPI_Comm* comm) {
  --testing::alive.communicators;
  return PMPI_Comm_free(comm);
}
}
