"""Where device tests run: on the GPU where there is one, else in Triton's interpreter; and what a test may see of a launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
GPU = torch.cuda.is_available()
if not GPU:
    pytest.importorskip("triton", minversion="3.6", reason="no triton 3.6: kernels run on Linux on x86-64")
PLACE = "cuda" if GPU else "interpreter"


def tensor(array: Any) -> Any:
    return torch.from_numpy(np.array(array)).to("cuda" if GPU else "cpu")


@contextmanager
def recorded(run: bool = True) -> Iterator[list[tuple[Any, dict[str, Any], dict[str, Any]]]]:
    """``(kernel, arguments by name, what it is compiled for)`` of every launch; they are skipped where not to ``run``."""
    from triton.runtime import interpreter

    launches: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    plain = interpreter.InterpretedFunction.__getitem__

    def launcher(kernel: Any, grid: Any) -> Any:
        def launch(*values: Any, **constants: Any) -> None:
            launches.append((kernel.fn, dict(zip(kernel.arg_names, values, strict=False)), constants))
            if run:
                plain(kernel, grid)(*values, **constants)

        return launch

    interpreter.InterpretedFunction.__getitem__ = launcher
    try:
        yield launches
    finally:
        interpreter.InterpretedFunction.__getitem__ = plain
