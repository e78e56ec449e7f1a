"""What every index does, whether rows have numbers or ids of your own; what FAISS's flat indexes have besides, refused by name.

::

    index.get_xb()      AbsentError: FAISS's get_xb is not here; reconstruct_n() gives the rows
    index.serch(x, 5)   AttributeError, as everywhere
    index.nprobe = 3    AttributeError: what an index does not have cannot be set, as FAISS has it

FAISS raises AssertionError for what its Python half refuses and RuntimeError for the rest; what is refused here is both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.dtypes import Floats, Ids
from headlong.errors import AbsentError, HeadlongError, OptionError, ShapeError, named
from headlong.number_checks import real, whole

if TYPE_CHECKING:
    from headlong.integrations.faiss.selectors import Params

Given = NDArray[Any] | None
"""The caller's array for an answer, or None."""
Number = TypeVar("Number", int, float)

ROWS = "rows are float32 and have no other code; reconstruct_n() gives them"
SOME = "search(x, k, params=SearchParameters(sel=IDSelectorBatch(ids))) looks at some rows alone"
POINTERS = "it takes pointers; call the method of the same name without the ending, on arrays"
ABSENT = {
    **dict.fromkeys(("codes", "code_size", "sa_code_size", "sa_encode", "sa_decode", "get_xb", "get_CodePacker"), ROWS),
    "add_sa_codes": "rows are added as numbers: add(x)",
    **dict.fromkeys(("search1", "search_subset", "compute_distance_subset"), SOME),
    **dict.fromkeys(("get_distance_computer", "get_FlatCodesDistanceComputer"), SOME),
    **dict.fromkeys(("compute_residual", "compute_residual_n"), "x - reconstruct_batch(keys) is that"),
    "permute_entries": "take rows = reconstruct_n()[order], then reset() and add(rows)",
    "check_compatible_for_merge": "merge_from(other) says what does not fit",
    "metric_arg": "the metrics here have no argument",
    "train_with_queries": "train(queries) takes queries",
    **dict.fromkeys(("nprobe", "efSearch", "hnsw", "quantizer", "invlists"), "every answer is exact: there is nothing to set"),
}
"""Names, and what to do instead."""
C_ENDINGS = ("_c", "_ex")


class Verbs(ABC):
    """An index. ``hasattr`` answers that what is refused is not there."""

    public: ClassVar[tuple[str, ...]] = ()
    """What may be set."""

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name not in self.public and not hasattr(self, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        stem = next((name[: -len(ending)] for ending in C_ENDINGS if name.endswith(ending)), "")
        advice = ABSENT.get(name) or ABSENT.get(stem) or (POINTERS if stem and hasattr(type(self), stem) else None)
        if advice is None:
            return object.__getattribute__(self, name)  # which raises what a name that nobody knows raises
        raise AbsentError(f"FAISS's {name} is not here; {advice}")

    @abstractmethod
    def search(self, x: ArrayLike, k: int, *, params: Params = None, D: Given = None, I: Given = None) -> tuple[Floats, Ids]:  # noqa: E741, N803
        """``(D, I) [n, k]``: the k best of each query, best first, equal ones by id; ``params.sel`` says among which rows."""

    @abstractmethod
    def reconstruct_batch(self, key: ArrayLike, x: Given = None) -> Floats:
        """A row for each of ``key [n]``."""

    def assign(self, x: ArrayLike, k: int = 1, labels: Given = None) -> Ids:
        """The ids alone."""
        return self.search(x, k, I=labels)[1]

    def reconstruct(self, key: int, x: Given = None) -> Floats:
        """The first row of that number, or with that id, as it is stored."""
        return into(x, self.reconstruct_batch([count(key, "key", -(2**63))])[0])


_ALSO: dict[str, type[HeadlongError]] = {}


def as_faiss(kind: type[HeadlongError], said: str) -> HeadlongError:
    """The error ``kind(said)``, which callers of FAISS catch, too."""
    if kind.__name__ not in _ALSO:
        _ALSO[kind.__name__] = type(kind.__name__, (kind, AssertionError, RuntimeError), {"__module__": kind.__module__})
    return _ALSO[kind.__name__](said)


def count(value: Any, name: str, low: int = 1) -> int:
    """A whole number from ``low``."""
    return _checked(whole, value, name, low, 2**63 - 1)


def threshold(value: Any, name: str) -> float:
    """Any number."""
    return _checked(real, value, name, -math.inf, math.inf)


def _checked(check: Callable[..., Number], value: Any, name: str, *ends: Any) -> Number:
    try:
        return check(value.item() if getattr(value, "ndim", None) == 0 else value, name, *ends)
    except OptionError as error:
        raise as_faiss(OptionError, str(error)) from None


def run_of(first: Any, some: Any, every: int) -> Ids:
    """``first ... first + some - 1``; -1: ``every`` one of them."""
    start, length = count(first, "n0", 0), count(some, "ni", -1)
    return np.arange(start, start + (every if length == -1 else length))


def gathered(ids: Ids, places: Ids) -> Ids:
    """``ids[places]``, -1 where there is no place."""
    return np.where(places < 0, -1, np.append(ids, -1)[places])


def written_to(given: Given, shape: tuple[int, ...], dtype: Any, name: str) -> Any:
    """The caller's array for an answer, or a new one."""
    if given is None:
        return np.empty(shape, dtype)
    if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype != dtype or not given.flags.writeable:
        found = named(given)
        if isinstance(given, np.ndarray):
            found = f"{given.dtype} of shape {list(given.shape)}{'' if given.flags.writeable else ', read-only'}"
        raise as_faiss(ShapeError, f"{name} is {found}; expected an array of {np.dtype(dtype)} {list(shape)} to write to")
    return given


def into(given: Given, rows: Floats) -> Floats:
    """``rows``, in the caller's array ``x`` where there is one."""
    if given is None:
        return rows
    found: Floats = written_to(given, rows.shape, np.float32, "x")
    found[:] = rows
    return found
