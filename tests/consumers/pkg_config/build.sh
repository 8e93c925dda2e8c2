#!/bin/sh
# build.sh COMPILER PKG_CONFIG FOLDER: no CMake, only heed.pc. Builds FOLDER/consumer and runs it.
set -eu
cd "$(dirname "$0")"
# shellcheck disable=SC2046  # flags are words
"$1" -std=c++17 -O2 $("$2" --cflags heed) ../main.cpp -o "$3/consumer" $("$2" --libs heed)
"$3/consumer"
