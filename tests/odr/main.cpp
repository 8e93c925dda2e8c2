// Translation units with different flags in one program: each must answer, with the same numbers up
// to rounding. Arguments: `all` or, on a CPU that is too old for some units, `kernels`; then the
// units that it can run. Functions of the standard library and of Eigen that several units compile
// out of line, such as those of std::vector<float> in the reference, are whichever the linker met
// first.
#include "side.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {
int failures = 0;

void expect(bool good, const char* unit, const char* what) {
  if (good) return;
  std::printf("FAILED: %s: %s\n", unit, what);
  ++failures;
}
}  // namespace

int main(int argc, char** argv) {
  const side all[] = {
      plain_side,
      native_side,
#ifdef HEED_X86_64_UNITS
      v2_side,
      v3_bare_side,
#endif
  };
  side sides[4];
  int count = 0;
  for (int i = 2; i < argc; ++i)
    for (const side& s : all)
      if (count < 4 && std::strcmp(s.name, argv[i]) == 0) sides[count++] = s;
  if (argc < 3 || count != argc - 2) {
    std::printf("the arguments are not `all` or `kernels` and units\n");
    return 2;
  }
  // `native` may be the same as another: a machine of no more than x86-64-v2.
  for (const side& a : all)
    for (const side& b : all)
      expect(&a == &b || std::strcmp(a.abi, b.abi) != 0 || std::strcmp(b.name, "native") == 0 ||
                 std::strcmp(a.name, "native") == 0,
             b.name, "shares a namespace with another unit");

  const bool all_functions = std::strcmp(argv[1], "all") == 0;
  constexpr int n = 75, d = 40, size = n * d;
  static float q[size], k[size], v[size], want[size], got[size];
  for (int i = 0; i < size; ++i) {
    const float x = static_cast<float>(i);
    q[i] = std::sin(x), k[i] = std::cos(3 * x), v[i] = std::sin(5 * x);
  }
  sides[0].attend_into(q, k, v, want, n, d);
  for (int i = 0; i < count; ++i)
    for (const auto run : {sides[i].attend, sides[i].attend_into, sides[i].refer}) {
      if (run == sides[i].refer && !all_functions) continue;
      for (float& x : got) x = -7;
      run(q, k, v, got, n, d);
      float worst = 0;
      for (int j = 0; j < size; ++j)
        worst = std::fabs(got[j] - want[j]) > worst ? std::fabs(got[j] - want[j]) : worst;
      std::printf("%s, %s: differs from the first by %g\n", sides[i].name, sides[i].abi,
                  static_cast<double>(worst));
      expect(worst < 1e-6f, sides[i].name,
             "wrong");  // values of at most 1, some 10 roundings of 6e-8
    }

  // What is said to one unit holds for the process.
  for (int told = 0; told < count; ++told) {
    sides[told].use_baseline(true);
    for (int i = 0; i < count; ++i)
      expect(sides[i].uses_baseline(), sides[i].name, "does not see another unit's set_target");
    sides[told].use_baseline(false);
  }
  const side& last = sides[count - 1];
  if (std::strstr(last.name, "bare")) {  // without exceptions
    sides[0].set_handler([](const char* message) {
      expect(std::strstr(message, "head_dim 3 does not match") != nullptr, "handler", message);
      std::exit(failures ? 1 : 0);
    });
    last.attend_wrongly();
    expect(false, last.name, "does not see another unit's set_failure_handler");
  }
  return failures ? 1 : 0;
}
