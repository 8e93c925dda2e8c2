#!/bin/sh
# kernels_elsewhere.sh COMPILER FLAGS...: on another CPU than x86-64 the file that defines the baseline's kernels holds them, and those of the
# wider sets hold nothing of heed.
kernels=$(dirname "$0")/../../src
status=0
for set in baseline avx2 avx512; do
  text=$("$@" -DHEED_EXTERN_KERNELS -S -o - "$kernels/$set.cpp") || exit 1
  functions=$(printf '%s\n' "$text" | grep -c '\.type[[:space:]]*_ZN*K*4heed.*function')
  echo "$set: $functions functions"
  if [ "$set" = baseline ]; then [ "$functions" -gt 0 ]; else [ "$functions" = 0 ]; fi || status=1
done
exit $status
