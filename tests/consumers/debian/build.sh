#!/bin/sh
# build.sh CPACK BUILD COMPILER CMAKE FOLDER: the Debian packages of BUILD, unpacked into FOLDER, and a program that finds heed there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$5"
mkdir -p "$5/packages"
"$1" -G DEB --config "$2/CPackConfig.cmake" -B "$5/packages" >"$5/cpack.log" || { cat "$5/cpack.log"; exit 1; }
for package in "$5"/packages/*.deb; do
  dpkg-deb --field "$package" Package Architecture Depends
  dpkg-deb --extract "$package" "$5/root"
done
[ "$(dpkg-deb --field "$5"/packages/libheed-dev_*.deb Architecture)" = all ]
[ "$(dpkg-deb --field "$5"/packages/libheed-kernels-dev_*.deb Architecture)" = "$(dpkg --print-architecture)" ]
"$4" -S "$here/../kernels" -B "$5/build" -DCMAKE_CXX_COMPILER="$3" -DCMAKE_PREFIX_PATH="$5/root/usr"
"$4" --build "$5/build"
"$5/build/consumer"
