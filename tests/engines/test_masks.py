"""class_masks.py: ids of any form become the same bytes, whoever marks them, and masked queries answer from what is left."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import logsumexp

import headlong as hl
from adversarial import CASES, build
from headlong.engines.class_masks import all_left, class_mask, classes_of
from headlong.engines.few_allowed_classes import ListedClasses, best_of, sample_of
from headlong.errors import DtypeError, IdError, InputError, NonFiniteError, ShapeError
from headlong.native import arguments
from headlong.question import Filters
from oracle import check_topk, check_within, truth


@pytest.fixture(params=["native", "numpy"])
def marks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the native module, and as where it was not built."""
    if request.param == "numpy":
        monkeypatch.setattr(arguments, "_marker", lambda: None)
    return str(request.param)


def test_masks_of_the_call_and_of_each_row(marks: str) -> None:
    def mask(allowed: Any = None, exclude: Any = None) -> Any:
        found = class_mask(allowed, exclude, 2, 5)
        return found if found is None else found.tolist()

    assert mask() is None
    assert mask(allowed=[1, 3, 3]) == [[0, 1, 0, 1, 0]]
    assert mask(exclude=torch.tensor([0])) == [[0, 1, 1, 1, 1]]
    assert mask(allowed=[[1], [2, 3]]) == [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
    assert mask(allowed=np.array([[4, -1], [-1, 1]])) == [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0]]
    assert mask(exclude=np.array([[4, -1], [-1, 1]])) == [[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]]
    assert mask(allowed=np.array([[1, -1], [2, 3]])) == [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
    assert mask(allowed=[1, 2], exclude=[[1], []]) == [[0, 0, 1, 0, 0], [0, 1, 1, 0, 0]]
    assert mask(allowed=[]) == [[0, 0, 0, 0, 0]]
    assert mask(exclude=(np.array([4]), np.array([], int))) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([5], IdError, "allowed holds 5"),
        ([-2], IdError, "allowed holds -2"),
        ([[1], [9]], IdError, r"allowed\[1\] holds 9"),
        ([[1]], ShapeError, "allowed has 1 rows; expected .* 2 rows"),
        (np.zeros((3, 1), int), ShapeError, r"shape \[3, 1\]"),
        (np.zeros((2, 1, 1), int), ShapeError, r"shape \[2, 1, 1\]"),
        (3, ShapeError, r"shape \[\]"),
        ([1.5], DtypeError, "float64"),
        ([True] * 5, DtypeError, "flatnonzero"),
        ("ab", InputError, "allowed"),
        (np.ones((3, 5), bool), ShapeError, r"allowed is booleans of shape \[3, 5\]; expected \[5\] or \[2, 5\]"),
        (np.ones(2, np.uint8), ShapeError, r"allowed is uint8, which is bits .* of shape \[2\]; expected \[1\] or \[2, 1\]"),
        (scipy.sparse.csr_array((3, 5)), ShapeError, r"allowed is sparse, of shape \[3, 5\]; expected \[2, 5\]"),
        ({5}, IdError, "class ids run from 0 to 4"),
    ],
)
def test_unusable_masks_are_refused(marks: str, ids: Any, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        class_mask(ids, None, 2, 5)


def forms(there: NDArray[np.bool_]) -> dict[str, Any]:
    """The same set of classes as callers may write it."""
    ids = np.flatnonzero(there)
    order = np.random.default_rng(len(ids)).permutation(len(ids))
    frozen = ids.copy()
    frozen.flags.writeable = False
    return {
        "list": ids.tolist(), "tuple": tuple(ids.tolist()), "int64": ids, "int32": ids.astype(np.int32),
        "int16": ids.astype(np.int16), "uint64": ids.astype(np.uint64), "big-endian": ids.astype(">i8"),
        "read-only": frozen, "backwards": ids[::-1], "any order": ids[order], "twice": np.concatenate([ids, ids[order]]),
        "every other": np.repeat(ids, 2)[::2], "padded": np.concatenate([[-1], ids, [-1, -1]]),
        "padded, int32": np.concatenate([[-1], ids, [-1]]).astype(np.int32), "torch int64": torch.from_numpy(ids),
        "torch int32": torch.from_numpy(ids).int(), "one row": ids[None, :],
        "one row, int32": ids[None, :].astype(np.int32), "rows": [ids.tolist()], "torch rows": [torch.from_numpy(ids)],
        "a set": set(ids.tolist()), "a row's set": [frozenset(ids.tolist())], "booleans": there,
        "a row of booleans": torch.from_numpy(there[None]), "packed bits": np.packbits(there),
        "a row of packed bits": np.packbits(there[None], axis=1), "CSR": scipy.sparse.csr_array(there[None]),
        "COO": scipy.sparse.coo_matrix(there[None]),
    }  # fmt: skip


SETS = st.one_of(
    st.tuples(st.integers(1, 40), st.just([])),
    st.integers(1, 200).flatmap(lambda v: st.tuples(st.just(v), st.lists(st.integers(0, v - 1), max_size=60))),
    st.integers(1, 200).flatmap(  # runs without a gap, which are marked as one
        lambda v: st.tuples(st.just(v), st.integers(0, v - 1).map(lambda first: list(range(first, v))))
    ),
)


@given(SETS)
def test_every_form_of_a_set_is_the_same_mask(asked: tuple[int, list[int]]) -> None:
    vocab, chosen = asked
    there = np.isin(np.arange(vocab), chosen)
    ids = np.flatnonzero(there)
    for marker in (arguments._marker(), None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arguments, "_marker", lambda marker=marker: marker)
            for (name, form), (_, rest) in zip(forms(there).items(), forms(~there).items(), strict=True):
                for mask in ((form, None), (None, rest), (form, rest)):
                    found = class_mask(*mask, 1, vocab)
                    assert found is not None and found.shape == (1, vocab) and found.dtype == np.uint8, name
                    assert found.flags.c_contiguous and (found[0] == there).all(), f"{marker}, {name}"
                    assert all_left(found) == [len(ids)]
    assert (classes_of(there.astype(np.uint8)) == ids).all()


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_an_id_out_of_range_is_found_wherever_it_is(marks: str, vocab: int, dtype: type) -> None:
    """Among runs too, before the first class and behind the last."""
    for wrong, run, place in itertools.product((-2, vocab, np.iinfo(dtype).min, np.iinfo(dtype).max), (0, 64, 130), (0, 1, -1)):
        plain = [i % vocab for i in range(run)]
        ids = np.array([*plain[:place], wrong, *plain[place:]] if place >= 0 else [*plain, wrong], dtype)
        with pytest.raises(IdError, match=f"exclude holds {wrong}; class ids run from 0 to {vocab - 1}"):
            class_mask(None, ids, 1, vocab)
    for start in (-70, -64, -63, -2, -1, vocab - 64, vocab - 63, vocab - 1, vocab):
        ids = np.arange(start, start + 64, dtype=dtype)
        if (ids >= -1).all() and (ids < vocab).all():
            assert (class_mask(ids, None, 1, vocab) == np.isin(np.arange(vocab), ids)).all()
            continue
        with pytest.raises(IdError, match="allowed holds"):
            class_mask(ids, None, 1, vocab)


@pytest.mark.parametrize("name", CASES)
def test_what_is_ruled_out_decides_nothing(name: str, level: str) -> None:
    """Without its best classes, a tenth of them, all but a few, and whole blocks, each layer answers as a smaller one would."""
    case = build(name, "float32")
    vocab, batch = case.layer.vocab, len(case.hidden)
    engine = hl.compile(case.layer, "codes", eps=0.1, delta=0.0)
    best = np.argsort(-truth(case.layer, case.hidden).logits, axis=1, kind="stable")
    draws = np.random.default_rng(5).random((batch, vocab))
    for there in (
        np.stack([~np.isin(np.arange(vocab), row[:3]) for row in best]),
        np.stack([np.isin(np.arange(vocab), row[:3]) for row in best]),
        draws < 0.9,
        np.broadcast_to(draws[0] < 0.5, (batch, vocab)),
        np.broadcast_to(np.arange(vocab) >= 64, (batch, vocab)),
    ):
        exact = truth(case.layer, case.hidden, there)
        allowed, exclude = [np.flatnonzero(row) for row in there], [np.flatnonzero(~row) for row in there]
        for mask in ({"allowed": allowed}, {"exclude": exclude}, {"allowed": allowed, "exclude": exclude}):
            found = engine.topk(case.hidden, min(5, vocab), **mask)
            assert found.proved.all()
            slack = case.layer.link.steepest * exact.rounding * 2 + (np.abs(np.nan_to_num(exact.lse)) + vocab) * 2.0**-50
            check_within(found.lse, exact.lse, found.error, slack)
            for b, reference in enumerate(exact.logits):
                check_topk(reference, found.ids[b], found.logits[b], 0.0 if case.exact else float(exact.rounding[b]))


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 0.5, 30.0])
def test_draws_from_few_allowed_classes_say_no_larger_error_than_roundings_make(
    temperature: float, level: str
) -> None:
    """What logits may be off is multiplied by 1 / T once: log-probabilities stay within what is promised at any temperature."""
    rng = np.random.default_rng(8)
    layer, hidden = hl.Layer(rng.standard_normal((400, 7)).astype(np.float32)), 80 * rng.standard_normal((20, 7))
    allowed = np.stack([rng.choice(400, 5, replace=False) for _ in hidden])
    for name in ("codes", "full"):
        drawn = hl.compile(layer, name).sample(hidden, 2, seed=4, temperature=temperature, allowed=allowed)
        exponents = np.take_along_axis(hidden @ layer.weight.T.astype(np.float64), allowed, 1) / temperature
        likely = np.take_along_axis(hidden @ layer.weight.T.astype(np.float64), drawn.ids, 1) / temperature
        off = np.abs(drawn.log_probs - (likely - logsumexp(exponents, axis=1)[:, None])).max(axis=1)
        rounding = 2.0**-48 * np.abs(exponents).max(axis=1)
        assert (off <= drawn.error + rounding).all()
        assert (drawn.error <= 1e-3).all()
        assert (hl.compile(layer, "full").sample(hidden, 2, seed=4, temperature=temperature).error <= 0.01).all()


def test_of_classes_whose_logits_are_no_numbers_none_is_drawn() -> None:
    """As of a damaged layer that was loaded with verify=False."""
    listed = ListedClasses(np.array([[1, 4]]), np.full((1, 2), np.nan), np.full((1, 2), np.nan))
    with pytest.raises(NonFiniteError, match="no logit of row 0 is a number"):
        sample_of(listed, Filters(1, 1.0, 0, 0.9, 0.0, 3, 0))


@pytest.mark.parametrize("kind", ["full", "codes"])
@pytest.mark.parametrize("eps", [None, np.inf])
def test_of_a_damaged_layer_no_class_that_is_not_there_is_drawn(tmp_path: Path, kind: str, eps: float | None) -> None:
    rng, file = np.random.default_rng(0), tmp_path / "head.safetensors"
    weight, hidden = rng.standard_normal((500, 64)).astype(np.float32), rng.standard_normal((2, 64)).astype(np.float32)
    hl.compile(hl.Layer(weight), kind).save(file)
    bytes_ = bytearray(file.read_bytes())
    for row in (3, 7):
        at = bytes_.find(weight[row].tobytes())
        bytes_[at : at + 4] = np.float32(np.nan).tobytes()
    file.write_bytes(bytes_)
    engine = hl.load(file, verify=False)
    with pytest.raises(NonFiniteError, match="no logit of row 0 is a number"):
        engine.sample(hidden, 2, eps=eps, allowed=[3, 7])
    assert (engine.sample(hidden, 2, eps=eps, allowed=[3, 7, 9]).ids == 9).all()


def test_equal_logits_of_listed_classes_come_by_id() -> None:
    logits = np.array([[1.0, 2.0, 2.0, 1.0]])
    found = best_of(ListedClasses(np.arange(4)[None], logits, logits), 3)
    assert found[1].tolist() == [[1, 2, 0]] and found[0].tolist() == [[2.0, 2.0, 1.0]]
