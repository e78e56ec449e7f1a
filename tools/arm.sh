#!/usr/bin/env bash
# headlong on AArch64, on a machine that is not: the cross build, an emulated Python, and the tests under it.
#
#   tools/arm.sh setup         tool chain, emulator, an arm64 root file system and its wheels, into a cache folder of its own
#   tools/arm.sh build         the native module and the kernel check for AArch64, into a folder of the cache that belongs to this tree
#   tools/arm.sh where         prints that folder
#   tools/arm.sh check         every kernel of every level against the reference, bit for bit; two seconds a level
#   tools/arm.sh python ARGS   the emulated Python, with this tree's headlong
#   tools/arm.sh test [PATHS]  the tests that make sense there, on each level
#   tools/arm.sh slice         setup, build and what CI takes of the tests
#   tools/arm.sh wheel         the aarch64 wheel, by the cross tool chain
#   tools/arm.sh all           all of it
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

setup_wheels() {
  [ -e "$site/done" ] && return
  "$python" -m pip install -q --disable-pip-version-check --no-input --target "$site" --only-binary=:all: --python-version 3.11 \
    --implementation cp --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
    -c "$here/constraints.txt" "${wheels[@]}" || missing "aarch64 wheels cannot be downloaded"
  touch "$site/done"
}

setup() { setup_tools; setup_root; setup_wheels; }

build() {
  local launcher=()
  mkdir -p "$own"
  if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  "$python" -c 'import nanobind' 2> /dev/null || missing "nanobind is not installed in $python"
  cmake -S "$here" -B "$build" -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$here/tools/aarch64.cmake" \
    -DHEADLONG_ARM_ROOT="$root" -DHEADLONG_KERNEL_CHECK=ON "${launcher[@]}" -DSKBUILD_PROJECT_NAME=headlong -DSKBUILD_PROJECT_VERSION=0.1.0 -DSKBUILD_SOABI=cpython-311-aarch64-linux-gnu \
    -DPython_EXECUTABLE="$(command -v "$python")" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" > "$own/configure.log" ||
    { cat "$own/configure.log"; exit 1; }
  ninja -C "$build" > "$own/build.log" || { grep -E 'error|FAILED' -A 5 "$own/build.log"; exit 1; }
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

# Tests that need neither torch nor another process: an emulated program cannot start one of its kind.
every=(levels kernels encode int8 few_bits prefix batches promise masks nucleus reference store saved engines compile svd adaptive fuzz)

# OpenBLAS sets the processor's flags for what lies beyond a small matrix, on AArch64 all of them: pyproject.toml has the case of x86-64.
# An emulated program cannot start workers of its own: no -n.
flags=(-o "addopts=--strict-markers --strict-config -ra --import-mode=importlib"
  -W "ignore:divide by zero encountered in matmul:RuntimeWarning" -W "ignore:overflow encountered in matmul:RuntimeWarning")
pytest_here() { (cd "$here" && arm_python -m pytest -q -p no:cacheprovider --timeout 1800 "${flags[@]}" "$@"); }

files() { for name in "$@"; do find "$here/tests" -name "test_$name.py"; done; }

# What CI takes, four minutes at the most: every kernel to the bit on each level and on a processor that lacks the higher ones,
# engines whose ids, proofs and samples are those of x86-64, and refusals.
slice() {
  check 3
  cpu=cortex-a72 check 1
  HEADLONG_EXPECT=neon,dotprod,i8mm pytest_here "$(files levels)"
  cpu=cortex-a72 HEADLONG_EXPECT=neon pytest_here "$(files levels)" -k "refused or expected or forced"
}

tests() {
  if [ $# -gt 0 ]; then pytest_here "$@"; return; fi
  local failed=()
  slice
  for name in "${every[@]}"; do
    for file in $(files "$name"); do
      echo "== $(basename "$file") ($SECONDS s)"
      pytest_here "$file" || failed+=("$name")
    done
  done
  for level in neon dotprod; do  # the best one ran above
    HEADLONG_ISA=$level pytest_here $(files int8 saved svd) || failed+=("$level")
  done
  [ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
}

# A wheel by hand: scikit-build-core asks the interpreter at hand for its tag. Installed with pip's own rules, tested from there.
wheel() {
  local out=$own/wheels tree=$own/wheel installed=$own/installed
  rm -rf "$tree" "$out" "$installed" && mkdir -p "$tree" "$out"
  (cd "$here" && "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$tree" . -C "cmake.toolchain-file=$here/tools/aarch64.cmake" \
    -C "cmake.define.HEADLONG_ARM_ROOT=$root" -C "cmake.define.SKBUILD_SOABI=cpython-311-aarch64-linux-gnu")
  "$python" -m wheel tags --remove --platform-tag manylinux_2_35_aarch64 "$tree"/*.whl > /dev/null
  cp "$tree"/*.whl "$out/"
  "$python" -m pip install -q --no-deps --target "$installed" --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_35_aarch64 "$out"/*.whl
  (cd "$cache" && PYTHONHOME="$root/usr" PYTHONPATH="$installed:$site" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
    emulated "$root/usr/bin/python3.11" -m pytest -q -p no:cacheprovider --timeout 1800 -c "$here/pyproject.toml" "${flags[@]}" "$(files levels)" -k "int8 or forced or refused")
  ls "$out"
}

case ${1:-all} in
  setup) setup ;;
  build) setup; build ;;
  where) echo "$build" ;;
  check) check "${@:2}" ;;
  python) arm_python "${@:2}" ;;
  slice) setup; build; slice ;;
  test) tests "${@:2}" ;;
  wheel) setup; wheel ;;
  all) setup; build; tests; wheel ;;
  *) sed -n '2,15p' "$0"; exit 2 ;;
esac
