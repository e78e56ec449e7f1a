#!/usr/bin/env bash
# Builds the kernels of this machine without Python and compares each with the reference on fuzzed inputs: tests/native.
#
#   tools/kernels.sh [ROUNDS [SEED]]
#
# Needs cmake, ninja, nanobind and NumPy. HEADLONG_KERNELS names the folder of the build (a new one).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
work=${HEADLONG_KERNELS:-$(mktemp -d)}

launcher=()
if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake -S "$here" -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADLONG_KERNEL_CHECK=ON "${launcher[@]}" -DSKBUILD_PROJECT_NAME=headlong \
  -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" > "$work.log" ||
  { cat "$work.log"; exit 1; }
ninja -C "$work" kernel_check > "$work.log" || { grep -E 'error|FAILED' -A 5 "$work.log"; exit 1; }
"$work/kernel_check" "${@:-20}"
