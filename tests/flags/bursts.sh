#!/bin/sh
# bursts.sh COMPILER FLAGS...: in each burst of bursts.cpp every accumulator is computed, in a register of its own: a compiler that folds
# one away would have the peak read too high. What an instruction writes to is its last operand.
here=$(dirname "$0")
vectors=$(sed -n 's/^constexpr int burst_vectors = \([0-9]*\);$/\1/p' "$here/../../bench/burst.inc")
"$@" -S -o - "$here/bursts.cpp" | awk -v vectors="$vectors" '
  /^_Z.*(multiply_add|bf16)_burst.*:/ { burst = $1; found++ }
  /^[ \t]*\.size/ { burst = "" }
  burst == "" { next }
  { sub(/#.*/, "") }
  /^[ \t]*(vfmadd[0-9]*p[sd]|vdpbf16ps|addp[sd])[ \t]/ {
    sums[burst]++
    if (!((burst, $NF) in seen)) { seen[burst, $NF]; registers[burst]++ }
  }
  /^[ \t]*mulp[sd][ \t]/ { products[burst]++ }
  END {
    for (burst in registers)
      if (registers[burst] != vectors || sums[burst] % vectors != 0 || (burst in products && products[burst] != sums[burst])) {
        printf "%s: %d accumulators, %d sums, %d products\n", burst, registers[burst], sums[burst], products[burst]
        wrong++
      }
    if (found != 7) { printf "%d bursts, not 7\n", found; wrong++ }
    exit wrong > 0
  }'
