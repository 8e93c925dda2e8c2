#!/bin/sh
# build.sh MESON SOURCE COMPILER FOLDER: heed as a subproject of a Meson project. Builds FOLDER/build/consumer and runs it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$4"
mkdir -p "$4/subprojects/heed"
cp -r "$2/meson.build" "$2/include" "$2/src" "$4/subprojects/heed"
cp "$here/meson.build" "$here/../main.cpp" "$4"
CXX=$3 "$1" setup "$4/build" "$4"
"$1" compile -C "$4/build" consumer
"$4/build/consumer"
