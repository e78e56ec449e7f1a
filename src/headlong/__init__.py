"""headlong reads a model's output layer faster, and says with every answer how far it can be trusted.

The public names, each fetched from its file on first use: ``import headlong`` imports neither NumPy nor torch nor the
command line, and costs a few milliseconds.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlong import errors as errors
    from headlong import structured as structured
    from headlong.answers import Cost as Cost
    from headlong.answers import Entropy as Entropy
    from headlong.answers import LogProb as LogProb
    from headlong.answers import Lse as Lse
    from headlong.answers import Sample as Sample
    from headlong.answers import TopK as TopK
    from headlong.compile import compile as compile
    from headlong.engines.base import Engine as Engine
    from headlong.layers.matrix import Layer as Layer
    from headlong.links import Affine as Affine
    from headlong.links import Gss as Gss
    from headlong.links import SoftCap as SoftCap
    from headlong.links import Table as Table
    from headlong.loading import load as load
    from headlong.promise import Promise as Promise
    from headlong.tune import tune as tune

__version__ = "0.1.0"

_HOMES = {
    "Affine": "links",
    "Cost": "answers",
    "Engine": "engines.base",
    "Entropy": "answers",
    "Gss": "links",
    "Layer": "layers.matrix",
    "LogProb": "answers",
    "Lse": "answers",
    "Promise": "promise",
    "Sample": "answers",
    "SoftCap": "links",
    "Table": "links",
    "TopK": "answers",
    "compile": "compile",
    "load": "loading",
    "tune": "tune",
}

_MODULES = ("errors", "structured")

__all__ = [
    "Affine",
    "Cost",
    "Engine",
    "Entropy",
    "Gss",
    "Layer",
    "LogProb",
    "Lse",
    "Promise",
    "Sample",
    "SoftCap",
    "Table",
    "TopK",
    "compile",
    "errors",
    "load",
    "structured",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"headlong.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'headlong' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"headlong.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``headlong.compile`` and ``headlong.tune`` the functions when Python binds files of those names to the package."""

    def __setattr__(self, name: str, value: Any) -> None:
        named = name in ("compile", "tune") and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if named else value)


sys.modules[__name__].__class__ = _Package
