#!/bin/sh
# build.sh COMPILER PKG_CONFIG FOLDER: no CMake, only heed-kernels.pc. Builds FOLDER/consumer and runs it.
set -eu
cd "$(dirname "$0")"
# shellcheck disable=SC2046  # flags are words
"$1" -std=c++17 -O1 $("$2" --cflags heed-kernels) main.cpp -o "$3/consumer" $("$2" --libs heed-kernels)
"$3/consumer"
