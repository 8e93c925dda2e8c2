#!/bin/sh
# build.sh PYTHON COMPILER EIGEN FOLDER [CLANG]: makes FOLDER/heed.hpp, builds two files with it and nothing else of heed, and runs them; CLANG
# reads it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$4"
"$1" "$here/../../../cmake/single_header.py" "$4/heed.hpp"
for file in main other; do
  "$2" -std=c++17 -O1 -Wall -Wextra -Werror -I "$4" -isystem "$3" -c "$here/$file.cpp" -o "$4/$file.o"
done
"$2" "$4/main.o" "$4/other.o" -o "$4/consumer" -pthread
"$4/consumer"
[ $# -lt 5 ] || "$5" -std=c++17 -fsyntax-only -I "$4" -isystem "$3" "$here/main.cpp"
