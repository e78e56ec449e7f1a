#!/usr/bin/env bash
# Compiles the native module with Clang for systems that this machine is not, and links it where zig's linker can: not for Apple's.
#
#   tools/cross.sh TARGET...     of zig's names: x86_64-linux-musl, aarch64-linux-musl, aarch64-linux-gnu.2.28, aarch64-macos.11.0
#
# Needs cmake, ninja, nanobind, NumPy and ziglang in $PYTHON (python3, 3.12 or later: the stable ABI, whose headers are alike on
# all of them). HEADLONG_CROSS names the folder of the builds. One line a target: the file's kind, its bytes, and those deflated;
# and for musl, whose programs need nothing of a system, every kernel beside the reference (AArch64's where QEMU emulates it).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
work=${HEADLONG_CROSS:-$(mktemp -d)}

for target in "$@"; do
  case $target in *-macos*) system=Darwin ;; *-linux-*) system=Linux ;; *) echo "$target is of no wheel" >&2; exit 2 ;; esac
  build=$work/$target
  mkdir -p "$build/include"
  for tool in ar ranlib; do printf '#!/bin/sh\nexec %s -m ziglang %s "$@"\n' "$python" "$tool" > "$build/$tool"; done
  # zig knows processors by other names; NumPy's headers ask for what this machine has
  cat > "$build/c++" << WRAPPER
#!/bin/sh
for word; do shift
  case "\$word" in
    -march=armv8.2-a*) word="-mcpu=generic+v8_2a\${word#-march=armv8.2-a}" ;;
  esac
  set -- "\$@" "\$word"
done
exec $python -m ziglang c++ -target $target "\$@"
WRAPPER
  chmod +x "$build"/{ar,ranlib,c++}
  [ $system = Linux ] || echo '#include <machine/endian.h>' > "$build/include/endian.h"
  cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=$system -DHEADLONG_KERNEL_CHECK=ON \
    -DCMAKE_SYSTEM_PROCESSOR="${target%%-*}" -DCMAKE_CXX_COMPILER="$build/c++" -DCMAKE_AR="$build/ar" -DCMAKE_RANLIB="$build/ranlib" \
    -DCMAKE_CXX_FLAGS="-isystem $build/include" -DSKBUILD_PROJECT_NAME=headlong -DSKBUILD_SABI_COMPONENT=Development.SABIModule \
    -DPython_EXECUTABLE="$python" -DPython_INCLUDE_DIR="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" > "$build/configure.log" 2>&1 || { tail -20 "$build/configure.log"; exit 1; }
  files=$(ninja -C "$build" -t targets all | grep -oE '^csrc/CMakeFiles/(_native|readers|kernels).dir.*\.o')
  ninja -C "$build" $([ $system = Linux ] && echo _native || echo "$files") > "$build/build.log" || { grep -E 'error|FAILED' -A 5 "$build/build.log"; exit 1; }
  [ $system = Linux ] || { echo "ok  $target: $(wc -l <<< "$files") files compile"; continue; }
  module=$(echo "$build"/_native*.so)
  kind=$(file -b "$module" | cut -d , -f 1-2)
  echo "ok  $target: $kind, $(stat -c %s "$module") bytes, $(gzip -9 < "$module" | wc -c) deflated"
  emulator=$([ "${target%%-*}" = "$(uname -m)" ] || command -v "qemu-${target%%-*}" || echo none)
  if [[ $target == *-musl && $emulator != none ]]; then
    ninja -C "$build" kernel_check > "$build/check.log" || { grep -E 'error|FAILED' -A 5 "$build/check.log"; exit 1; }
    $emulator "$build/kernel_check" 3 | tail -n 2
  fi
done
