"""From a file to what was saved there: an engine over a matrix or a structured layer, one with changes, or a layer."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from headlong import native
from headlong.compile import configured, known
from headlong.engines.base import Engine
from headlong.engines.build import checked_norms
from headlong.engines.changed import Changed
from headlong.engines.method import METHODS, Method, Running
from headlong.engines.saved.engine import read_engine
from headlong.engines.saved.record import Opening, blamed
from headlong.engines.structured.base import ENGINES, StructuredEngine
from headlong.engines.structured.saved import FORMAT as STRUCTURED_ENGINE
from headlong.engines.structured.saved import read_structured
from headlong.errors import InputError, named
from headlong.layers.matrix import FORMAT as MATRIX_FORMAT
from headlong.layers.matrix import Layer
from headlong.layers.structured import FORMAT as STRUCTURED_LAYER
from headlong.layers.structured import StructuredLayer, load_layer
from headlong.number_checks import flag
from headlong.store import open_file

LAYERS = (MATRIX_FORMAT, STRUCTURED_LAYER)
"""What files of layers say that they are."""
ALIKE = 1e-5
"""How alike the lengths of rows are that another instruction set adds up."""


def load(
    path: str | os.PathLike[str],
    layer: Layer | StructuredLayer | None = None,
    threads: int | None = None,
    *,
    verify: bool = True,
    mapped: bool = True,
) -> Any:
    """The engine or layer in a file. The start of its ``repr`` says which: ``Engine(``, ``Layer(``, ``TreeLayer(``, ...

    ``layer``   of an engine that was saved without its own
    ``verify``  read the whole file once and compare it with its checksum, and the lengths of its rows with what it says of
                them, since one flipped bit of a plan can make a wrong answer look proved. False: map the file and check only
                the numbers that bounds are made of; for files that were verified before (``headlong inspect --verify``)
    ``mapped``  False: read into memory of its own. A mapped file that is cut off by another program while the engine reads it
                ends the process by SIGBUS; ``save`` never does that: it replaces files as a whole
    """
    verify, mapped = flag(verify, "verify"), flag(mapped, "mapped")
    how = Opening(verify, mapped, native.threads(threads))
    file = open_file(path)
    if file.metadata.get("format") in LAYERS:
        if layer is not None:
            raise InputError(f"{file.name} holds a layer; expected an engine where layer= is given: leave layer= out")
        if verify and file.checksum is not None:
            file.verify(how.threads)
        return load_layer(path)
    if file.metadata.get("format") == STRUCTURED_ENGINE:
        return _load_structured(path, layer, threads, how)
    if layer is not None and not isinstance(layer, Layer):
        raise InputError(f"layer is {named(layer)}; {os.fspath(path)} holds an engine over a headlong.Layer")
    saved = read_engine(path, layer, how)
    with blamed(os.fspath(path)):  # an option that is none, or numbers that the native module refuses
        if verify and not np.allclose(checked_norms(saved.layer, how.threads), saved.norms, rtol=ALIKE, atol=0):
            raise ValueError("its norms are not those of its rows")
        method = _configured(saved.method, saved.options)
        running = Running(threads, saved.seed, saved.reason)
        engine = Engine(saved.layer, method, saved.plan, saved.norms, saved.promise, running)
        return engine if saved.changes is None else Changed(engine, *saved.changes)


def _configured(name: Any, options: dict[str, Any]) -> Method:
    """The method with its options, and with what was filled in."""
    kind = METHODS[name] if isinstance(name, str) and name in METHODS else Method
    filled_in = {field: value for field, value in options.items() if field in kind.filled_in}
    given = {option: value for option, value in options.items() if option not in kind.filled_in}
    return dataclasses.replace(configured(name, given), **filled_in)


def _load_structured(
    path: str | os.PathLike[str], layer: Layer | StructuredLayer | None, threads: int | None, how: Opening
) -> StructuredEngine:
    kept = read_structured(path, layer, how)
    engine = ENGINES[kept.kind]
    with blamed(os.fspath(path)):
        options = engine.Options(**known(kept.kind, engine.Options, kept.options))
        return engine(kept.layer, options, kept.promise, Running(threads, kept.seed, kept.reason))
