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
from headlong.engines.device.full_launches import MOST
from headlong.engines.device.reader import CAPACITY, unit
from headlong.engines.device.tile_sizes import TILE_SIZES
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import DtypeError, InputError, OptionError, ShapeError
from oracle import check_draw, check_topk, check_within, truth
from thinned import every, left_out

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
    error = answer.error.cpu().numpy()
    check_within(answer.lse.cpu().numpy(), reference.lse, error, reference.rounding * case.layer.link.steepest + 1e-12)
    finished = answer.cost.rows.cpu().numpy() > case.layer.vocab  # in float64, which says what it can
    assert ((error <= 0.01) | finished).all(), f"error {error.max():.3g} is more than was promised"
    assert answer.proved.all()


@pytest.mark.parametrize("name", every(3, sorted(CASES)))
def test_full_on_hard_layers(name: str) -> None:
    dtype = ("float32", "float16", "bfloat16")[sorted(CASES).index(name) % 3]
    case = build(name, dtype)
    engine = hl.compile(case.layer, "full", device=PLACE)
    check_answer(case, engine.topk(tensor(case.hidden), min(7, case.layer.vocab)))


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 17])
def test_full_in_every_type_and_at_both_kinds_of_product(dtype: str, batch: int, rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 65, dtype)
    engine = hl.compile(layer, "full", device=PLACE)
    hidden = torch.from_numpy(rng.standard_normal((batch, 65))).to(getattr(torch, dtype))
    case = Case(layer, hidden.double().numpy())
    answer = engine.topk(hidden.to("cuda" if GPU else "cpu"), 3)
    check_answer(case, answer)
    assert (answer.cost.rows == layer.vocab).all(), "a look that knows nothing would be finished densely"


def test_more_ties_than_there_is_room_for_are_settled_densely() -> None:
    layer = hl.Layer(np.ones((2 * CAPACITY + 90, 3), np.float32))
    engine = hl.compile(layer, "full", device=PLACE)
    answer = engine.topk(tensor(np.ones((2, 3), np.float32)), 4)
    assert answer.ids.tolist() == [[0, 1, 2, 3]] * 2 and answer.cost.rows.tolist() == [2 * layer.vocab] * 2
    check_answer(Case(layer, np.ones((2, 3), np.float32), True), answer)
    drawn = engine.sample(tensor(np.zeros((1, 3), np.float32)), seed=3)
    assert drawn.ids.item() == int(np.argmax(gumbels(3, 0, 0, np.arange(layer.vocab))))


def test_many_classes_are_answered_in_three_launches_and_more_in_others(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 2100, 9, "float16", link=hl.SoftCap(8.0))
    hidden = rng.standard_normal((2, 9)).astype(np.float32)
    engine = hl.compile(layer, "full", device=PLACE)
    for k in (MOST, MOST + 1):
        check_answer(Case(layer, hidden), engine.topk(tensor(hidden), k))


@pytest.mark.parametrize("batch", [1, 6])
def test_a_normaliser_that_is_not_near_enough_is_summed_in_float64(batch: int, rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 40, "float16")
    hidden = rng.standard_normal((batch, 40)).astype(np.float32)
    engine, reference = hl.compile(layer, "full", device=PLACE), truth(layer, hidden)
    answer = engine.topk(tensor(hidden), 4, eps=1e-10)
    check_within(answer.lse.cpu().numpy(), reference.lse, answer.error.cpu().numpy(), 1e-12)
    assert (answer.error < 1e-10).all() and (answer.cost.rows == 2 * layer.vocab).all()
    exact = np.take_along_axis(reference.log_probs, answer.ids.cpu().numpy(), 1)
    np.testing.assert_allclose(answer.log_probs.cpu(), exact, atol=1e-11)


def test_all_classes_in_order(rng: np.random.Generator) -> None:
    case = build("duplicates", "float32")
    engine = hl.compile(case.layer, "full", device=PLACE)
    answer = engine.topk(tensor(case.hidden[:2]), case.layer.vocab)
    check_answer(case._replace(hidden=case.hidden[:2]), answer)


def test_samples_are_those_of_the_cpu(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 24, link=hl.SoftCap(6.0))
    hidden = rng.standard_normal((2, 24)).astype(np.float32)
    engine, cpu = hl.compile(layer, "full", device=PLACE), hl.compile(layer, "full")
    wish = {"n": 3, "temperature": 0.7, "seed": 2**63 + 5, "row0": 2**40}
    drawn, expected = engine.sample(tensor(hidden), **wish), cpu.sample(hidden, **wish)
    assert drawn.ids.tolist() == expected.ids.tolist() and drawn.proved.all()
    np.testing.assert_allclose(drawn.score.cpu(), expected.score, rtol=1e-12)
    reference = truth(layer, hidden)
    for row in range(2):
        for n in range(3):
            noise = gumbels(2**63 + 5, 2**40 + row, n, np.arange(300))
            exponents = reference.exponents[row] / 0.7
            winner, score = int(drawn.ids[row, n]), float(drawn.score[row, n])
            check_draw(reference.logits[row], exponents, noise, (0, 1.0, 0.0), winner, score)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}])
def test_filtered_samples_are_those_of_the_cpu(filters: dict[str, Any], rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 24)
    hidden = rng.standard_normal((2, 24)).astype(np.float32)
    engine, cpu = hl.compile(layer, "full", device=PLACE), hl.compile(layer, "full")
    drawn, expected = (reader.sample(hidden, 2, 1.3, seed=8, **filters) for reader in (engine, cpu))
    assert drawn.ids.tolist() == expected.ids.tolist() and drawn.proved.all()


def test_a_nucleus_wider_than_the_first_look(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.engines.device.engine.NUCLEUS", 4)
    layer = layer_of(rng, 200, 9)
    hidden = (rng.standard_normal((2, 9)) * 0.1).astype(np.float32)
    engine, cpu = hl.compile(layer, "full", device=PLACE), hl.compile(layer, "full")
    drawn, expected = (reader.sample(hidden, top_p=0.95, seed=8) for reader in (engine, cpu))
    assert drawn.ids.tolist() == expected.ids.tolist() and drawn.proved.all() and drawn.cost.dense.all()


def test_masks_given_ids_and_the_normaliser(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 300, 24)
    hidden = rng.standard_normal((2, 24)).astype(np.float32)
    engine = hl.compile(layer, "full", device=PLACE)
    live = np.zeros((2, 300), bool)
    live[0, [3, 5, 299]], live[1, 7] = True, True
    answer = engine.topk(tensor(hidden), 4, allowed=[[3, 5, 299], [7]])
    check_answer(Case(layer, hidden), answer, live)
    reference = truth(layer, hidden)
    scored = engine.log_prob(tensor(hidden), tensor(np.array([[0, 299], [5, 5]])))
    expected = np.take_along_axis(reference.log_probs, np.array([[0, 299], [5, 5]]), 1)
    check_within(scored.log_probs.cpu().numpy(), expected, scored.error.cpu().numpy()[:, None], 1e-12)
    tight = engine.lse(tensor(hidden), eps=1e-9)
    check_within(tight.lse.cpu().numpy(), reference.lse, tight.error.cpu().numpy(), 1e-12)
    assert tight.cost.dense.all() and (tight.error < 1e-9).all()
    assert isinstance(engine.lse(hidden).lse, np.ndarray)


def test_rows_that_are_no_numbers_prove_nothing(rng: np.random.Generator) -> None:
    layer = layer_of(rng, 70, 8)
    hidden = rng.standard_normal((2, 8)).astype(np.float32)
    hidden[1, 3] = np.nan
    engine = hl.compile(layer, "full", device=PLACE)
    answer = engine.topk(tensor(hidden), 2)
    assert answer.proved.tolist() == [True, False] and answer.ids[1].tolist() == [-1, -1]
    assert torch.isnan(answer.lse[1]) and torch.isinf(answer.error[1]) and torch.isfinite(answer.log_probs[0]).all()
    assert engine.topk(tensor(hidden[:0]), 2).ids.shape == (0, 2)


@pytest.mark.parametrize("method", ["full", "cascade"])
def test_what_is_no_number_or_very_long_among_many_classes(method: str, rng: np.random.Generator) -> None:
    """More classes than there is room for candidates: a row that is no number is not finished densely, a very long one is."""
    weight = rng.standard_normal((CAPACITY + 80, 4)).astype(np.float32)
    weight[7] = 0.0
    layer = hl.Layer(weight, rng.standard_normal(len(weight)).astype(np.float32))
    hidden = np.array([[0, np.nan, 0, 0], [3e38, 3e38, 3e38, 3e38], [0, 0, 0, 0]], np.float32)
    engine = hl.compile(layer, method, eps=math.inf, device=PLACE)
    answer = engine.topk(tensor(hidden), 2)
    assert answer.proved.tolist() == [False, True, True] and torch.isnan(answer.lse[0]) and torch.isinf(answer.error[0])
    assert answer.ids[0].tolist() == [-1, -1] and torch.isnan(answer.log_probs[0]).all()
    reference = truth(layer, hidden[1:])
    for row in (1, 2):
        expected = np.argsort(-reference.logits[row - 1], kind="stable")[:2]
        assert answer.ids[row].tolist() == expected.tolist()


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
    with pytest.raises(OptionError, match="on a device choose 'full', 'svd', or"):
        hl.compile(layer, "adaptive", device=PLACE)
    with pytest.raises(InputError, match="no class is left"):
        engine.sample(tensor(np.zeros((1, 8), np.float32)), allowed=[[]])
    if not GPU:
        with pytest.raises(OptionError, match="finds no GPU here; leave device out"):
            hl.compile(layer, device="cuda")


def test_the_interpreter_is_asked_for_by_name() -> None:
    code = "import headlong as hl, numpy as np; hl.compile(hl.Layer(np.eye(3, dtype=np.float32)), device='interpreter')"
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, check=False, timeout=120)
    assert "needs TRITON_INTERPRET=1" in result.stderr


@pytest.mark.parametrize("name", every(2, sorted(CASES)[::2]))
def test_cascade_on_hard_layers(name: str) -> None:
    # (the interpreter flushes bfloat16's subnormals)
    dtype = ("float32", "float16", "bfloat16")[sorted(CASES).index(name) // 2 % 3]
    case = build(name, "float32" if name == "subnormal" else dtype)
    engine = hl.compile(case.layer, "cascade", device=PLACE)
    answer = engine.topk(tensor(case.hidden), min(3, case.layer.vocab), eps=math.inf)
    reference = truth(case.layer, case.hidden)
    for row in range(len(case.hidden)):
        tolerance = 0.0 if case.exact else float(reference.rounding[row])
        check_topk(reference.logits[row], answer.ids[row].cpu().numpy(), answer.logits[row].cpu().numpy(), tolerance)
    slack = reference.rounding * case.layer.link.steepest + 1e-12
    check_within(answer.lse.cpu().numpy(), reference.lse, answer.error.cpu().numpy(), slack)
    assert answer.proved.all()


def decaying(rng: np.random.Generator, **more: Any) -> tuple[hl.Layer, Any, Any]:
    """A layer whose logits live in a few directions, calibration vectors, and five queries."""
    spectrum = np.arange(1, 49) ** -1.5
    weight, bias = (rng.standard_normal((600, 48)) * 6).astype(np.float16), rng.standard_normal(600).astype(np.float32)
    layer = hl.Layer(weight, bias, **more)
    return layer, (rng.standard_normal((256, 48)) * spectrum).astype(np.float32), (rng.standard_normal((5, 48)) * spectrum)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_prefix_leaves_few_rows(batch: int, rng: np.random.Generator) -> None:
    layer, calibration, hidden = decaying(rng, link=hl.SoftCap(20.0))
    options = {"calibration": calibration, "width": 16, "eps": math.inf}
    engine, cpu = (hl.compile(layer, "cascade", **options, **more) for more in ({"device": PLACE}, {}))
    answer, expected = engine.topk(tensor(hidden[:batch]), 5), cpu.topk(hidden[:batch], 5)
    assert answer.ids.tolist() == expected.ids.tolist() and answer.proved.all()
    assert (answer.cost.rows < layer.vocab // 4).all() and not answer.cost.dense.any()
    reference = truth(layer, hidden[:batch])
    check_within(answer.lse.cpu().numpy(), reference.lse, answer.error.cpu().numpy(), reference.rounding + 1e-12)
    assert torch.isfinite(answer.error).all()
    kept = engine.topk(tensor(hidden[:batch]), 5, eps=1e-6)
    assert (kept.error <= 1e-6).all() and kept.cost.dense.all()
    check_within(kept.lse.cpu().numpy(), reference.lse, kept.error.cpu().numpy(), 1e-12)


def test_the_cascade_draws_the_samples_of_the_cpu(rng: np.random.Generator) -> None:
    layer, calibration, hidden = decaying(rng)
    engine, cpu = (hl.compile(layer, "cascade", calibration=calibration, width=16, **more) for more in ({"device": PLACE}, {}))
    drawn, expected = (reader.sample(hidden[:2], 2, 0.8, seed=11) for reader in (engine, cpu))
    assert drawn.ids.tolist() == expected.ids.tolist() and drawn.proved.all() and not drawn.cost.dense.any()
    np.testing.assert_allclose(drawn.score, expected.score, rtol=1e-12)


def test_a_radius_that_is_too_small_would_be_seen(rng: np.random.Generator) -> None:
    """What the tests above rest on: without its slack the cascade loses rows or states a normaliser that is wrong."""
    layer, calibration, hidden = decaying(rng)
    engine = hl.compile(layer, "cascade", calibration=calibration, width=16, eps=math.inf, device=PLACE)
    for codes in engine.reader.levels:
        codes.slack.zero_()
    answer = engine.topk(tensor(hidden), 5)
    with pytest.raises(AssertionError):
        check_within(answer.lse.cpu().numpy(), truth(layer, hidden).lse, answer.error.cpu().numpy(), 1e-12)


def chopped(values: Any) -> Any:
    """float64 cut off, not rounded, to the 24 bits of float32: what a matrix unit may do to a sum."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(mantissa * 2.0**24) * 2.0**-24, exponent)


@pytest.mark.parametrize("product", [False, True])
def test_the_unit_covers_the_arithmetic_of_a_gpu(product: bool, rng: np.random.Generator) -> None:
    """One accumulator for each block, terms one by one in the worst of some orders, cut off where a matrix unit cuts off."""
    cut = chopped if product else lambda values: np.asarray(values, np.float64).astype(np.float32).astype(np.float64)
    for dim in (1, 64, 65, 700, 2048):
        weight = np.abs(rng.standard_normal((40, dim))).astype(np.float16).astype(np.float64)  # nothing cancels
        hidden = np.exp(rng.uniform(-1, 1, dim)) * (1 + rng.uniform(0, 2.0**-24, dim))  # x is rounded on its way, too
        x, bias, total = hidden.astype(np.float32), rng.standard_normal(40).astype(np.float32), np.zeros(40)
        for start in range(0, dim, TILE_SIZES.columns):
            terms = np.sort(weight[:, start : start + TILE_SIZES.columns] * x[start : start + TILE_SIZES.columns], axis=1)[
                :, ::-1
            ]
            part = np.zeros(40)
            for column in range(terms.shape[1]):
                part = cut(part + (terms[:, column] if product else cut(terms[:, column])))
            total = cut(total + part)
        total = cut(total + bias)
        off = np.abs(total - (weight @ hidden + bias))
        size = np.linalg.norm(weight, axis=1) * np.linalg.norm(hidden) + np.abs(bias)
        assert (off <= unit(dim, TILE_SIZES.columns, product) * size).all()
        assert dim < 64 or (off > unit(dim, TILE_SIZES.columns, product) * size / 1000).any(), "a bound that could not fail"


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_upper_ends_are_above_the_logits_and_near_them(dtype: str, batch: int, rng: np.random.Generator) -> None:
    layer = layer_of(rng, 90, 130, dtype)
    engine = hl.compile(layer, "full", device=PLACE)
    call, _ = engine._call(tensor(rng.standard_normal((batch, 130)) * 30))
    high, exact = engine.reader.look(call, 1).high.cpu().double().numpy(), truth(layer, call.hidden.cpu().numpy())
    size = np.linalg.norm(layer.weight.astype(np.float64), axis=1) * call.length.cpu().numpy()[:, None] + np.abs(layer.bias)
    assert (high >= exact.logits - exact.rounding[:, None]).all()
    assert (high <= exact.logits + 2.1 * unit(130, 64, batch > 4) * size).all()


def test_auto_looks_first_where_ids_alone_are_promised(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    layer, calibration, _ = decaying(rng)
    assert hl.compile(layer, calibration=calibration, device=PLACE).name == "full"
    monkeypatch.setattr("headlong.engines.device.method_choice.WORTH_A_LOOK", 1)
    assert hl.compile(layer, calibration=calibration, eps=math.inf, device=PLACE).name == "cascade"


@pytest.mark.parametrize("bits", [3, left_out(1), left_out(4)])
def test_codes_of_few_bits_are_widened(bits: int, rng: np.random.Generator) -> None:
    layer, _, hidden = decaying(rng)
    engine, cpu = (hl.compile(layer, "cascade", bits=bits, eps=math.inf, **more) for more in ({"device": PLACE}, {}))
    for batch in (1, 5):
        answer, expected = engine.topk(tensor(hidden[:batch]), 5), cpu.topk(hidden[:batch], 5)
        assert answer.ids.tolist() == expected.ids.tolist() and answer.proved.all()
        reference = truth(layer, hidden[:batch])
        check_within(answer.lse.cpu().numpy(), reference.lse, answer.error.cpu().numpy(), reference.rounding + 1e-12)
