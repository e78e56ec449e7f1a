"""Compiles recorded launches for a GPU that need not be there: ``python tests/helpers/compiled.py 90 < launches.json``.

Each line of the answer is one kernel: its name, the bytes of each thread's stack (registers that did not suffice), and the
instructions of :data:`WANTED` that it uses. What does not compile ends in an error. Triton's interpreter has to be off, so
this is a process of its own; the disassembler is the one that comes with Triton.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import Any

TYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "u1"}
TYPES |= {"int64": "i64", "int32": "i32", "int8": "i8", "uint8": "u8", "uint64": "u64"}
OPTIONS = ("num_warps", "num_stages")
WANTED = {"float matrix": "HGMMA|HMMA", "16 bytes": r"(?:LDG|LDGSTS)\.E[A-Z.]*\.128"}


def variant(kernel: Any, values: dict[str, Any], constants: dict[str, Any]) -> str:
    """One launch in words: module, name, what each argument is (:func:`_seen`), what is constant, options."""
    stated = {name: words for name, words in kernel.__annotations__.items() if "constexpr" not in words}
    seen = {name: _seen(value, stated.get(name, "").removeprefix("tl.")) for name, value in values.items()}
    fixed = {name: value for name, value in constants.items() if name not in OPTIONS}
    options = {name: constants[name] for name in OPTIONS if name in constants}
    return json.dumps([kernel.__module__, kernel.__name__, seen, fixed, options])


def _seen(value: Any, stated: str = "") -> Any:
    """``[type, whether it is a multiple of 16]``; ``["constexpr", value]`` of None and 1, as in Triton; a record by fields."""
    if isinstance(value, tuple):
        return {name: _seen(part) for name, part in value._asdict().items()}  # type: ignore[attr-defined]
    if value is None or (type(value) is int and value == 1 and not stated):
        return ["constexpr", value]
    if isinstance(value, (int, float)):
        number = "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"
        return [TYPES[stated] if stated else number, isinstance(value, int) and value % 16 == 0]
    return ["*" + TYPES[str(value.dtype).removeprefix("torch.")], value.data_ptr() % 16 == 0]


def _parts(seen: Any, path: tuple[int, ...], constants: dict[Any, Any], known: dict[Any, Any]) -> Any:
    """The type of what was seen; what is constant in it, and what is known of its numbers, by their paths."""
    if isinstance(seen, dict):
        parts = [_parts(part, (*path, place), constants, known) for place, part in enumerate(seen.values())]
        return namedtuple("Record", seen)(*parts)  # type: ignore[misc]
    kind, more = seen
    if kind == "constexpr":
        constants[path] = more
    elif more:
        known[path] = [["tt.divisibility", 16]]
    return kind


def compiled(launch: str, capability: int) -> dict[str, Any]:
    """``{"kernel", "stack", "uses"}`` of one launch, with what it was compiled for and which arguments were there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name, seen, fixed, options = json.loads(launch)
    kernel, constants, known = getattr(importlib.import_module(module), name), {}, {}
    given = seen | {arg: ["constexpr", value] for arg, value in fixed.items()}
    signature = {arg: _parts(given[arg], (place,), constants, known) for place, arg in enumerate(kernel.arg_names)}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=known)
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]
    stack, code = _read(binary, Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
    uses = [use for use, pattern in WANTED.items() if re.search(pattern, code)]
    return {"kernel": name, "stack": stack, "uses": uses, "seen": seen, **fixed}


def _read(binary: bytes, tool: Path) -> tuple[int, str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.run([tool, "-res-usage", "-sass", file.name], capture_output=True, text=True, check=True).stdout
    (stack,) = re.findall(r"STACK:(\d+)", said)
    return int(stack), said


if __name__ == "__main__":
    for line in json.load(sys.stdin):
        print(json.dumps(compiled(line, int(sys.argv[1]))), flush=True)
