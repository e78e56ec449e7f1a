#!/usr/bin/env bash
# headlong on AArch64, on a machine that is not: the cross build, an emulated Python, and the tests under it.
#
#   tools/arm.sh setup         tool chain, emulator, an arm64 root file system and its wheels, into a cache folder of its own
#   tools/arm.sh build         the native module and the kernel check for AArch64, into a folder of the cache that belongs to this tree
#   tools/arm.sh where         prints that folder
#   tools/arm.sh check         every kernel of every level against the reference, bit for bit; two seconds a level
#   tools/arm.sh python ARGS   the emulated Python, with this tree's headlong
#   tools/arm.sh test [PATHS]  the tests that make sense there, on each level, recorded in emulated.json; or those named
#   tools/arm.sh slice         setup, build and what CI takes of the tests
#   tools/arm.sh wheel         the aarch64 wheel by the cross tool chain: its tag read from its symbols, installed, tested from there
#   tools/arm.sh all           all of it
#
# HEADLONG_ARM_CACHE names the folder (~/.cache/headlong-arm), HEADLONG_ARM_CPU the processor (max).
# Exit status 77: packages cannot be had here; nothing was tested.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
cache=${HEADLONG_ARM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headlong-arm}
root=$cache/root site=$cache/site more=$cache/more
own=$cache/trees/$(printf %s "$here" | cksum | cut -d ' ' -f 1)  # what is built from this tree: another checkout has its own
build=$own/build package=$own/package
python=${PYTHON:-python3}
cpu=${HEADLONG_ARM_CPU:-max}

missing() { echo "arm: $*; skipped" >&2; exit 77; }

# Debian's names; an interpreter and what its modules and the wheels load.
packages=(libc6 libgcc-s1 libstdc++6 libgomp1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev
  zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libreadline8 libtinfo6 libncursesw6)
wheels=(numpy ml_dtypes safetensors pytest pytest-timeout hypothesis mpmath typer rich)
# For the longer list of tests: heads that make layers, and the storm's statistics. The newest torch that PyPI has for AArch64 without CUDA.
more_wheels=(torch==2.8.0 sympy networkx jinja2 markupsafe fsspec filelock scipy)

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
setup_more() { install_wheels "$more" --no-deps "${more_wheels[@]}"; }

setup() { setup_tools; setup_root; setup_wheels; }

# An emulated interpreter takes long to compile what it imports, and Debian's packages hold sources alone.
compiled() { if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then "$python" -m compileall -q "$@" || true; fi; }

build() {
  local launcher=()
  mkdir -p "$own"
  if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  "$python" -c 'import nanobind, numpy' 2> /dev/null || missing "nanobind and numpy are not installed in $python"
  cmake -S "$here" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$here/tools/aarch64.cmake" \
    -DHEADLONG_ARM_ROOT="$root" -DHEADLONG_KERNEL_CHECK=ON "${launcher[@]}" -DSKBUILD_PROJECT_NAME=headlong -DSKBUILD_PROJECT_VERSION=0.1.0 -DSKBUILD_SOABI=cpython-311-aarch64-linux-gnu \
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
  PYTHONHOME="$root/usr" PYTHONPATH="$package:$site:$more${HEADLONG_ARM_PATH:+:$HEADLONG_ARM_PATH}" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
    emulated "$root/usr/bin/python3.11" "$@"
}

check() { emulated "$build/kernel_check" "${@:-10}"; }

# OpenBLAS sets the processor's flags for what lies beyond a small matrix, on AArch64 all of them: pyproject.toml has the case of x86-64.
# An emulated program cannot start workers of its own: no -n.
flags=(-o "addopts=--strict-markers --strict-config -ra --import-mode=importlib"
  -W "ignore:divide by zero encountered in matmul:RuntimeWarning" -W "ignore:overflow encountered in matmul:RuntimeWarning")
pytest_here() { (cd "$here" && arm_python -m pytest -q -p no:cacheprovider --timeout 1800 "${flags[@]}" "$@"); }

files() { for name in "$@"; do find "$here/tests" -name "test_$name.py"; done; }

# What CI takes, four minutes at the most: every kernel to the bit on each level and on a processor that lacks the higher ones,
# engines whose ids, proofs and samples are those of x86-64, and refusals. What the kernels are compared with needs no engines here.
slice() {
  check 3
  cpu=cortex-a72 check 1
  HEADLONG_EXPECT=neon,dotprod,i8mm pytest_here "$(files levels)" -k "not portable"
  cpu=cortex-a72 HEADLONG_EXPECT=neon pytest_here "$(files levels)" -k "refused or expected or forced"
}

# All that tools/emulation/run.py lists, on each level; hours, and it goes on where it was cut short. Or the tests that are named.
tests() {
  if [ $# -gt 0 ]; then pytest_here "$@"; return; fi
  slice
  "$python" "$here/tools/emulation/run.py" "$here/emulated.json"
}

# A wheel by hand: scikit-build-core asks the interpreter at hand for its tag, so that one is of the emulated Python's version. Which
# manylinux it is, auditwheel reads from the versions of the symbols that it wants. Installed by pip's own rules, tested from there.
wheel() {
  local out=$own/wheels tree=$own/wheel installed=$own/installed tag
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || missing "the emulated Python is 3.11, $python is not"
  for module in scikit_build_core nanobind numpy wheel auditwheel; do
    "$python" -c "import $module" 2> /dev/null || missing "$module is not installed in $python"
  done
  rm -rf "$tree" "$out" "$installed" && mkdir -p "$tree" "$out"
  (cd "$here" && "$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$tree" . -C "build-dir=$own/wheel-build" \
    -C "cmake.define.CMAKE_TOOLCHAIN_FILE=$here/tools/aarch64.cmake" -C "cmake.define.HEADLONG_ARM_ROOT=$root" \
    -C "cmake.define.SKBUILD_SOABI=cpython-311-aarch64-linux-gnu" -C "cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=$(command -v ccache || true)")
  "$python" -m wheel tags --remove --platform-tag linux_aarch64 "$tree"/*.whl > /dev/null
  tag=$("$python" -m auditwheel show "$tree"/*.whl | tr '\n' ' ' | sed -n 's/.*consistent with the following platform tag: "\([a-z0-9_]*\)".*/\1/p')
  [ -n "$tag" ] || { echo "arm: auditwheel found no tag for the wheel"; exit 1; }
  "$python" -m wheel tags --remove --platform-tag "$tag" "$tree"/*.whl > /dev/null
  cp "$tree"/*.whl "$out/"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --target "$installed" --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform "$tag" "$out"/*.whl
  # On the best level and on a processor that has neither of the higher ones: what refuses them there, and the int8 preview.
  (cd "$cache" && package=$installed arm_python -c 'import headlong; print(headlong.__file__); assert "/installed/" in headlong.__file__'
    for cpu in max cortex-a72; do
      for file in $(files levels int8); do
        package=$installed arm_python -m pytest -q -p no:cacheprovider --timeout 1800 -c "$here/pyproject.toml" --rootdir "$here" "${flags[@]}" "$file" \
          -k "int8 or forced or refused" | tee "$out/$cpu-$(basename "$file" .py).log" || exit 1
      done
    done)
  "$python" "$here/tools/wheels.py" "$here/wheels.json" "$out"/*.whl "QEMU's max and cortex-a72" "$out"/*.log
  ls "$out"
}

case ${1:-all} in
  setup) setup ;;
  build) setup; build ;;
  where) echo "$build" ;;
  check) check "${@:2}" ;;
  python) arm_python "${@:2}" ;;
  slice) setup; build; slice ;;
  test) setup; setup_more; tests "${@:2}" ;;
  wheel) setup; wheel ;;
  all) setup; setup_more; build; tests; wheel ;;
  *) sed -n '2,16p' "$0"; exit 2 ;;
esac
