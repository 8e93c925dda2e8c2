#pragma once

#include <heed/detail/backward_plan.hpp>
#include <heed/detail/linear_plan.hpp>
#include <heed/detail/plan.hpp>

#include <cstdint>

// The plans that a program compiles once, see instances.hpp; and the types that they and their
// kernels are for. A file that has the text of the kernels as well would compile those again, with
// its own flags.

// Queries of one type against keys and values of each type that they are stored in.
#define HEED_EACH_STORED(define, set, In, half, bfloat16)                                     \
  define(set, In, float, float) define(set, In, half, float) define(set, In, bfloat16, float) \
      define(set, In, std::int8_t, float) define(set, In, int8_block, float)                  \
          define(set, In, int4_block, float) define(set, In, float8_e4m3, float)              \
              define(set, In, float8_e5m2, float)
#define HEED_EACH_ATTENTION(define, set, half, bfloat16)  \
  HEED_EACH_STORED(define, set, float, half, bfloat16)    \
  HEED_EACH_STORED(define, set, half, half, bfloat16)     \
  HEED_EACH_STORED(define, set, bfloat16, half, bfloat16) \
  define(set, double, double, double)

// A gradient is stored in the type of its inputs, or in float.
#define HEED_EACH_GRADIENT(define, set, half, bfloat16)                      \
  define(set, float, float, float) define(set, half, half, float)            \
      define(set, bfloat16, bfloat16, float) define(set, half, float, float) \
          define(set, bfloat16, float, float) define(set, double, double, double)

#define HEED_EACH_SCALAR(define, set, half, bfloat16)                             \
  define(set, float, float) define(set, half, float) define(set, bfloat16, float) \
      define(set, double, double)

#define HEED_DEFINE_FORWARD_PLAN(set, Scalar, Stored, Acc)           \
  template void run_on_kernels(problem<Scalar, Stored>, workspace&); \
  template size_type bytes_on_kernels(const problem<Scalar, Stored>&);
#define HEED_DEFINE_BACKWARD_PLAN(set, Scalar, Out, Acc)                          \
  template void run_on_kernels(const backward_problem<Scalar, Out>&, workspace&); \
  template size_type bytes_on_kernels(const backward_problem<Scalar, Out>&);
#define HEED_DEFINE_LINEAR_PLAN(set, Scalar, Acc)                          \
  template void run_on_kernels(const linear_problem<Scalar>&, workspace&); \
  template size_type bytes_on_kernels(const linear_problem<Scalar>&);
#define HEED_DEFINE_PLANS                                                       \
  HEED_NAMESPACE_BEGIN                                                          \
  namespace detail {                                                            \
  HEED_EACH_ATTENTION(HEED_DEFINE_FORWARD_PLAN, , Eigen::half, Eigen::bfloat16) \
  HEED_EACH_GRADIENT(HEED_DEFINE_BACKWARD_PLAN, , Eigen::half, Eigen::bfloat16) \
  HEED_EACH_SCALAR(HEED_DEFINE_LINEAR_PLAN, , Eigen::half, Eigen::bfloat16)     \
  }                                                                             \
  HEED_NAMESPACE_END
