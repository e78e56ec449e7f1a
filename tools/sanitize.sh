#!/usr/bin/env bash
# Builds the kernels with a sanitizer in a folder of its own and runs the tests over them; the environment stays as it is.
#
#   tools/sanitize.sh address     out-of-bounds, use after free, undefined behaviour
#   tools/sanitize.sh thread      data races
#   tools/sanitize.sh KIND TEST...  other tests than those of kernels, codes, masks, engines, batches, blocks, many callers, the pool,
#                                   engines that learn from queries, saved engines, damaged files, and slices of storm and soak
#                                   (HEADLONG_STORM: their seconds)
#
# A forked child hangs inside ThreadSanitizer: there the soak goes without forks, and the storm's slice is left out.
# Leaks are not looked for: the interpreter keeps memory until it exits. ASLR is off, which ThreadSanitizer needs.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?address or thread}
shift
case $kind in
  address) library=libasan.so symbol=__asan_init ;;
  thread) library=libtsan.so symbol=__tsan_init ;;
  *) echo "$kind is no sanitizer; choose address or thread" >&2; exit 2 ;;
esac
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(tests/kernels tests/codes tests/runtime/test_pool.py
  tests/engines/test_{masks,engines,batches,contract,saved}.py tests/engines/promises tests/engines/blocks tests/engines/changing tests/cli/test_fuzz.py tests/storm)

python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "$kind" = thread ]; then  # calls in an OpenMP team, whose runtime the sanitizer does not see into
  "${CXX:-g++}" -std=c++17 -O1 -g -fsanitize=thread -fopenmp -Icsrc tests/runtime/host_team.cpp csrc/runtime/pool.cpp -ldl -o "$work/host_team"
  OMP_NUM_THREADS=4 TSAN_OPTIONS=halt_on_error=1 setarch -R "$work/host_team"
fi

"$python" -m pip install -q --no-deps --target "$work/site" -C build-dir="$work/build" \
  -C cmake.define.HEADLONG_SANITIZE="$kind" .
grep -q "$symbol" "$work"/site/headlong/_native*.so || { echo "the kernels were built without $kind" >&2; exit 1; }

cxx=${CXX:-g++}
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 die_after_fork=0 suppressions=$PWD/tools/tsan.supp" OMP_NUM_THREADS=1
setarch -R env PYTHONPATH="$work/site" LD_PRELOAD="$("$cxx" -print-file-name=$library) $("$cxx" -print-file-name=libstdc++.so)" \
  "$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
