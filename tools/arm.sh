#!/usr/bin/env bash
# headlong on AArch64, on a machine that is not: the cross build, an emulated Python, and the tests under it.
#
#   tools/arm.sh slice         what the nightly workflow takes: tool chain, build, every kernel to the bit, the tests of levels
#   tools/arm.sh build         tool chain, emulator, an arm64 root file system and its wheels in a cache folder; the native module
#   tools/arm.sh python ARGS   the emulated Python, with this tree's headlong
#   tools/arm.sh test PATHS    tests
#
# HEADLONG_ARM_CACHE names the folder (~/.cache/headlong-arm), HEADLONG_ARM_CPU the processor (max).
# Exit status 77: packages cannot be had here; nothing was tested.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
cache=${HEADLONG_ARM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headlong-arm}
root=$cache/root site=$cache/site
own=$cache/trees/$(printf %s "$here" | cksum | cut -d ' ' -f 1)  # what is built from this tree: another checkout has its own
build=$own/build package=$own/package
python=${PYTHON:-python3}
cpu=${HEADLONG_ARM_CPU:-max}

missing() { echo "arm: $*; skipped" >&2; exit 77; }

# Debian's names; an interpreter and what its modules and the wheels load.
packages=(libc6 libgcc-s1 libstdc++6 libgomp1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev
  zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libreadline8 libtinfo6 libncursesw6)
wheels=(numpy ml_dtypes safetensors pytest pytest-timeout hypothesis mpmath typer rich)

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo > /dev/null; then sudo -n "$@"; else return 1; fi; }

setup_tools() {
  if command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null; then return; fi
  command -v apt-get > /dev/null || missing "aarch64-linux-gnu-g++ and qemu-aarch64 are not here, and neither is apt-get"
  as_root apt-get update -qq || missing "apt-get update failed"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user > /dev/null ||
    missing "g++-aarch64-linux-gnu and qemu-user cannot be installed"
}

setup_root() {
  [ -e "$root/done" ] && return
  command -v dpkg > /dev/null || missing "no dpkg to unpack arm64 packages with"
  if ! dpkg --print-foreign-architectures | grep -qx arm64; then
    as_root dpkg --add-architecture arm64 && as_root apt-get update -qq || missing "arm64 is no architecture of this dpkg"
  fi
  mkdir -p "$cache/debs" "$root"
  (cd "$cache/debs" && apt-get download -qq "${packages[@]/%/:arm64}" 2> /dev/null) || missing "arm64 packages cannot be downloaded"
  for deb in "$cache"/debs/*.deb; do dpkg -x "$deb" "$root"; done
  touch "$root/done"
}

# install_wheels FOLDER ARGS: of AArch64, into a folder of their own
install_wheels() {
  [ -e "$1/done" ] && return
  "$python" -m pip install -q --disable-pip-version-check --no-input --target "$1" --only-binary=:all: --python-version 3.11 \
    --implementation cp --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
    "${@:2}" || missing "aarch64 wheels cannot be downloaded"
  touch "$1/done"
}
setup_wheels() { install_wheels "$site" -c "$here/constraints.txt" "${wheels[@]}"; }

setup() { setup_tools; setup_root; setup_wheels; }

# An emulated interpreter takes long to compile what it imports, and Debian's packages hold sources alone.
compiled() { if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then "$python" -m compileall -q "$@" || true; fi; }

build() {
  local launcher=()
  mkdir -p "$own"
  if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  "$python" -c 'import nanobind, numpy' 2> /dev/null || missing "nanobind and numpy are not installed in $python"
  cmake -S "$here" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$here/tools/aarch64.cmake" \
    -DHEADLONG_ARM_ROOT="$root" -DHEADLONG_KERNEL_CHECK=ON "${launcher[@]}" -DSKBUILD_PROJECT_NAME=headlong -DSKBUILD_SOABI=cpython-311-aarch64-linux-gnu \
    -DPython_EXECUTABLE="$(command -v "$python")" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" > "$own/configure.log" ||
    { cat "$own/configure.log"; exit 1; }
  ninja -C "$build" > "$own/build.log" || { grep -E 'error|FAILED' -A 5 "$own/build.log"; exit 1; }
  compiled "$root/usr/lib/python3.11" "$here/src/headlong"
  rm -rf "$package" && mkdir -p "$package/headlong"  # the Python files as they are, beside a native module of their processor
  ln -sfn "$here"/src/headlong/* "$package/headlong/"
  find "$package/headlong" -name '_native*' -delete
  cp "$build"/_native*.so "$package/headlong/"
}

# OpenBLAS without its SVE kernels: under QEMU 7.2 a finite layer now and then got a rotation of NaN from them.
emulated() { OPENBLAS_CORETYPE=ARMV8 qemu-aarch64 -cpu "$cpu" -L "$root" "$@"; }

arm_python() {
  PYTHONHOME="$root/usr" PYTHONPATH="$package:$site" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
    emulated "$root/usr/bin/python3.11" "$@"
}

check() { emulated "$build/kernel_check" "${@:-10}"; }

# OpenBLAS sets the processor's flags for what lies beyond a small matrix, on AArch64 all of them: pyproject.toml has the case of x86-64.
# An emulated program cannot start workers of its own: no -n.
flags=(-o "addopts=--strict-markers --strict-config -ra --import-mode=importlib"
  -W "ignore:divide by zero encountered in matmul:RuntimeWarning" -W "ignore:overflow encountered in matmul:RuntimeWarning")
pytest_here() { (cd "$here" && arm_python -m pytest -q -p no:cacheprovider --timeout 1800 "${flags[@]}" "$@"); }

files() { for name in "$@"; do find "$here/tests" -name "test_$name.py"; done; }

# Every kernel to the bit on each level and on a processor that lacks the higher ones,
# engines whose ids, proofs and samples are those of x86-64, and refusals.
slice() {
  check 3
  cpu=cortex-a72 check 1
  HEADLONG_EXPECT=neon,dotprod pytest_here "$(files levels)" -k "not portable"
  cpu=cortex-a72 HEADLONG_EXPECT=neon pytest_here "$(files levels)" -k "refused or expected or forced"
}

case ${1:-slice} in
  build) setup; build ;;
  python) arm_python "${@:2}" ;;
  slice) setup; build; slice ;;
  test) setup; build; pytest_here "${@:2}" ;;
  *) sed -n '2,10p' "$0"; exit 2 ;;
esac
