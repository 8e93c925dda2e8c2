#!/bin/sh
# All C++ has the form that .clang-format gives it. Versions differ in details: the files are in that of version 14.
set -eu
cd "$(dirname "$0")/.."
version=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$version" != 14 ]; then
  echo "skipped: clang-format is ${version:-missing}, not version 14"
  exit 77
fi
find include tests bench examples \( -name '*.hpp' -o -name '*.cpp' -o -name '*.inc' \) -print0 |
  xargs -0 clang-format --dry-run -Werror
