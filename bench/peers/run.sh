#!/bin/sh
# Compares heed with its peers. The first run installs them from PyPI into build/peers; --torch adds PyTorch, which is large.
# Every other argument goes to compare.py (--help).
set -eu
cd "$(dirname "$0")/../.."

packages="numpy onnx onnxruntime openvino"
for argument in "$@"; do
  [ "$argument" != --torch ] || packages="$packages torch"
done

python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "bench/peers/run.sh: please install python3-venv first" >&2; exit 1; }
[ -x build/peers/bin/python ] || python3 -m venv build/peers
for package in $packages; do
  build/peers/bin/python -c "import $package" 2>/dev/null || {
    echo "Installing $package into build/peers"
    build/peers/bin/pip install -q "$package"
  }
done
exec build/peers/bin/python bench/peers/compare.py --build build/peers "$@"
