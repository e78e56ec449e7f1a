"""Compiles recorded launches for a GPU that need not be there: ``python tests/compiled.py 90 < launches.json``.

Each line of the answer is one kernel with its variant; what does not compile ends in an error. Triton's interpreter has to
be off, so this is a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

TYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "i1"}
TYPES |= {"int64": "i64", "int32": "i32", "int8": "i8", "uint8": "u8"}


def variant(kernel: Any, values: dict[str, Any], constants: dict[str, Any]) -> str:
    """One launch in words: module, name, the type of each argument, what is constant. A 1 is compiled in, as Triton does."""
    types, fixed = {}, dict(constants)
    for name, value in values.items():
        if type(value) is int and value == 1:
            fixed[name] = 1
        elif isinstance(value, (int, float)):
            types[name] = "i32" if isinstance(value, int) else "fp32"
        else:
            types[name] = "*" + TYPES[str(value.dtype).removeprefix("torch.")]
    return json.dumps([kernel.__module__, kernel.__name__, types, fixed], sort_keys=True)


def compiled(module: str, name: str, types: dict[str, str], fixed: dict[str, Any], capability: int) -> int:
    """Bytes of the machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(module), name)
    signature = {arg: "constexpr" if arg in fixed else types[arg] for arg in kernel.arg_names}
    constants = {(kernel.arg_names.index(arg),): value for arg, value in fixed.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return len(triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"])


if __name__ == "__main__":
    for launch in json.load(sys.stdin):
        module, name, types, fixed = json.loads(launch)
        print(name, compiled(module, name, types, fixed, int(sys.argv[1])), {**types, **fixed}, flush=True)
