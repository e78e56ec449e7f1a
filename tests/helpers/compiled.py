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
from pathlib import Path
from typing import Any

TYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "i1"}
TYPES |= {"int64": "i64", "int32": "i32", "int8": "i8", "uint8": "u8", "uint64": "u64"}
OPTIONS = ("num_warps", "num_stages")
WANTED = {"dp4a": "IDP.4A", "int8 matrix": "IGMMA|IMMA", "float matrix": "HGMMA|HMMA"}
WANTED |= {"16 bytes": r"(?:LDG|LDGSTS)\.E[A-Z.]*\.128"}


def variant(kernel: Any, values: dict[str, Any], constants: dict[str, Any]) -> str:
    """One launch in words: module, name, the type of each argument, what is constant, which are multiples of 16, options.

    A 1 is compiled in, and what is a multiple of 16 is known as one, as Triton does.
    """
    types, fixed = {}, {name: value for name, value in constants.items() if name not in OPTIONS}
    stated = {name: words for name, words in kernel.__annotations__.items() if "constexpr" not in words}
    for name, value in values.items():
        if name in stated:
            types[name] = TYPES[stated[name].removeprefix("tl.")]
        elif value is None or (type(value) is int and value == 1):
            fixed[name] = value
        elif isinstance(value, (int, float)):
            types[name] = ("i32" if -(2**31) <= value < 2**31 else "i64") if isinstance(value, int) else "fp32"
        else:
            types[name] = "*" + TYPES[str(value.dtype).removeprefix("torch.")]
    whole = [name for name, value in values.items() if name in types and _whole(value)]
    options = {name: constants[name] for name in OPTIONS if name in constants}
    return json.dumps([kernel.__module__, kernel.__name__, types, fixed, whole, options], sort_keys=True)


def _whole(value: Any) -> bool:
    number = value.data_ptr() if hasattr(value, "data_ptr") else value
    return isinstance(number, int) and number % 16 == 0


def compiled(launch: str, capability: int) -> dict[str, Any]:
    """``{"kernel", "stack", "uses"}`` of one launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name, types, fixed, whole, options = json.loads(launch)
    kernel = getattr(importlib.import_module(module), name)
    signature = {arg: "constexpr" if arg in fixed else types[arg] for arg in kernel.arg_names}
    constants = {(kernel.arg_names.index(arg),): value for arg, value in fixed.items()}
    known = {(kernel.arg_names.index(arg),): [["tt.divisibility", 16]] for arg in whole}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=known)
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]
    stack, code = _read(binary, Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
    uses = [use for use, pattern in WANTED.items() if re.search(pattern, code)]
    return {"kernel": name, "stack": stack, "uses": uses, **fixed}


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
