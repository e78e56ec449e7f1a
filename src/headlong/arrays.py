"""The one place that knows kinds of arrays: NumPy, torch on the CPU, and bfloat16 as ``ml_dtypes`` spells it.

torch is looked at only where the caller has imported it already. What comes in leaves as a NumPy view (copied only
where the type or the strides have to change), and answers leave as the kind that came in. Sparse and quantised tensors are
not read here: they are refused with advice, as are hidden vectors on a GPU by engines that read on the CPU.
"""

from __future__ import annotations

import math
import mmap
import numbers
import sys
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from headlong.answers import View, named_fields
from headlong.dtypes import BFLOAT16, HIDDEN, STORED
from headlong.errors import DtypeError, IdError, InputError, NonFiniteError, ShapeError, named

Array = NDArray[Any]
Kind = Literal["numpy", "torch"]
Given = TypeVar("Given", bound=View)
Scalar = TypeVar("Scalar", bound=np.generic)

LARGE_PAGE, LEAST_LARGE = 1 << 21, 1 << 22
"""Bytes of a large page, and of an array that is worth some."""
AT_ONCE = 1 << 22
"""Numbers that a pass over many holds at once."""


def pieces(count: int, width: int, at_once: int = AT_ONCE, runs: int = 1) -> list[slice]:
    """``count`` rows of ``width`` numbers: as many at a time as are ``at_once`` numbers, in whole ``runs``."""
    step = max(1, at_once // max(1, width * runs)) * runs
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def memory(size: int) -> mmap.mmap:
    """``size`` bytes of this process's own, zero, in large pages if the system has them. MemoryError if it has no more."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    try:
        found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes of memory were not to be had: {error}") from error
    if size >= LEAST_LARGE:
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


def large_empty(shape: tuple[int, ...], dtype: Any = np.uint8) -> Array:
    """``np.empty`` for what is read from end to end at every call: in large pages, which are looked up less often.

    Memory of its own, from the border of such a page: what another array left behind keeps its small pages.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LEAST_LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(shape, dtype)
    whole = np.frombuffer(memory(size + LARGE_PAGE), np.uint8)
    found: Array = whole[-whole.ctypes.data % LARGE_PAGE :][:size].view(dtype).reshape(shape)
    return found


def kind_of(value: object) -> Kind:
    """``"torch"`` for a tensor, ``"numpy"`` for everything else; never imports torch."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return "torch" if tensor is not None and isinstance(value, tensor) else "numpy"


def is_linear(value: object) -> bool:
    """Whether ``value`` is a ``torch.nn.Linear``; InputError for one that computes something else. Never imports torch."""
    linear = getattr(getattr(sys.modules.get("torch"), "nn", None), "Linear", None)
    if linear is None or not isinstance(value, linear):
        return False
    module: Any = value
    own = getattr(vars(module).get("forward", module.forward), "__func__", None) is not linear.forward
    hooks = ("_forward_hooks", "_forward_pre_hooks")  # torch has no other way to ask
    if own or any(getattr(module, kind) for kind in hooks):
        what = "a forward of its own" if own else "hooks"
        raise InputError(f"{named(value)} has {what}, so its scores are not weight @ hidden + bias; pass the right weight")
    return True


def as_numpy(value: Any, name: str) -> Array:
    """``value`` as a NumPy array, without a copy where it is one already or a torch tensor on the CPU."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value
    if kind_of(value) == "torch":
        return _tensor_view(value, name)
    if isinstance(value, np.ma.MaskedArray):
        raise DtypeError(f"{name} is a masked array, whose mask would be lost; pass {name}.filled(...)")
    try:
        array = np.asarray(value)
    except Exception as error:  # an object's own __array__ may raise anything
        raise DtypeError(f"{name} is not an array: {error}; pass a NumPy array or a torch tensor") from error
    if array.dtype == np.float64 and array.size and isinstance(value, (list, tuple)):
        array = _still_whole(value, array)
    if array.dtype == object:
        raise DtypeError(f"{name} is {named(value)} that NumPy reads as objects; pass a regular array of numbers")
    return array


def _still_whole(value: Any, array: Array) -> Array:
    """The array itself; of whole numbers some of which are beyond int64, which NumPy takes for float64, the whole numbers."""
    each = np.array(value, object)
    if not all(isinstance(one, numbers.Integral) for one in each.flat):
        return array
    return each.astype(np.uint64) if min(each.flat) >= 0 else each


def _tensor_view(tensor: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise DtypeError(f"{name} is on {tensor.device}; this reads from the CPU's memory: pass {name}.cpu()")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise DtypeError(f"{name} is a sparse or quantised tensor; pass {name}.to_dense() or {name}.dequantize()")
    tensor = tensor.detach().resolve_neg()
    try:
        if tensor.dtype == torch.bfloat16:
            bits: Array = tensor.view(torch.int16).numpy()
            return bits.view(BFLOAT16)
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError) as error:
        raise DtypeError(f"{name} ({tensor.dtype}) has no NumPy view: {error}; pass {name}.float()") from error
    return array


def resident(value: Any) -> Any | None:
    """The tensor itself where it lies in a GPU's memory, else None."""
    return value.detach() if kind_of(value) == "torch" and value.device.type == "cuda" else None


def to_host(value: Any) -> Any:
    """A tensor in a GPU's memory copied to the CPU's; everything else as it is."""
    tensor = resident(value)
    return value if tensor is None else tensor.cpu()


class Form(NamedTuple):
    """What hidden vectors came as, and answers leave as: the kind of array, and whether numbers are float32."""

    kind: Kind
    single: bool


WIDE = Form("numpy", False)


def form_of(hidden: Any) -> Form:
    """float64 leaves as float64, everything else as float32."""
    return Form(kind_of(hidden), not str(getattr(hidden, "dtype", "float64")).endswith("float64"))


def answer_as(answer: Given, form: Form) -> Given:
    """The same answer with every NumPy array in it, at any depth, as the kind that came in; where that was float32, bounded
    numbers are, too, and what their rounding takes joins ``error``. Exact logits stay float64: rounded, they would tie."""
    if form.single:
        answer = _single(answer)
    return answer if form.kind == "numpy" else _as_torch(answer)


def answer_like(answer: Given, value: object) -> Given:
    """The same as the kind of ``value``, no number rounded."""
    return answer if kind_of(value) == "numpy" else _as_torch(answer)


BOUNDED = ("log_probs", "lse", "entropy", "value", "kept")
"""Fields of answers that are within ``error``, and have the precision that came in."""


def _single(answer: Given) -> Given:
    fields = named_fields(answer)
    if fields.get("error") is None:
        return answer
    with np.errstate(over="ignore"):
        narrow = {name: fields[name].astype(np.float32) for name in BOUNDED if isinstance(fields.get(name), np.ndarray)}
    error = fields["error"]
    for name, value in narrow.items():
        with np.errstate(invalid="ignore"):
            lost = np.where(np.isfinite(fields[name]), np.abs(value - fields[name]), 0.0)
        error = np.maximum(error, fields["error"] + lost.max(axis=tuple(range(1, lost.ndim)), initial=0.0))
    return type(answer)(**fields | narrow | {"error": round_up(error)})


def round_up(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """float32 numbers that are not below ``values``; infinite beyond float32's range."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
        return np.where(near < values, np.nextafter(near, np.float32(np.inf)), near)


def _as_torch(answer: Given) -> Given:
    return type(answer)(*map(_value_as_torch, named_fields(answer).values()))


def _value_as_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # torch warns about read-only memory, and cannot read reversed strides
        owned = value if value.flags.writeable and value.flags.c_contiguous else value.copy()
        return sys.modules["torch"].from_numpy(owned)
    return type(value)(*map(_value_as_torch, value)) if isinstance(value, tuple) else value


def hidden_rows(hidden: Any, dim: int, name: str = "hidden", vocab: int | None = None) -> Array:
    """``[batch, dim]`` of a type that hidden vectors come in, as it came; its numbers are not looked at. ``vocab``, the
    layer's classes, tells a transposed weight."""
    array = as_numpy(hidden, name)
    if array.ndim != 2 or array.shape[1] != dim:
        raise ShapeError(f"{name} has shape {shape_of(array)}; expected [batch, {dim}]{_shape_advice(array, dim, name, vocab)}")
    if array.dtype not in HIDDEN and array.dtype.newbyteorder("=") not in HIDDEN:
        raise DtypeError(f"{name} is {array.dtype}; expected float16, bfloat16, float32 or float64: convert it first")
    return array


def hidden64(hidden: Any, dim: int, name: str = "hidden") -> NDArray[np.float64]:
    """``[batch, dim]`` float64, C-contiguous and finite; not copied where it is that already. Exact for every type."""
    wide: NDArray[np.float64] = np.ascontiguousarray(hidden_rows(hidden, dim, name), np.float64)
    finite = np.isfinite(wide)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise NonFiniteError(
            f"{name}[{row}, {column}] is {wide[row, column]}; expected finite numbers: drop or repair the row"
        )
    return wide


def shape_of(array: Array) -> str:
    return f"[{', '.join(map(str, array.shape))}]"


def _shape_advice(array: Array, dim: int, name: str, vocab: int | None) -> str:
    if array.ndim == 1 and array.shape[0] == dim:
        return f": one vector is a batch of one, pass {name}[None, :]"
    if array.ndim == 2 and array.shape[0] == dim:
        return f": pass {name}.T"
    if array.ndim > 2 and array.shape[-1] == dim:
        return f": pass {name}.reshape(-1, {dim})"
    if array.ndim == 2 and array.shape[1] == vocab:
        return f": the layer's weight [{vocab}, {dim}] looks transposed, it is read as [classes, dim]; use Layer(weight.T)"
    return ", one row per query and the layer's dim columns"


def ids64(ids: Any, batch: int, vocab: int) -> NDArray[np.int64]:
    """``[batch, m]`` int64, C-contiguous, every id in ``0..vocab-1``."""
    array = as_numpy(ids, "ids")
    if array.ndim != 2 or array.shape[0] != batch:
        column = array.ndim == 1 and array.shape[0] == batch
        advice = ": pass ids[:, None]" if column else ", one row per query"
        raise ShapeError(f"ids has shape {shape_of(array)}; expected [{batch}, m]{advice}")
    return np.ascontiguousarray(checked_ids(array, vocab, "ids"))


def checked_ids(array: Array, vocab: int, name: str, lowest: int = 0) -> NDArray[np.int64]:
    """Ids of any shape as int64, every one from ``lowest`` to ``vocab - 1``."""
    if array.size == 0:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        advice = f": pass np.flatnonzero({name})" if array.dtype == bool else ""
        raise DtypeError(f"{name} is {array.dtype}; expected integer class ids{advice}")
    low, high = int(array.min()), int(array.max())
    if low < lowest or high >= vocab:
        raise IdError(f"{name} holds {low if low < lowest else high}; class ids run from 0 to {vocab - 1}")
    return array.astype(np.int64, copy=False)


def evenly(rows: Any, most: int) -> Any:
    """``rows``, or ``most`` of them, evenly spread from the first to the last."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def stored_matrix(weight: Any, name: str = "weight") -> Array:
    """``[vocab, dim]`` as a read-only view in its own type; copied only where its rows are not contiguous."""
    array = as_numpy(weight, name)
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"{name} has shape {shape_of(array)}; expected [vocab, dim], one row per class")
    if array.dtype not in STORED:
        advice = f"pass {name}.astype(np.float32)" if array.dtype.kind in "fiu" else "convert it first"
        raise DtypeError(f"{name} is {array.dtype}; expected float32, float16 or bfloat16: {advice}")
    return _read_only(np.ascontiguousarray(array))


def stored_bias(bias: Any, vocab: int) -> NDArray[np.float32]:
    """``[vocab]`` float32, read-only and finite; 16-bit types are widened, which is exact."""
    array = as_numpy(bias, "bias")
    if array.shape != (vocab,):
        raise ShapeError(f"bias has shape {shape_of(array)}; expected [{vocab}], one number per class")
    if array.dtype not in STORED:
        raise DtypeError(f"bias is {array.dtype}; expected float32, float16 or bfloat16: pass bias.astype(np.float32)")
    wide: NDArray[np.float32] = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(wide)
    if not finite.all():
        row = int(np.argmin(finite))
        raise NonFiniteError(f"bias[{row}] is {wide[row]}; expected finite numbers: to rule a class out, use exclude=")
    return _read_only(wide)


def unchanging(array: Array) -> bool:
    """Whether nobody can write to these numbers through NumPy: mapped read-only, or a copy that was closed to writing."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return True


def closed_copy(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A copy that nobody can write to."""
    own = np.array(array, order="C")
    own.flags.writeable = False
    return own


def bits(array: Array) -> Array:
    """float16 and bfloat16 as their uint16 bits, other types as they are: what the native module takes."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 and array.dtype in STORED else array


def _read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    view = array.view()
    view.flags.writeable = False
    return view
