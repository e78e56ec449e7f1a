"""Which device there is, and arrays in its memory; the only file that imports torch.

torch and Triton are imported when a device engine is made, not before. ``"interpreter"`` names Triton's interpreter: the same
kernels, one NumPy operation at a time, on the CPU's memory. It is for tests and for reading along where no GPU is at hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headlong.errors import MissingPackageError, OptionError

INTERPRETER = "interpreter"
Tensor = Any


class Call(NamedTuple):
    """``x [batch, dim]`` as it came and ``narrow`` in the type that scans read; ``length [batch]`` float32, not below ``‖x‖``;
    ``bad [batch]``: a row with NaN or infinity; ``mask [1 or batch, vocab]`` or None, its rows ``stride`` apart; ``heat [2]``
    float64, the temperature and ``top_p``; ``numbers [batch, 5]`` int64, what noise depends on, where there is any: row, draw,
    the two halves of the seed, the first class; ``fours`` is not None where that one starts a block of words."""

    x: Tensor
    narrow: Tensor
    length: Tensor
    bad: Tensor
    mask: Tensor | None
    stride: int
    heat: Tensor
    numbers: Tensor | None
    fours: int | None = 1

    def of(self, rows: Tensor) -> Call:
        """Some of its rows."""
        return self._each(lambda part: part[rows])

    def drawn(self, n: int) -> Call:
        """Every row n times, with draws 0 to n - 1."""
        if n == 1 or self.numbers is None:
            return self
        call = self._each(lambda part: part.repeat_interleave(n, dim=0))
        call.numbers.view(len(self.x), n, 5)[:, :, 1] = self.numbers.new_ones(n).cumsum(dim=0) - 1  # type: ignore[union-attr]
        return call

    def _each(self, change: Callable[[Tensor], Tensor]) -> Call:
        x, narrow, length, bad = (change(part) for part in self[:4])
        mask = change(self.mask) if self.stride else self.mask
        numbers = None if self.numbers is None else change(self.numbers)
        return self._replace(x=x, narrow=narrow, length=length, bad=bad, mask=mask, numbers=numbers)


def place_of(name: Any) -> tuple[Any, Any]:
    """``(torch, torch.device)`` of a device's name, with Triton there and ready, or an error that says what to do."""
    if not isinstance(name, str) or not (name == INTERPRETER or name.split(":")[0] == "cuda"):
        raise OptionError(f"device is {name!r}; expected 'cuda', 'cuda:N', 'interpreter' (Triton's, for tests), or None")
    try:
        torch, triton = importlib.import_module("torch"), importlib.import_module("triton")
    except ImportError as error:
        raise MissingPackageError(f"device={name!r} needs torch and triton ({error}): pip install 'headlong[gpu]'") from error
    if not hasattr(triton, "knobs"):
        raise MissingPackageError(f"device={name!r} needs triton 3.6, not {triton.__version__}: pip install 'headlong[gpu]'")
    interpreted = bool(triton.knobs.runtime.interpret)
    if name == INTERPRETER:
        if not interpreted:
            raise OptionError("device='interpreter' needs TRITON_INTERPRET=1 in the environment before triton is imported")
        return torch, torch.device("cpu")
    if not torch.cuda.is_available():
        raise OptionError(f"device is {name!r}, but torch {torch.__version__} finds no GPU here; leave device out for the CPU")
    if interpreted:
        raise OptionError(f"device is {name!r}, but TRITON_INTERPRET is set, which runs kernels on the CPU; unset it")
    return torch, torch.device(name)


def tensor_of(array: Any, torch: Any, device: Any) -> Tensor:
    """A NumPy array on the device; bfloat16 by its bits."""
    owned = np.array(array, array.dtype.newbyteorder("="), order="C")
    if owned.dtype.name == "bfloat16":
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(owned).to(device)


def rounded_up(values: Tensor) -> Tensor:
    """float64 to a float32 that is not smaller."""
    return (values * (1 + 2.0**-22) + 1e-37).float()
