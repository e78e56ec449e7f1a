"""Engines on a device: on the GPU where there is one, else the same kernels in Triton's interpreter, against the oracle."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import headlong as hl
from adversarial import CASES, Case, build
from devices import GPU, PLACE, tensor, torch
from headlong.engines.device.calls import call_of
from headlong.engines.device.engine import BEYOND
from headlong.engines.device.matrix import INTERPRETED, Tiles, unit
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import DtypeError, InputError, OptionError, ShapeError
from oracle import check_topk, check_within, truth
from structured_layers import made
from thinned import every

# a GPU's inf - inf is silent; the interpreter's is NumPy's, which warns
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("plain_interpreter")]


def layer_of(rng: np.random.Generator, vocab: int, dim: int, dtype: str = "float32", **more: Any) -> hl.Layer:
    weight = torch.from_numpy(rng.standard_normal((vocab, dim)) / np.sqrt(dim) * 4).to(getattr(torch, dtype))
    return hl.Layer(weight, rng.standard_normal(vocab).astype(np.float32), **more)


def check_answer(case: Case, answer: Any, live: Any = None) -> None:
    """Ids against float64 to the last tie, the normaliser within its stated error."""
    reference = truth(case.layer, case.hidden, live)
    tolerance = np.where(case.exact, 0.0, reference.rounding)
    for row, (ids, logits) in enumerate(zip(answer.ids.cpu().numpy(), answer.logits.cpu().numpy(), strict=True)):
        check_topk(reference.logits[row], ids, logits, float(tolerance[row]))
    slack = reference.rounding * case.layer.link.steepest + 1e-12
    if not np.isinf(answer.error.cpu().numpy()).all():  # where it was asked for
        check_within(answer.lse.cpu().numpy(), reference.lse, answer.error.cpu().numpy(), slack)
    assert answer.proved.all()


def same_draws(engine: Any, hidden: Any, *asked: Any, **wish: Any) -> Any:
    """The draws of an engine, all proved, which are those of the CPU's."""
    drawn, expected = (reader.sample(hidden, *asked, **wish) for reader in (engine, hl.compile(engine.layer, "full")))
    assert drawn.ids.tolist() == expected.ids.tolist() and drawn.proved.all()
    np.testing.assert_allclose(drawn.score, expected.score, rtol=1e-12)
    return drawn


@pytest.mark.parametrize("name", every(3, sorted(CASES)))
def test_hard_layers(name: str) -> None:
    dtype = ("float32", "float16", "bfloat16")[sorted(CASES).index(name) % 3]
    dtype = "float32" if name == "subnormal" else dtype  # the interpreter flushes bfloat16's subnormals
    case = build(name, dtype)
    engine, k = hl.compile(case.layer, device=PLACE), min(7, case.layer.vocab)
    answer = engine.topk(tensor(case.hidden), k)
    check_answer(case, answer)
    # whoever is beyond eps was read in float64, which says what it can
    assert ((answer.error <= 0.01) | (answer.cost.rows > case.layer.vocab)).all()
    check_answer(case, engine.topk(tensor(case.hidden), k, eps=math.inf))


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 3, 33])
def test_every_type_at_every_kind_of_product(dtype: str, batch: int, rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 65, dtype)
    engine = hl.compile(layer, device=PLACE)
    hidden = torch.from_numpy(rng.standard_normal((batch, 65))).to(getattr(torch, dtype))
    answer = engine.topk(hidden.to("cuda" if GPU else "cpu"), 3)
    check_answer(Case(layer, hidden.double().numpy()), answer)
    assert (answer.cost.rows == layer.vocab).all(), "a pass that knows nothing would be followed by another"


def test_more_candidates_than_there_is_room_for_are_read_fully(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = hl.Layer(np.ones((BEYOND + 90, 3), np.float32))
    engine = hl.compile(layer, device=PLACE)
    answer = engine.topk(tensor(np.ones((2, 3), np.float32)), 4, eps=math.inf)
    assert answer.ids.tolist() == [[0, 1, 2, 3]] * 2 and answer.cost.dense.all() and (answer.cost.rows > layer.vocab).all()
    check_answer(Case(layer, np.ones((2, 3), np.float32), True), answer)
    drawn = engine.sample(tensor(np.zeros((1, 3), np.float32)), seed=3)
    assert drawn.ids.item() == int(np.argmax(gumbels(3, 0, 0, np.arange(layer.vocab))))
    monkeypatch.setattr(type(engine), "_capturing", lambda self: True)
    assert not any(engine.topk(tensor(np.ones((2, 3), np.float32)), k, eps=math.inf).proved.any() for k in (1, 4))


@pytest.mark.parametrize("batch", [1, 6])
def test_a_normaliser_that_is_not_near_enough_is_summed_in_float64(batch: int, rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 40, "float16")
    hidden = rng.standard_normal((batch, 40))
    engine, reference = hl.compile(layer, device=PLACE), truth(layer, hidden)
    answer = engine.topk(tensor(hidden), 4, eps=1e-10)
    check_within(answer.lse.cpu().numpy(), reference.lse, answer.error.cpu().numpy(), 1e-12)
    assert (answer.error < 1e-10).all() and answer.cost.dense.all() and (answer.cost.rows == 2 * layer.vocab).all()
    exact = np.take_along_axis(reference.log_probs, answer.ids.cpu().numpy(), 1)
    np.testing.assert_allclose(answer.log_probs.cpu(), exact, atol=1e-11)


def test_all_classes_in_order() -> None:
    case = build("duplicates", "float32")
    answer = hl.compile(case.layer, device=PLACE).topk(tensor(case.hidden[:2]), case.layer.vocab)
    check_answer(case._replace(hidden=case.hidden[:2]), answer)


def test_samples_are_those_of_the_cpu(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 24, link=hl.SoftCap(6.0))
    hidden = rng.standard_normal((2, 24)).astype(np.float32)
    wish = {"temperature": 0.7, "seed": 2**63 + 5, "position": 2**40 + np.arange(2), "class0": 7}
    same_draws(hl.compile(layer, device=PLACE), hidden, 3, **wish)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}])
def test_filtered_samples_are_those_of_the_cpu(filters: dict[str, Any], rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 24)
    hidden = rng.standard_normal((2, 24)).astype(np.float32)
    for rows in (hidden, hidden[:1]):
        same_draws(hl.compile(layer, device=PLACE), rows, 2, 1.3, seed=8, **filters)


def test_a_nucleus_wider_than_the_first_candidates(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.engines.device.engine.NUCLEUS", 4)
    layer = layer_of(rng, 200, 9)
    hidden = (rng.standard_normal((2, 9)) * 0.1).astype(np.float32)
    engine = hl.compile(layer, "full", device=PLACE)
    assert same_draws(engine, hidden, 3, top_p=0.95, min_p=1e-9, seed=8).cost.dense.all()
    monkeypatch.setattr(type(engine), "_capturing", lambda self: True)
    assert not engine.sample(hidden, top_p=0.95, min_p=1e-9, seed=8).proved.any(), "what cannot be looked at is not proved"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of some hundred classes are drawn from as those that are too large to be ranked are."""
    monkeypatch.setattr("headlong.engines.device.engine.NUCLEUS", 4)
    monkeypatch.setattr("headlong.engines.device.matrix.INTERPRETED", INTERPRETED._replace(classes=16))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("link", [hl.Affine(0.7, -3.0), hl.SoftCap(5.0), hl.Table(-4.0, 0.5, np.arange(0.1, 9) ** 2, 0.2, 9.0)])
def test_draws_from_a_nucleus_are_those_of_the_cpu(
    link: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ends of a scan alone: masked, and in a graph, too."""
    layer = layer_of(rng, 1100 if GPU else 300, 9, link=link)
    hidden, live = (rng.standard_normal((4, 9)) * 0.3).astype(np.float32), rng.random((4, layer.vocab)) < 0.5
    engine = hl.compile(layer, device=PLACE)
    for asked in ({"top_p": 0.7}, {"top_p": 0.95, "allowed": live}):
        drawn = same_draws(engine, hidden, 3, 1.7, seed=8, **asked)
        assert (drawn.cost.rows == 3 * layer.vocab).all(), "the three scans of a row, and nothing was read again"
    monkeypatch.setattr(type(engine), "_capturing", lambda self: True)
    same_draws(engine, hidden, 3, 1.7, seed=8, top_p=0.7)
    check_answer(Case(layer, hidden), engine.topk(tensor(hidden), 3, eps=math.inf))  # of so many tiles that they set the bar


@pytest.mark.usefixtures("large")
def test_a_nucleus_that_ends_among_equal_classes(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of a scan settle nothing. Float64 does, where the edge is not between two classes; there, all in order."""
    layer = hl.Layer(np.ones((128, 3), np.float32))
    engine, hidden = hl.compile(layer, "full", device=PLACE), rng.standard_normal((3, 3)).astype(np.float32)
    for top_p in (0.7, 0.5):
        monkeypatch.setattr(type(engine), "_capturing", lambda self: False)
        expected = same_draws(engine, hidden, 4, seed=8, top_p=top_p)
        assert (expected.ids < 128 * top_p).all() and expected.cost.dense.all()
        monkeypatch.setattr(type(engine), "_capturing", lambda self: True)
        drawn = engine.sample(hidden, 4, seed=8, top_p=top_p)
        assert drawn.proved.any() and (drawn.ids == expected.ids)[drawn.proved].all()
    assert engine.topk(hidden, 2).ids.tolist() == [[0, 1]] * 3


@pytest.mark.usefixtures("large")
def test_more_tiles_than_are_merged_at_a_time(rng: np.random.Generator) -> None:
    weight, hidden = rng.standard_normal((66000 if GPU else 16500, 2)).astype(np.float32), np.array([[1, 0]], np.float32)
    weight[[5, -3, -1], 0] = 9, 10, 11
    layer = hl.Layer(weight)
    check_answer(Case(layer, hidden), hl.compile(layer, "full", device=PLACE).topk(tensor(hidden), 3))


def test_masks_given_ids_and_the_normaliser(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 24)
    hidden = rng.standard_normal((2, 24)).astype(np.float32)
    engine = hl.compile(layer, device=PLACE)
    live = np.zeros((2, 300), bool)
    live[0, [3, 5, 299]], live[1, 7] = True, True
    answer = engine.topk(tensor(hidden), 4, allowed=[[3, 5, 299], [7]])
    check_answer(Case(layer, hidden), answer, live)
    same_draws(engine, hidden, 3, seed=1, allowed=[[3, 5, 299], [7]])
    reference = truth(layer, hidden)
    scored = engine.log_prob(tensor(hidden), tensor(np.array([[0, 299], [5, 5]])))
    expected = np.take_along_axis(reference.log_probs, np.array([[0, 299], [5, 5]]), 1)
    check_within(scored.log_probs.cpu().numpy(), expected, scored.error.cpu().numpy()[:, None], 1e-12)
    assert scored.log_probs.dtype == torch.float32
    few, ids = {"allowed": [[3, 5, 299], [7]]}, np.array([[0, 299], [5, 7]])
    among, there = engine.log_prob(tensor(hidden), tensor(ids), **few), hl.compile(layer, "full").log_prob(hidden, ids, **few)
    np.testing.assert_allclose(among.log_probs.cpu(), there.log_probs, atol=1e-5)
    np.testing.assert_allclose(among.logits.cpu(), there.logits, rtol=1e-12)
    tight = engine.lse(tensor(hidden.astype(np.float64)), eps=1e-9)
    check_within(tight.lse.cpu().numpy(), reference.lse, tight.error.cpu().numpy(), 1e-12)
    assert tight.cost.dense.all() and (tight.error < 1e-9).all()
    assert isinstance(engine.lse(hidden).lse, np.ndarray)


def test_rows_that_are_no_numbers_or_very_long(rng: np.random.Generator) -> None:
    """More classes than there is room for: a row that is no number is not read again, a very long one is."""
    weight = rng.standard_normal((BEYOND + 80, 4)).astype(np.float32)
    weight[7] = 0.0
    layer = hl.Layer(weight, rng.standard_normal(len(weight)).astype(np.float32))
    hidden = np.array([[0, np.nan, 0, 0], [3e38, 3e38, 3e38, 3e38], [0, 0, 0, 0]], np.float32)
    engine = hl.compile(layer, eps=math.inf, device=PLACE)
    answer = engine.topk(tensor(hidden), 2)
    assert answer.proved.tolist() == [False, True, True] and torch.isnan(answer.lse[0]) and torch.isinf(answer.error[0])
    assert answer.ids[0].tolist() == [-1, -1] and torch.isnan(answer.log_probs[0]).all()
    assert answer.cost.rows[0] <= layer.vocab < answer.cost.rows[1]
    reference = truth(layer, hidden[1:])
    for row in (1, 2):
        expected = np.argsort(-reference.logits[row - 1], kind="stable")[:2]
        assert answer.ids[row].tolist() == expected.tolist()
    drawn = engine.sample(tensor(hidden), seed=1)
    assert drawn.ids[0].item() == -1 and drawn.proved[:, 0].tolist() == [False, True, True]
    assert engine.topk(tensor(hidden[:0]), 2).ids.shape == (0, 2)


def test_what_is_refused(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 70, 8)
    engine = hl.compile(layer, device=PLACE)
    assert "DeviceEngine(full: vocab=70, dim=8" in repr(engine) and engine.reason
    with pytest.raises(ShapeError, match=r"expected \[batch, 8\]"):
        engine.topk(tensor(np.zeros((2, 9), np.float32)))
    with pytest.raises(DtypeError, match="hidden is torch.int64"):
        engine.topk(tensor(np.zeros((2, 8), np.int64)))
    with pytest.raises(OptionError, match="device is 'tpu'; expected 'cuda'"):
        hl.compile(layer, device="tpu")
    with pytest.raises(OptionError, match="method is 'svd'; on a device choose from auto, full$"):
        hl.compile(layer, "svd", device=PLACE)
    with pytest.raises(OptionError, match="full on a device has no option 'blocks'; it has none"):
        hl.compile(layer, "full", device=PLACE, blocks=True)
    with pytest.raises(OptionError, match="engines there learn from no vectors, leave it out"):
        hl.compile(layer, device=PLACE, calibration=np.ones((9, 8)))
    with pytest.raises(OptionError, match="a TreeLayer is read on the CPU .* on a device there is full,"):
        hl.compile(made("tree", 8, 70).layer, device=PLACE)
    with pytest.raises(InputError, match="no class is left"):
        engine.sample(tensor(np.zeros((1, 8), np.float32)), allowed=[[]])
    with pytest.raises(InputError, match="weight row 3 holds NaN"):
        hl.compile(hl.Layer(np.where(np.arange(70)[:, None] == 3, np.nan, layer.weight)), device=PLACE)
    if not GPU:
        with pytest.raises(OptionError, match="finds no GPU here; leave device out"):
            hl.compile(layer, device="cuda")


def test_the_interpreter_is_asked_for_by_name() -> None:
    code = "import headlong as hl, numpy as np; hl.compile(hl.Layer(np.eye(3, dtype=np.float32)), device='interpreter')"
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, check=False, timeout=120)
    assert "needs TRITON_INTERPRET=1" in result.stderr


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_upper_ends_are_above_the_logits_and_near_them(dtype: str, batch: int, rng: np.random.Generator) -> None:
    layer = layer_of(rng, 90, 130, dtype)
    matrix = hl.compile(layer, device=PLACE).matrix
    call, _ = call_of(matrix, tensor(rng.standard_normal((batch, 130)) * 30))
    exact = truth(layer, call.x.double().cpu().numpy())
    length, size = call.length.cpu().numpy()[:, None], np.linalg.norm(layer.weight.astype(np.float64), axis=1)
    off = 2.2 * unit(130, 64, batch > 1, batch > 1) * (size * length + np.abs(layer.bias))
    rounding = off + np.abs(exact.logits) * 2.0**-20  # of an upper end in float32
    high = matrix.scan(call).high.cpu().double().numpy()
    assert (high >= exact.logits - exact.rounding[:, None]).all()
    assert (high <= exact.logits + rounding).all()


def test_a_radius_that_is_too_small_would_be_noticed(rng: np.random.Generator) -> None:
    """What the tests above rest on: radii below 0 lose classes."""
    layer, hidden = layer_of(rng, 900, 16), rng.standard_normal((32, 16)).astype(np.float32)
    engine = hl.compile(layer, eps=math.inf, device=PLACE)
    check_answer(Case(layer, hidden), engine.topk(tensor(hidden), 5))
    for rows in engine.matrix.stored.values():
        rows.slack.fill_(-1.0)
    with pytest.raises(AssertionError):
        check_answer(Case(layer, hidden), engine.topk(tensor(hidden), 5))


def chopped(values: Any) -> Any:
    """float64 cut off, not rounded, to the 24 bits of float32: what a matrix unit may do to a sum."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(mantissa * 2.0**24) * 2.0**-24, exponent)


@pytest.mark.parametrize("product", [False, True])
def test_the_unit_covers_the_arithmetic_of_a_gpu(product: bool, rng: np.random.Generator) -> None:
    """One accumulator for each block, terms one by one in the worst of some orders, cut off where a matrix unit cuts off; or,
    for one query, one for each place in a block."""
    cut = chopped if product else lambda values: np.asarray(values, np.float64).astype(np.float32).astype(np.float64)
    columns = Tiles().columns
    for dim in (1, 64, 65, 700, 2048):
        weight = np.abs(rng.standard_normal((40, dim))).astype(np.float16).astype(np.float64)  # nothing cancels
        hidden = np.exp(rng.uniform(-1, 1, dim)) * (1 + rng.uniform(0, 2.0**-24, dim))  # x is rounded on its way, too
        x, bias, total = hidden.astype(np.float32), rng.standard_normal(40).astype(np.float32), np.zeros(40)
        for start in range(columns if not product else -(-dim // columns)):
            part = slice(start * columns, (start + 1) * columns) if product else slice(start, None, columns)
            terms, sums = np.sort(weight[:, part] * x[part], axis=1)[:, ::-1], np.zeros(40)
            for column in range(terms.shape[1]):
                sums = cut(sums + (terms[:, column] if product else cut(terms[:, column])))
            total = cut(total + sums)
        off = np.abs(cut(total + bias) - (weight @ hidden + bias))
        size = unit(dim, columns, product) * (np.linalg.norm(weight, axis=1) * np.linalg.norm(hidden) + np.abs(bias))
        assert (off <= size).all()
        assert dim < 64 or (off > size / 1000).any(), "a bound that could not fail"
