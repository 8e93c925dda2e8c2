// <AssertMacros.h> of macOS before 10.12, and later with
// __ASSERT_MACROS_DEFINE_VERSIONS_WITHOUT_UNDERSCORES; Unreal Engine has check, verify and ensure
// of its own.
#define check(assertion)                \
  do {                                  \
    if (!(assertion)) __builtin_trap(); \
  } while (0)
#define check_string(assertion, message) check(assertion)
#define check_noerr(error) check(0 == (error))
#define check_noerr_string(error, message) check(0 == (error))
#define ncheck(assertion) check(!(assertion))
#define ncheck_string(assertion, message) check(!(assertion))
#define verify(assertion) check(assertion)
#define verify_string(assertion, message) check(assertion)
#define verify_noerr(error) check(0 == (error))
#define verify_action(assertion, action) \
  do {                                   \
    if (!(assertion)) action;            \
  } while (0)
#define nverify(assertion) check(!(assertion))
#define require(assertion, label) \
  do {                            \
    if (!(assertion)) goto label; \
  } while (0)
#define require_quiet(assertion, label) require(assertion, label)
#define require_string(assertion, label, message) require(assertion, label)
#define require_action(assertion, label, action) \
  do {                                           \
    if (!(assertion)) {                          \
      action;                                    \
      goto label;                                \
    }                                            \
  } while (0)
#define require_noerr(error, label) require(0 == (error), label)
#define nrequire(assertion, label) require(!(assertion), label)
#define debug_string(message)
#define ensure(expression) (expression)
#define checkf(expression, format, ...) check(expression)
