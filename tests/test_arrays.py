"""arrays.py: both kinds in, views where possible, one clear refusal for everything else."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from headlong import arrays
from headlong.answers import View
from headlong.arrays import LARGE_PAGE, LEAST_LARGE, large_empty
from headlong.errors import DtypeError, IdError, InputError, NonFiniteError, ShapeError

FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
TENSORS = [torch.float16, torch.float32, torch.float64, torch.bfloat16]


class Inner(NamedTuple):
    rows: Any
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Outer(View):
    ids: Any
    proved: Any
    cost: Inner


# ---- hidden vectors ----


@pytest.mark.parametrize("dtype", [*FLOATS, *TENSORS], ids=str)
def test_hidden_is_widened_exactly(dtype: Any, rng: np.random.Generator) -> None:
    hidden: Any = rng.standard_normal((3, 5))
    hidden = torch.from_numpy(hidden).to(dtype) if dtype in TENSORS else hidden.astype(dtype)
    wide = arrays.hidden64(hidden, 5)
    assert wide.dtype == np.float64 and wide.flags.c_contiguous
    assert (wide == (hidden.double().numpy() if dtype in TENSORS else hidden.astype(np.float64))).all()


def test_float64_is_not_copied(rng: np.random.Generator) -> None:
    hidden = rng.standard_normal((3, 5))
    assert np.shares_memory(arrays.hidden64(hidden, 5), hidden)
    tensor = torch.from_numpy(hidden)
    assert np.shares_memory(arrays.hidden64(tensor, 5), hidden)


def test_strides_byte_orders_gradients_and_lists_are_read(rng: np.random.Generator) -> None:
    hidden = rng.standard_normal((5, 3)).astype(np.float32)
    want = hidden.T.astype(np.float64)
    assert (arrays.hidden64(hidden.T, 5) == want).all()
    assert (arrays.hidden64(hidden.T.astype(">f4"), 5) == want).all()
    assert (arrays.hidden64(torch.from_numpy(hidden).T.requires_grad_(), 5) == want).all()
    assert (arrays.hidden64(want.tolist(), 5) == want).all()


@pytest.mark.parametrize(
    ("hidden", "error", "message"),
    [
        (np.zeros(5), ShapeError, r"hidden has shape \[5\]; expected \[batch, 5\].*hidden\[None, :\]"),
        (np.zeros((5, 2)), ShapeError, r"shape \[5, 2\].*pass hidden\.T"),
        (np.zeros((2, 3, 5)), ShapeError, r"pass hidden\.reshape\(-1, 5\)"),
        (np.zeros((2, 4)), ShapeError, r"shape \[2, 4\]; expected \[batch, 5\], one row per query"),
        (np.float32(1), ShapeError, r"shape \[\]"),
        (np.zeros((2, 5), np.int64), DtypeError, "hidden is int64; expected float16"),
        (np.zeros((2, 5), np.longdouble), DtypeError, "longdouble|float128"),
        (np.zeros((2, 5), complex), DtypeError, "complex128"),
        (np.full((2, 5), "a"), DtypeError, "<U1"),
        (None, DtypeError, "NoneType that NumPy reads as objects"),
        ([[1.0, 2.0], [3.0]], DtypeError, "hidden is not an array"),
        (np.ma.masked_array(np.zeros((2, 5))), DtypeError, r"pass hidden\.filled"),
        (torch.zeros(2, 5, device="meta"), DtypeError, r"hidden is on meta.*hidden\.cpu\(\)"),
        (torch.zeros(2, 5).to_sparse(), DtypeError, r"to_dense"),
        (torch.zeros(2, 5, dtype=torch.float8_e4m3fn), DtypeError, r"no NumPy view.*hidden\.float\(\)"),
    ],
)
def test_unusable_hidden_is_refused(hidden: Any, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        arrays.hidden64(hidden, 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_hidden_is_refused_with_its_place(dtype: type, bad: float) -> None:
    hidden = np.zeros((3, 5), dtype)
    hidden[2, 1] = bad
    with pytest.raises(NonFiniteError, match=r"hidden\[2, 1\] is "):
        arrays.hidden64(hidden, 5)


# ---- ids ----


def test_ids_are_checked_against_the_vocabulary() -> None:
    assert arrays.ids64(np.array([[0, 6]], np.uint8), 1, 7).dtype == np.int64
    assert arrays.ids64(torch.tensor([[3], [4]]), 2, 7).tolist() == [[3], [4]]
    assert arrays.ids64([[], []], 2, 7).shape == (2, 0)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([[7], [0]], IdError, "ids holds 7; class ids run from 0 to 6"),
        ([[0], [-1]], IdError, "ids holds -1"),
        (np.array([[2**64 - 1], [0]], np.uint64), IdError, "18446744073709551615"),
        ([[0.0], [1.0]], DtypeError, "ids is float64; expected integer"),
        ([[True], [False]], DtypeError, r"np\.flatnonzero"),
        ([0, 1], ShapeError, r"shape \[2\]; expected \[2, m\]: pass ids\[:, None\]"),
        ([[0], [1], [2]], ShapeError, r"shape \[3, 1\]"),
    ],
)
def test_unusable_ids_are_refused(ids: Any, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        arrays.ids64(ids, 2, 7)


# ---- stored weights ----


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_weights_are_viewed_and_read_only(dtype: type, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((4, 3)).astype(dtype)
    stored = arrays.stored_matrix(weight)
    assert np.shares_memory(stored, weight)
    assert stored.dtype == dtype
    assert not stored.flags.writeable
    assert weight.flags.writeable
    assert np.shares_memory(arrays.bits(stored), weight)
    assert arrays.bits(stored).dtype == (np.float32 if dtype is np.float32 else np.uint16)


def test_a_torch_parameter_is_viewed() -> None:
    parameter = torch.nn.Linear(3, 4).bfloat16().weight
    stored = arrays.stored_matrix(parameter)
    assert stored.dtype == ml_dtypes.bfloat16
    assert stored.ctypes.data == parameter.data_ptr()


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (np.zeros((4, 3)), DtypeError, r"weight is float64; expected float32.*astype\(np\.float32\)"),
        (np.zeros((4, 3), np.uint16), DtypeError, "uint16"),
        (np.zeros((4, 3), ">f4"), DtypeError, ">f4"),
        (np.zeros(4, np.float32), ShapeError, r"expected \[vocab, dim\]"),
        (np.zeros((0, 3), np.float32), ShapeError, r"shape \[0, 3\]"),
        (np.zeros((3, 0), np.float32), ShapeError, r"shape \[3, 0\]"),
    ],
)
def test_unusable_weights_are_refused(weight: Any, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        arrays.stored_matrix(weight)


def test_bias_is_float32_and_finite() -> None:
    assert arrays.stored_bias(np.ones(4, np.float16), 4).dtype == np.float32
    with pytest.raises(NonFiniteError, match=r"bias\[1\] is -inf.*use exclude="):
        arrays.stored_bias(np.array([0, -np.inf], np.float32), 2)
    with pytest.raises(ShapeError, match=r"bias has shape \[2, 1\]; expected \[2\]"):
        arrays.stored_bias(np.zeros((2, 1), np.float32), 2)
    with pytest.raises(DtypeError, match="bias is float64"):
        arrays.stored_bias(np.zeros(2), 2)


# ---- answers ----


def test_answers_leave_as_they_came() -> None:
    answer = Outer(np.arange(3), np.array([True]), Inner(np.arange(4)[::-1], "full/portable"))
    assert arrays.answer_as(answer, arrays.WIDE) is answer
    tensors = arrays.answer_as(answer, arrays.Form("torch", False))
    assert isinstance(tensors, Outer)
    assert isinstance(tensors.cost, Inner)
    assert tensors.ids.dtype == torch.int64
    assert tensors.proved.dtype == torch.bool
    assert tensors.cost.rows.tolist() == [3, 2, 1, 0]
    assert tensors.cost.path == "full/portable"
    assert tensors.ids.data_ptr() == answer.ids.ctypes.data
    answer.ids.flags.writeable = False  # of which torch would warn
    assert arrays.answer_as(answer, arrays.Form("torch", False)).ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("given", [[2**63, 1], [[2**63], [1]], (0, 2**64 - 1), [np.uint64(2**63), np.int64(1)]])
def test_whole_numbers_of_a_list_stay_whole(given: Any) -> None:
    """NumPy makes float64 of a list that neither int64 nor uint64 was asked for, and 2^63 + 1 would be 2^63."""
    found = arrays.as_numpy(given, "ids")
    assert found.dtype == np.uint64 and found.tolist() == np.array(given, object).tolist()
    with pytest.raises(IdError, match=r"ids holds \d+; class ids run from 0 to 9"):
        arrays.checked_ids(found, 10, "ids")
    assert arrays.as_numpy([], "ids").size == 0 and arrays.as_numpy([1, 2.5], "ids").dtype == np.float64
    with pytest.raises(DtypeError, match="ids is a list that NumPy reads as objects"):
        arrays.as_numpy([2**63, -1], "ids")


def test_tensors_that_are_negated_or_conjugated_in_name_only_are_read() -> None:
    pairs = torch.complex(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3))
    assert (arrays.hidden64(torch._neg_view(torch.ones(2, 3)), 3) == -1).all()
    assert (arrays.hidden64(pairs.conj().imag, 3) == -1).all()


@pytest.mark.parametrize("shape", [(0,), (3, 5), (1 << 20, 3), (1 << 10, 1 << 11, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_large_arrays_are_arrays(shape: tuple[int, ...], dtype: type) -> None:
    array = large_empty(shape, dtype)
    assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable
    array[...] = 1
    assert array.sum(dtype=np.int64) == np.prod(shape)
    if array.nbytes >= LEAST_LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        assert array.ctypes.data % LARGE_PAGE == 0


def test_memory_that_is_not_there_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        large_empty((1 << 60,))
