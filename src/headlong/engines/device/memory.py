"""Which device there is, and arrays in its memory; the only file that imports torch.

torch and Triton are imported when a device engine is made, not before. ``"interpreter"`` names Triton's interpreter: the same
kernels, one NumPy operation at a time, on the CPU's memory. It is for tests and for reading along where no GPU is at hand.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from headlong.errors import MissingPackageError, OptionError

INTERPRETER = "interpreter"
Tensor = Any


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
