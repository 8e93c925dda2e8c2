#!/bin/sh
# build.sh PYTHON SOURCE EIGEN FOLDER: `conan create` of heed, with a Conan of its own in FOLDER and this machine's Eigen, and its test_package.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
conan=$4/venv/bin/conan
if [ ! -x "$conan" ]; then
  "$1" -m venv "$4/venv" || { echo "SKIP: $1 cannot make an environment (python3-venv)"; exit 0; }
  "$4/venv/bin/pip" install --quiet --timeout 15 --retries 1 conan || { echo "SKIP: Conan could not be fetched from PyPI"; exit 0; }
fi
rm -rf "$4/home" "$4/source"
mkdir -p "$4/source/tests/consumers"
cp -r "$2/conanfile.py" "$2/LICENSE" "$2/include" "$2/test_package" "$4/source"
cp "$2/tests/consumers/main.cpp" "$4/source/tests/consumers"
export CONAN_HOME="$4/home" EIGEN_FOLDER="$3"
"$conan" profile detect
"$conan" create "$here/eigen" --no-remote --version 3.4.0
"$conan" create "$4/source" --no-remote -s compiler.cppstd=17 -s build_type=Debug
