// Two translation units with different flags in one program: both must answer, and with the same numbers up to rounding.
#include "side.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

int main() {
  const int n = 75, d = 40;
  std::vector<float> q(n * d), k(n * d), v(n * d);
  for (int i = 0; i < n * d; ++i) {
    const float x = static_cast<float>(i);
    q[static_cast<std::size_t>(i)] = std::sin(x), k[static_cast<std::size_t>(i)] = std::cos(3 * x), v[static_cast<std::size_t>(i)] = std::sin(5 * x);
  }
  int failures = 0;
  const side sides[] = {plain_side(), native_side()};
  std::vector<float> want(n * d), got(n * d);
  sides[0].refer(q.data(), k.data(), v.data(), want.data(), n, d);
  for (const side& s : sides)
    for (const auto run : {s.attend, s.attend_into, s.refer}) {
      got.assign(got.size(), -7);
      run(q.data(), k.data(), v.data(), got.data(), n, d);
      float worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i) worst = std::fabs(got[i] - want[i]) > worst ? std::fabs(got[i] - want[i]) : worst;
      std::printf("%s: differs from the plain reference by %g\n", s.abi, static_cast<double>(worst));
      failures += !(worst < 1e-6f);  // values of at most 1, some 10 roundings of 6e-8
    }
  if (std::strcmp(sides[0].abi, sides[1].abi) == 0) {
    std::printf("both units compiled the same namespace: this test tests nothing\n");
    ++failures;
  }
  return failures ? 1 : 0;
}
