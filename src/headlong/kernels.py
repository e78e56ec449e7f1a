"""The door to the native module: which level of the instruction set runs, on how many threads, over which arrays.

``HEADLONG_ISA``      forces a level; ``numpy`` is the readable reference in this package. A level that is not there is
                      refused with the list of those that are; nothing falls back silently.
``HEADLONG_THREADS``  the threads of calls that name none; without it, all processors this process may run on.

No other file imports ``headlong._native``. The two offline passes over the rows (norms, int8 codes) have their NumPy
twins here, so that each can check the other.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import HIDDEN, Array, bits
from headlong.errors import KernelError, OptionError
from headlong.plan import CLASS_BLOCK, Plan, interleave, padded

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Doubles = NDArray[np.float64]
Mask = NDArray[np.uint8] | None

REFERENCE = "numpy"
PIECE = 1 << 24
"""Bytes of float64 that a streaming pass holds at once."""
MOST_THREADS = 1024
NAMES = {dtype: dtype.name for dtype in HIDDEN}
"""Of the types that hidden vectors come in, in the machine's byte order: looked up, for NumPy makes up a name each time."""
MARKED = (np.dtype(np.int64), np.dtype(np.int32))
"""The types of ids that are marked natively."""


class Executor(Protocol):
    """Answers questions from a plan, for whole batches; both executors have these verbs.

    ``hidden [batch, dim]`` float64; ``mask [1 or batch, vocab]`` uint8 or None; ``dense``: read every row. A normaliser may
    be estimated from rows sampled by ``seed`` and miss ``eps`` with probability ``delta``; 0: it is proved.
    """

    @property
    def isa(self) -> str: ...

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> tuple[Array, ...]:
        """``logits, ids, log_probs [batch, k], lse, error, proved, rows, bytes, dense [batch]``"""

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> tuple[Array, ...]:
        """``lse, error, rows, bytes, dense [batch]``"""

    def logits(self, hidden: Doubles, ids: NDArray[np.int64], threads: int) -> Doubles:
        """``[batch, m]``, exact"""

    def sample(
        self,
        hidden: Doubles,
        n: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        row0: int,
        mask: Mask,
        dense: bool,
        threads: int,
        class0: int = 0,
        delta: float = 0.0,
        chance: int = 0,
    ) -> tuple[Array, ...]:
        """``ids, logits, score, proved [batch, n], rows, bytes, dense [batch]``; a nucleus may be decided by rows that the seed
        ``chance`` draws, wrong with probability ``delta``, and its draws are then not proved"""


class Codes(NamedTuple):
    """int8 codes of every row, interleaved, and per class what they lost, rounded up; all padded to whole blocks.

    ``scale``, ``error`` ‖w - w^‖, ``peak`` max |w_j - w^_j|, ``size`` ‖w^‖.
    """

    codes: NDArray[np.uint8]
    scale: Floats
    error: Floats
    peak: Floats
    size: Floats


def levels() -> list[str]:
    """What can run here, the best last: the reference, then the native levels that this CPU has."""
    native = _native()
    return [REFERENCE, *([] if native is None else native.levels())]


def isa() -> str:
    """The level in use: the best native one, or what ``HEADLONG_ISA`` names."""
    asked = os.environ.get("HEADLONG_ISA", "")
    here = levels()
    if asked and asked not in here:
        raise KernelError(f"HEADLONG_ISA is {asked!r}, which is not to be had here; choose from {', '.join(here)}")
    if not asked and here == [REFERENCE]:
        raise KernelError(
            "headlong._native is not installed; build it with `pip install .`, "
            "or set HEADLONG_ISA=numpy for the slow reference in NumPy"
        )
    return asked or here[-1]


def threads(asked: int | None = None) -> int:
    """The number of threads of one call: ``asked``, else ``HEADLONG_THREADS``, else the processors at hand."""
    if asked is not None:
        return _thread_number(asked, "threads")
    text = os.environ.get("HEADLONG_THREADS", "")
    if text:
        return _thread_number(int(text) if text.isascii() and text.isdigit() else text, "HEADLONG_THREADS")
    native = _native()
    if native is not None:
        return min(int(native.processors()), MOST_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _thread_number(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= MOST_THREADS:
        raise OptionError(f"{name} is {value!r}; expected a whole number from 1 to {MOST_THREADS}")
    return int(value)


def executor(
    weight: Array, bias: Floats | None, norms: Floats, link: tuple[Any, ...], plan: Plan, level: str
) -> Executor:
    """The native executor at ``level``; ``link`` as the link's ``lowered()`` gives it."""
    mean, rotation, base, centre, looks, budget, dense, *_ = plan
    if base is None:
        base = np.zeros(padded(len(weight)), np.float32)
    native: Executor = _loaded().Executor(
        bits(weight), weight.dtype.name, bias, norms, link, mean, None if rotation is None else bits(rotation), centre, base,
        [tuple(look) for look in looks], 0 if budget is None else budget, dense.share, level,
    )  # fmt: skip
    return native


def blocks(weight: Array, bias: Floats | None, plan: Any, share: float, level: str) -> Any:
    """The native search over the blocks of a ``headlong.plan.Blocks``."""
    others = (None,) if plan.back is None else (bits(plan.back), plan.rest, plan.rest_scale, plan.rest_lost)
    turns = (bits(plan.head), *others)
    levels = [(one.records, (one.codes, one.lengths)) for one in plan.levels]
    closer = None
    if plan.closer is not None:
        width = len(plan.head)
        first = plan.edges.index(width)
        closer = (plan.closer, (width - plan.look, len(plan.edges) - first), first)
    return _loaded().Blocks(
        bits(weight), weight.dtype.name, bias, plan.mean, plan.centre, turns, plan.look, list(plan.edges), plan.order, levels,
        closer, (plan.shared, plan.closer_shared), plan.factor, share, level,
    )  # fmt: skip


def neighbours(features: Floats, thread_count: int = 1) -> NDArray[np.int32]:
    """An order of the rows of ``features [n, width]`` in which neighbours are alike: see ``csrc/blocks/order.cpp``."""
    order: NDArray[np.int32] = _loaded().neighbours(features, thread_count)
    return order


def experts(gate: Floats, ids: Array, starts: Array, executors: list[Executor], constant: bool, scaled: bool) -> Any:
    """A gate ``[experts, width]`` over native executors, one for each expert, whose classes are a run of ``ids``."""
    return _loaded().Experts(gate, ids, starts, executors, constant, scaled)


def columns(
    weight: Array, bias: Floats | None, norms: Floats, link: tuple[Any, ...], arrays: Mapping[str, Array], level: str
) -> Any:
    """The native reader of a layer laid out by coordinates; ``arrays`` as ``engines/adaptive/columns.py`` makes them."""
    lost = float(arrays["lost"][0]) if "lost" in arrays else 0.0
    race = (arrays.get("size"), arrays.get("peak"), arrays.get("squares"))
    return _loaded().Columns(
        bits(weight), weight.dtype.name, bias, norms, link, bits(arrays["columns"]), arrays["column_weight"], arrays["base"],
        *race, lost, level,
    )  # fmt: skip


def descent(dim: int, parts: Sequence[tuple[Array, Floats | None, Array | None]], nodes: Sequence[Any], level: str) -> Any:
    """The native descent at ``level``: ``parts`` of weight, bias, projection; ``nodes`` as in ``reference/descent.py``."""
    named = [
        (bits(weight), weight.dtype.name, bias, *((None, "") if turn is None else (bits(turn), turn.dtype.name)))
        for weight, bias, turn in parts
    ]
    return _loaded().Descent(dim, named, *nodes, level)


def row_norms(weight: Array, thread_count: int = 1) -> Floats:
    """``‖w_i‖`` rounded up, ``[vocab]``; NaN for a row that holds NaN or infinity."""
    if isa() != REFERENCE:
        norms: Floats = _loaded().row_norms(bits(weight), weight.dtype.name, thread_count, isa())
        return norms
    norms = np.empty(len(weight), np.float32)
    for part, rows in _pieces(weight):
        with np.errstate(invalid="ignore"):
            size = np.sqrt((rows * rows).sum(axis=1))
        norms[part] = np.where(np.isfinite(rows).all(axis=1), round_up(size * (1 + 1e-12)), np.nan)
    return norms


def widened(rows: Array) -> tuple[Doubles, float]:
    """``rows [batch, dim]`` in float64, and the size of the largest entry: infinite (or NaN) where one is not finite.

    This comes before every answer, mostly in cold caches: one native pass, or two of NumPy's where there is no native module.
    """
    native, name = sys.modules.get("headlong._native"), NAMES.get(rows.dtype)
    if native is None or name is None:
        wide = np.ascontiguousarray(rows, np.float64)
        return wide, float(np.abs(wide).max(initial=0.0))
    rows = rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)
    place = None if name == "float64" else np.empty(rows.shape)
    largest: float = native.widened(bits(rows), name, place)
    return rows if place is None else place, largest


def encode_int8(weight: Array, thread_count: int = 1) -> Codes:
    """Symmetric absmax int8: ``code = round(w / scale)``, ``scale = max|w| / 127``."""
    if isa() == REFERENCE:
        return encode_rows(weight)
    codes, scale, *lost = _loaded().encode_int8(bits(weight), weight.dtype.name, thread_count, isa())
    return Codes(codes, scale.reshape(-1), *lost)


def encode_into(
    weight: Array, bias: Floats | None, centre: Doubles, mean: Doubles, back: Floats, coarse: Sequence[tuple[Any, ...]],
    fine: Sequence[tuple[Any, ...]], unbiased: bool, limits: tuple[float, ...], result: tuple[Array, ...], thread_count: int,
) -> None:  # fmt: skip
    """Fills ``result``, an ``Encoded`` of ``previews/encode.py``, in one native pass over the rows."""
    places = tuple(array.view(np.uint8) if array.dtype == bool else array for array in result)
    name = weight.dtype.name
    _loaded().encode_into(
        bits(weight), name, bias, centre, mean, back, coarse, fine, unbiased, limits, places, thread_count, isa()
    )


def products(weight: Array, hidden: Doubles, thread_count: int = 1) -> Doubles:
    """``hidden @ weight.T`` in float64, ``[n, vocab]``, for a few vectors."""
    out = np.empty((len(hidden), len(weight)))
    if isa() == REFERENCE:
        for part, rows in _pieces(weight):
            out[:, part] = hidden @ rows.T
    else:
        wide = np.ascontiguousarray(hidden, np.float64)
        _loaded().products_into(bits(weight), weight.dtype.name, wide, out, thread_count, isa())
    return out


def encode_rows(weight: Array, centre: Doubles | None = None) -> Codes:
    """:func:`encode_int8` in NumPy, of the rows less ``centre [dim]`` where that is given."""
    count = padded(len(weight))
    codes = np.empty((count // CLASS_BLOCK, -(-weight.shape[1] // 4), CLASS_BLOCK, 4), np.uint8)
    scale, error, peak, size = (np.zeros(count, np.float32) for _ in range(4))
    for part, rows in _pieces(weight):
        values = rows if centre is None else rows - centre
        step = _steps(values)
        wide = step.astype(np.float64)[:, None]
        whole = values * np.divide(1.0, wide, out=np.zeros_like(wide), where=wide > 0)
        whole = np.clip(np.trunc(whole + np.copysign(0.5, whole)), -127, 127)
        back = whole * wide
        codes[part.start // CLASS_BLOCK : -(-part.stop // CLASS_BLOCK)] = interleave((whole + 128).astype(np.uint8))
        gap = np.abs(values - back)
        scale[part], peak[part] = step, round_up(gap.max(axis=1))
        error[part] = round_up(np.sqrt((gap**2).sum(axis=1)) * (1 + 1e-12))
        size[part] = round_up(np.sqrt((back**2).sum(axis=1)) * (1 + 1e-12))
    return Codes(codes, scale, error, peak, size)


def _steps(values: Doubles) -> Floats:
    """``max|row| / 127``, rounded up; 0 (all codes zero) where a subnormal step would lose its relative precision."""
    most = round_up(np.abs(values).max(axis=1))
    step: Floats = most / np.float32(127)
    with np.errstate(over="ignore"):
        step = np.where(step * np.float32(127) < most, np.nextafter(step, np.float32(np.inf)), step)
    return np.where(step >= np.finfo(np.float32).tiny, step, np.float32(0))


def round_up(values: Doubles) -> Floats:
    """float32 numbers that are not below ``values``; infinite beyond float32's range."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
        return np.where(nearest < values, np.nextafter(nearest, np.float32(np.inf)), nearest)


def mark(marked: NDArray[np.uint8], ids: Array, at: int) -> int:
    """``marked[r, i] = at`` (0 or 1) for the ids ``i`` of ``ids [r, m]``, else ``1 - at``; -1 is no id.

    Returns the largest number of ones in a row. -1, with anything in ``marked``: an id is out of range, the ids are not int64
    or int32, or the native module is not there (where it is, it marks whatever ``HEADLONG_ISA`` says).
    """
    native = _marker()
    if native is None or ids.dtype not in MARKED:
        return -1
    most: int = native(marked, np.ascontiguousarray(ids), at)
    return most


def link_losses(
    logits: Floats, target: NDArray[np.int64], link: tuple[Any, ...], thread_count: int
) -> tuple[Doubles, Doubles]:
    """``lse, f(z[target])`` of each row of ``logits [rows, vocab]``, the softmax being over ``f(z)``.

    ``link``  ``("affine", a, b)``, ``("softcap", cap, 0)``, ``("gss", centre, power)``, or ``("table", start, step, base,
              slope)`` with ``base, slope [cells + 2]`` float32: cell 0 lies below ``start`` and counts from one step below it
    """
    lse, at_target = _loaded().link_losses(logits, target, link, thread_count, isa())
    return lse, at_target


def link_gradients(
    logits: Floats, target: NDArray[np.int64], lse: Doubles, scale: Floats, link: tuple[Any, ...], thread_count: int
) -> Doubles:
    """Turns ``logits`` in place into ``scale (softmax(f(z)) - onehot) f'(z)``; returns what the link's parameters need.

    With ``g`` the same without ``f'``: of a table the sums over its cells of ``g`` and of ``g (z - knot)``, ``[2, cells +
    2]``; of the others the sums of ``g z`` and of ``g``, ``[2, 1]``.
    """
    sums: Doubles = _loaded().link_gradients(logits, target, lse, scale, link, thread_count, isa())
    return sums


def bandwidth(size: int, thread_count: int, repeats: int) -> float:
    """GB/s of a plain read of ``size`` bytes: what a scan can at best reach."""
    speed: float = _loaded().bandwidth(size, thread_count, repeats, isa())
    return speed


def _pieces(weight: Array) -> Iterator[tuple[slice, Doubles]]:
    """The rows as float64, some whole blocks at a time: no pass ever holds a wide copy of the layer."""
    step = max(1, PIECE // (8 * weight.shape[1] * CLASS_BLOCK)) * CLASS_BLOCK
    for start in range(0, len(weight), step):
        part = slice(start, min(start + step, len(weight)))
        yield part, weight[part].astype(np.float64)


def _native() -> Any:
    """The native module, or None where it was not built. A module that is there but broken raises."""
    try:
        return importlib.import_module("headlong._native")
    except ModuleNotFoundError as error:
        if error.name != "headlong._native":
            raise
        return None


@functools.cache
def _marker() -> Any:
    """What marks ids, found once: looking for it takes as long as marking a few."""
    native = _native()
    return None if native is None else native.mark


def _loaded() -> Any:
    native = _native()
    if native is None:
        raise KernelError("headlong._native is not installed; build it with `pip install .`")
    return native
