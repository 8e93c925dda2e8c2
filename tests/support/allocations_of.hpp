#pragma once

// How often a call allocates. Two counters watch: every operator new of the program, and Eigen's
// own check of its malloc (EIGEN_RUNTIME_NO_MALLOC), made to throw. To be included by one file of a
// program, before anything of Eigen's.

#include <exception>

/// Thrown where Eigen finds a condition broken; it allocates nothing itself.
struct broken_condition : std::exception {
  explicit broken_condition(const char* text) : condition(text) {}
  const char* what() const noexcept override { return condition; }
  const char* condition;
};
#ifdef EIGEN_CORE_H
#error "allocations_of.hpp must come before Eigen"
#endif
#ifndef EIGEN_RUNTIME_NO_MALLOC
#define EIGEN_RUNTIME_NO_MALLOC
#endif
#define eigen_assert(condition) \
  if (!(condition)) throw broken_condition(#condition)

#include <Eigen/Core>

#include "allocations.hpp"

namespace testing {

/// How often a call allocates: through operator new, or once more if Eigen wanted to.
template <typename Call>
long allocations_of(const Call& call) {
  const long before = allocations;
  Eigen::internal::set_is_malloc_allowed(false);
  long by_eigen = 0;
  try {
    call();
  } catch (const broken_condition&) {
    by_eigen = 1;
  }
  Eigen::internal::set_is_malloc_allowed(true);
  return allocations - before + by_eigen;
}

}  // namespace testing
