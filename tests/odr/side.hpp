#pragma once

// One translation unit's view of the library, through plain pointers. n x d each; names the ABI
// namespace that the unit compiled.
struct side {
  const char* name;
  const char* abi;
  void (*attend)(const float* query, const float* key, const float* value, float* out, int n,
                 int d);
  void (*attend_into)(const float* query, const float* key, const float* value, float* out, int n,
                      int d);
  void (*refer)(const float* query, const float* key, const float* value, float* out, int n, int d);
  void (*use_baseline)(bool on);  // heed::set_target
  bool (*uses_baseline)();        // whether a call without a target runs on the baseline
  void (*set_handler)(void (*handler)(const char*));  // heed::set_failure_handler
  void (*attend_wrongly)();                           // a wrong argument
};
#define HEED_SIDE_OF_TEXT(unit) unit##_side
#define HEED_SIDE_OF(unit) HEED_SIDE_OF_TEXT(unit)
// Data: a function would be made of the unit's instructions.
extern const side plain_side, native_side, v2_side, v3_bare_side;
