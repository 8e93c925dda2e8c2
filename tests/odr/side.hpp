#pragma once

// One translation unit's view of the library, behind plain pointers. n x d each; names the ABI namespace that the unit compiled.
struct side {
  void (*attend)(const float* query, const float* key, const float* value, float* out, int n, int d);
  void (*attend_into)(const float* query, const float* key, const float* value, float* out, int n, int d);
  void (*refer)(const float* query, const float* key, const float* value, float* out, int n, int d);
  const char* abi;
};
side plain_side();
side native_side();
