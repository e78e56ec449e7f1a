"""The contest on a device: its clock and graphs on a made-up GPU, its whole recording in Triton's interpreter."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.bench import device as bench_device
from headlong.bench import device_contestants, gpu_clock
from headlong.bench import run as bench
from headlong.bench.measure import Contestant, Progress, read_run
from headlong.bench.oracle import TrueDraws, Truth, true_log_probs
from headlong.bench.settings import Settings
from headlong.errors import OptionError
from headlong.heads import build_head
from headlong.report import device as report
from studies import papers
from studies.papers.svd_hierarchical import cuda as vlasova_cuda

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's inf - inf is NumPy's, which warns
ROOT = Path(__file__).resolve().parents[2]
TINY = Settings(k=2, batches=(1, 2), queries=2, rounds=1, calls=1)


def silent(_: str) -> Progress:
    return lambda done, total: None


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_tool", ROOT / "benchmarks" / "device.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Gpu:
    """What the clock and the graph ask of torch, on the CPU: a graph is the call made again, into the same tensors."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.replay: Any = None
        nothing = SimpleNamespace(wait_stream=lambda stream: None)
        self.cuda = SimpleNamespace(
            Event=self.event, Stream=lambda: nothing, current_stream=lambda: nothing, CUDAGraph=SimpleNamespace,
            stream=lambda stream: contextlib.nullcontext(), graph=self.capture,
        )  # fmt: skip

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.said.append("event"), synchronize=lambda: self.said.append("wait"), elapsed_time=lambda end: 2.5
        )

    @contextlib.contextmanager
    def capture(self, graph: Any) -> Any:
        self.said.append("capture")
        yield
        graph.replay = self.replay


def test_a_call_is_timed_between_events_behind_a_read_of_something_else() -> None:
    gpu = Gpu()
    clock = gpu_clock.EventClock(gpu, SimpleNamespace(sum=lambda: gpu.said.append("read")))
    assert clock(gpu.said.append, "call") == 0.0025
    assert gpu.said == ["read", "event", "call", "event", "wait"]


def test_a_graph_is_captured_once_for_each_batch_size() -> None:
    gpu = Gpu()
    doubled = torch.zeros(2, 3)

    def call(block: Any) -> Any:
        doubled[: len(block)] = 2 * block
        return doubled[: len(block)]

    replayed = gpu_clock.Replayed(gpu, call)
    gpu.replay = lambda: call(replayed.static)
    for rows in (torch.ones(1, 3), torch.full((1, 3), 4.0), torch.ones(2, 3)):
        assert replayed(rows).equal(2 * rows)
    assert gpu.said == ["capture"] * 2


class Rerun(gpu_clock.Replayed):
    """A graph that writes its next answer where its last one is, as a GPU's does."""

    def _capture(self, block: Any) -> None:
        super()._capture(block)
        self.graph.replay = self._again

    @torch.inference_mode()
    def _again(self) -> None:
        for old, new in zip(self.answer, self.call(self.static), strict=True):
            old.copy_(new)


def test_answers_of_a_graph_are_kept_before_the_next(interpreter: str, rng: np.random.Generator) -> None:
    gpu = Gpu()
    gpu.replay = lambda: None
    there = gpu_clock.place(interpreter)._replace(captured=lambda call: Rerun(gpu, call))
    layer, hidden = hl.Layer(rng.standard_normal((90, 8), np.float32)), rng.standard_normal((130, 8), np.float32)
    wish = Settings(k=2, batches=(1, 5), queries=130, rounds=1, calls=1)
    record = bench_device.run(layer, hidden, ["torch bf16", "torch bf16, graph"], wish, there, silent)
    plain, graph = record["answers"]
    assert plain["gap"] == graph["gap"] and len({str(row) for row in graph["gap"]}) > 100
    assert gpu.said and not record["failed"]


def test_places_that_are_not_there() -> None:
    with pytest.raises(OptionError, match="expected 'cuda'"):
        gpu_clock.place("tpu")
    assert torch.cuda.is_available() or "finds no GPU here" in gpu_clock.no_gpu()


def test_true_draws_are_those_of_the_cpu_engine(rng: np.random.Generator) -> None:
    weight, bias = rng.standard_normal((300, 24), np.float32), rng.standard_normal(300).astype(np.float32)
    layer, hidden = hl.Layer(weight, bias, hl.SoftCap(6.0)), rng.standard_normal((20, 24), np.float32)
    truth = TrueDraws(layer, hidden, 0.8, 5, device_contestants.STEPS, lambda done, total: None)
    engine = hl.compile(layer, "full")
    for step, filters in device_contestants.STEPS.items():
        whole = engine.sample(hidden, temperature=0.8, seed=5, **filters).ids[:, 0].tolist()
        assert truth.at(step, 20).tolist() == whole
        apart = [engine.sample(rows, temperature=0.8, seed=5, **filters).ids[:, 0].tolist() for rows in np.split(hidden, 5)]
        assert truth.at(step, 4).tolist() == np.concatenate(apart).tolist()
        assert truth.at(step, 4).tolist() != whole


def test_torch_draws_from_the_nucleus(rng: np.random.Generator) -> None:
    from headlong.bench.rivals.device import TorchLayer

    layer, hidden = hl.Layer(rng.standard_normal((50, 8), np.float32) * 3), rng.standard_normal((40, 8), np.float32)
    rival, rows = TorchLayer(layer, torch.from_numpy(np.array(layer.weight))), torch.from_numpy(hidden).bfloat16()
    ids, log_probs = rival.topk(3)(rows)
    truth = Truth.of(layer, hidden, 3)
    true = true_log_probs(layer, hidden, ids.numpy(), truth.lse)
    np.testing.assert_allclose(log_probs.float().numpy(), true, atol=0.3)
    best = rival.step(0.8, top_p=1e-6)(rows)[:, 0]
    assert best.equal(rival.logits(rows).argmax(-1)) and rival.step(0.8)(rows).shape == (40, 1)


def test_every_batch_size_of_every_layer_is_compiled(rng: np.random.Generator) -> None:
    from headlong.bench.rivals.device import TorchLayer

    seen: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(1)
        return graph

    for vocab in (50, 60):
        layer = hl.Layer(rng.standard_normal((vocab, 8), np.float32), None, hl.SoftCap(5.0))
        rival = TorchLayer(layer, torch.from_numpy(np.array(layer.weight)))
        calls = (rival.topk(3), rival.step(0.8), rival.step(0.8, 0.9))
        for call, batches in zip(calls, (range(1, 6), (1,), (1,)), strict=True):
            quick = gpu_clock.compiled(torch, call, backend)
            for batch in batches:
                quick(torch.zeros(batch, 8, dtype=torch.bfloat16))
    assert len(seen) == 2 * (5 + 1 + 1)


def test_what_a_proof_leaves_out_is_counted(rng: np.random.Generator) -> None:
    layer, hidden = hl.Layer(rng.standard_normal((60, 8), np.float32)), rng.standard_normal((6, 8), np.float32)
    engine = hl.compile(layer, "full")
    found = engine.topk(hidden, 3)

    def outside(**wrong: Any) -> int:
        one = Contestant("liar", lambda rows: found._replace(**wrong))
        (entry,) = bench.answered([one], layer, hidden, Settings(k=3), silent)["answers"]
        return int(entry["outside"])

    ids, log_probs = found.ids.copy(), found.log_probs.copy()
    ids[2, 2], log_probs[4, 0] = np.setdiff1d(np.arange(60), ids[2])[-1], log_probs[4, 0] + 0.02
    assert outside() == 0
    assert outside(log_probs=log_probs) == 1 and outside(ids=ids) == 1
    assert outside(log_probs=log_probs, ids=ids) == 2
    assert outside(log_probs=np.full_like(log_probs, math.nan)) == 6


def test_what_cannot_run_is_said(rng: np.random.Generator) -> None:
    def broken(rows: Any) -> Any:
        raise ValueError("no such kernel\nlong story")

    failed: list[dict[str, Any]] = []
    fine, lame = Contestant("fine", lambda rows: rows), Contestant("lame", broken)
    assert device_contestants.willing([fine, lame], np.zeros((4, 2)), failed) == [fine]
    assert failed == [{"contestant": "lame", "batch": 4, "error": "ValueError: no such kernel"}]


@pytest.mark.exhaustive
def test_a_recording_that_is_killed_goes_on(interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, ledger = tool(), tmp_path / "device.json"
    monkeypatch.setattr(run, "SUBJECTS", [run.Subject("tiny", 70, 8, 1.0)])
    monkeypatch.setattr(run, "SETTINGS", TINY)
    for module in (bench_device, device_contestants):
        monkeypatch.setattr(module, "STEPS", {"top-p 0.95": {"top_p": 0.95}})
        monkeypatch.setattr(module, "names", lambda: ["full, graph", "torch bf16, compiled, graph"])
    monkeypatch.setattr(run, "names", bench_device.names)
    monkeypatch.setattr(bench_device, "Schedule", functools.partial(bench.Schedule, settle=0))
    asked = [str(ledger), "--device", interpreter, "--only", "tiny"]
    at, ran = bench_device.Contest.at, []

    def killed(self: bench_device.Contest, batch: int) -> Any:
        ran.append(batch)
        if ran == [1, 2]:
            raise KeyboardInterrupt
        return at(self, batch)

    monkeypatch.setattr(bench_device.Contest, "at", killed)
    with pytest.raises(KeyboardInterrupt):
        run.main(asked)
    states = [row["state"] for row in json.loads(ledger.read_text())["rows"] if row.get("layer") == "tiny"]
    assert states == ["measured", "not run"]
    run.main(asked)
    run.main(asked)
    assert ran == [1, 2, 2]
    record = read_run(tmp_path / "bench-cuda-tiny.json")
    assert {entry["batch"] for name in ("runs", "steps", "ceilings") for entry in record[name]} == {1, 2}
    assert not record["failed"] and report.outside(record) == (0, 2 + 2 * (2 + 2))
    assert {entry["proved"] for entry in record["draws"]} == {2}
    table = report.ledger_table(json.loads(ledger.read_text()), {"bench-cuda-tiny.json": record}, ["top-p 0.95"])
    assert [row[:2] for row in table.rows if row[0] == "tiny"] == [("tiny", "1"), ("tiny", "2")]
    with pytest.raises(OptionError, match="there is no contestant 'ful' on a device; expected one of full, graph; "):
        bench_device.run(None, None, ["ful"], TINY, None, silent)  # type: ignore[arg-type]


def test_the_study_times_every_layer(interpreter: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlasova_cuda, "SCHEDULE", bench.Schedule(1, 0, 1, 0.0))
    monkeypatch.setattr(vlasova_cuda, "FLAT", ("torch bf16", "svd"))  # the others take the interpreter longer
    flat, tree = hl.Layer(rng.standard_normal((70, 8), np.float32)), build_head("tree", 8, 70, counts=np.ones(70)).to_layer()
    subject = vlasova_cuda.Subject([("full", flat), ("a tree", tree)], rng.standard_normal((1, 8)).astype(np.float32))
    found = vlasova_cuda.timed(subject, gpu_clock.place(interpreter), papers.Context(Path(), silent))
    assert set(found) == {"torch bf16", "svd", "a tree"}
    assert all(got["us"] == min(got["plain"], got["graph"]) > 0 for got in found.values())


def record_of(**medians: float) -> dict[str, Any]:
    times = {name: [value, value, 9.0] for name, value in medians.items()}
    runs: list[dict[str, Any]] = [{"contestant": name, "batch": 8, "seconds": found} for name, found in times.items()]
    runs[0]["outside"] = 1
    return {
        "environment": {"gpu": "a GPU", "date": "today"}, "layer": {"vocab": 1000, "dim": 10, "dtype": "float16"},
        "settings": {"queries": 5}, "runs": runs, "failed": [{"contestant": "x", "batch": 1, "error": "E: y"}],
        "steps": [{"step": "plain", **run} for run in runs],
        "ceilings": [{"contestant": "plain read", "batch": 8, "bytes": 1000.0, "seconds": [0.004]}],
        "answers": [{"contestant": "full", "outside": 1}, {"contestant": "torch bf16"}],
        "draws": [{"step": "plain", "contestant": "full", "queries": 5, "proved": 5, "wrong": 2}],
    }  # fmt: skip


def test_ratios_are_over_the_best_form_of_each() -> None:
    medians = {"full": 0.02, "full, graph": 0.01, "cascade, ids only": 0.004, "torch bf16": 0.03, "torch bf16, compiled": 0.02}
    record = record_of(**medians)
    found = report.ratios(record, 8)
    assert (found.full, found.bandwidth, found.cascade, found.auto) == (2.0, pytest.approx(1.0), 5.0, None)
    assert found.steps == {"plain": 5.0} and report.outside(record) == (4, 15)
    table = report.device_table("layer", record)
    assert table.rows[0] == ("layer", "8", "2.00×", "100%", "5.00×", "–", "5.00×", "4 of 15")
    assert "failed: x (E: y)" in table.caption


def test_a_ledger_says_what_was_not_run_and_why() -> None:
    rows = [{"layer": "a", "batch": batch, "state": "not run", "why": "no GPU", "command": "do it"} for batch in (1, 8)]
    study = {"study": "s", "state": "not run", "why": "no GPU", "command": "do it"}
    table = report.ledger_table({"rows": [*rows, study]}, {}, ["p"])
    assert table.rows == (("a", "1, 8", *["not run"] * 6),) and table.caption == "not run: no GPU; `do it`"


def test_the_committed_ledger_is_the_plan() -> None:
    run, path = tool(), ROOT / "results" / "device.json"
    places = ("layer", "vocab", "dim", "batch", "study", "head")

    def where(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in places)

    assert [where(row) for row in json.loads(path.read_text())["rows"]] == [where(row) for row in run.rows(path, "")]
    with pytest.raises(SystemExit):
        run.main([str(path), "--only", "nothing like it"])


def test_a_file_that_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tool()
    (tmp_path / "bench-cuda-wikitext2-gpt512.json").write_text("{bad")
    with pytest.raises(SystemExit) as ended:
        run.main([str(tmp_path / "device.json")])
    assert ended.value.code == 2 and "is not JSON" in capsys.readouterr().err
