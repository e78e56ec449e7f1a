"""``headlong._native`` itself, imported when it is first needed: nothing else imports it."""

from __future__ import annotations

import importlib
from typing import Any

from headlong.errors import KernelError


def module() -> Any:
    """The native module, or None where it was not built. KernelError where it is there but cannot be loaded."""
    try:
        return importlib.import_module("headlong._native")
    except ModuleNotFoundError as error:
        if error.name != "headlong._native":
            raise
        return None
    except ImportError as error:  # of another Python, damaged, or more than a limit on memory leaves room for
        raise KernelError(f"headlong._native cannot be loaded: {error}; install headlong again, or give it memory") from error


def loaded() -> Any:
    native = module()
    if native is None:
        raise KernelError("headlong._native is not installed; build it with `pip install .`")
    return native
