#pragma once

#include <heed/detail/check.hpp>
#include <heed/types.hpp>
#include <heed/workspace.hpp>

// Only MPI's C functions are used: the C++ ones are no longer in the standard.
/// @cond
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
/// @endcond
#include <mpi.h>

#include <cstddef>
#include <stdexcept>
#include <string>

HEED_NAMESPACE_BEGIN

/// A call of MPI that failed on this rank. What the others then do is up to MPI; most wait for
/// ever, so the usual answer is MPI_Abort.
class mpi_error : public std::runtime_error {
 public:
  /// For the function of MPI and the error code that it returned.
  mpi_error(const char* function, int code)
      : std::runtime_error(std::string("heed: ") + function + ": " + text(code)), code_(code) {}
  /// MPI's error code.
  int code() const { return code_; }

 private:
  static std::string text(int code) {
    char buffer[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, buffer, &length);
    return std::string(buffer, static_cast<std::size_t>(length));
  }
  int code_;
};

namespace detail {
/// The one way out for an error of MPI.
inline void check_mpi(const char* function, int code) {
  if (code == MPI_SUCCESS) return;
#if HEED_EXCEPTIONS
  throw mpi_error(function, code);
#else
  fail(mpi_error(function, code).what());
#endif
}
}  // namespace detail

/// Where the time of calls on a group has gone, on this rank: each call adds to it. Seconds by
/// MPI_Wtime, bytes as sent.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// heed::group_times times;
/// group.measure(&times);
/// // calls
/// group.measure(nullptr);
/// std::cout << times.waiting << " of " << times.waiting + times.computing << " seconds waited\n";
/// @endcode
struct group_times {
  double computing = 0;      ///< in kernels, and merging what they leave
  double looking = 0;        ///< letting messages move between tasks of kernels
  double waiting = 0;        ///< for messages of other ranks that had not come, or gone, in time
  size_type bytes_sent = 0;  ///< keys, values, their gradients, tokens; not agreement on arguments
};

/// The ranks that work on one sequence: a communicator of the library's own, so that no message
/// meets one of the program's, and memory for messages that calls reuse.
///
/// Made and destroyed by all ranks of `comm`, in the same order; every function that takes a group
/// is called by all of them, with arguments that fit together. An argument that is wrong on one
/// rank, or differs between ranks, is the same std::invalid_argument on all of them, before
/// anything is sent or written. A call of MPI that fails is an mpi_error on the rank where it
/// failed. A rank that never makes the call leaves the others waiting; one that is killed ends the
/// program by MPI's own rules.
///
/// MPI must be initialised before and finalised after. With threads, MPI_THREAD_FUNNELED is enough:
/// only the thread that makes a call calls MPI. Several ranks on one machine with threads of their
/// own need cores of their own: Open MPI binds each rank to one core unless mpirun is told
/// `--bind-to none`.
///
/// @code
/// // in main: MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
/// heed::process_group group(MPI_COMM_WORLD);
/// std::cout << "rank " << group.rank() << " of " << group.size() << '\n';
/// // before MPI_Finalize() the group goes
/// @endcode
class process_group {
 public:
  /// With the ranks of `comm`. Throws std::invalid_argument where MPI is not initialised or `comm`
  /// is not a communicator within one group, mpi_error where MPI cannot make another.
  explicit process_group(MPI_Comm comm) {
    int ready = 0, over = 0;
    MPI_Initialized(&ready);
    MPI_Finalized(&over);
    if (!ready || over)
      detail::fail_with("heed::process_group: MPI ",
                        over ? "has been finalised" : "is not initialised: call MPI_Init first");
    if (comm == MPI_COMM_NULL)
      detail::fail("heed::process_group: comm is MPI_COMM_NULL: this rank is not in it");
    int between = 0;
    detail::check_mpi("MPI_Comm_test_inter", MPI_Comm_test_inter(comm, &between));
    if (between) detail::fail("heed::process_group: comm is an intercommunicator");
    detail::check_mpi("MPI_Comm_dup", MPI_Comm_dup(comm, &comm_));
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  /// Frees the communicator, unless MPI has been finalised.
  ~process_group() {
    int over = 0;
    MPI_Finalized(&over);
    if (!over) MPI_Comm_free(&comm_);
  }
  /// Not copied: each has a communicator of its own.
  process_group(const process_group&) = delete;
  /// Not assigned.
  process_group& operator=(const process_group&) = delete;

  /// This rank's number.
  int rank() const { return rank_; }
  /// How many ranks there are.
  int size() const { return size_; }
  /// The communicator. Messages of the caller do not belong here.
  MPI_Comm comm() const { return comm_; }

  /// From now on, calls add their times to `times`, which must outlive them; null, as at the start:
  /// no clock is read.
  void measure(group_times* times) { times_ = times; }
  /// What measure was given.
  group_times* times() const { return times_; }
  /// Memory for messages and for what is summed over them. It grows to the largest need. Not the
  /// workspace of a call, which kernels use at the same time.
  workspace& messages() { return messages_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  group_times* times_ = nullptr;
  workspace messages_;
};

HEED_NAMESPACE_END
