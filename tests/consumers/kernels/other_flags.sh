#!/bin/sh
# other_flags.sh COMPILER PKG_CONFIG FOLDER: a file with other flags than the kernels' is not linked, and what the linker misses says why.
cd "$(dirname "$0")" || exit 1
# shellcheck disable=SC2046
messages=$("$1" -std=c++17 -O1 -fno-rtti $("$2" --cflags heed-kernels) main.cpp -o "$3/other_flags" $("$2" --libs heed-kernels) 2>&1) &&
  { echo "a file with other flags was linked"; exit 1; }
printf '%s\n' "$messages" | grep 'undefined reference.*link_heed_kernels_built_with_the_same_flags' ||
  { echo "the linker says something else:"; printf '%s\n' "$messages"; exit 1; }
