"""``headlong bench --device``: engines and PyTorch in a GPU's memory; the record of :mod:`headlong.bench` and more.

::

    record = {environment, layer, settings, truth, answers, runs,          as on the CPU
              steps: one entry per sampling step, contestant and batch, draws: what the steps drew, beside float64,
              ceilings: plain reads and copies timed among them, failed: what could not run here, and why}

Every contestant runs as it is and as a CUDA graph, PyTorch also compiled. All see the same queries, rounded to the layer's
type first. A batch that is done is written at once, and is not timed again by a run that goes on with the file.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import headlong
from headlong import bench, measure
from headlong.bench import Entry, Settings, Stage
from headlong.clocks import Call, Place
from headlong.draws import exponents, true_draws
from headlong.engines.device import tensor_of
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.measure import Contestant, Progress, Schedule
from headlong.rivals import Found
from headlong.rivals.device import TorchLayer

TEMPERATURE = 0.8
STEPS: dict[str, dict[str, float]] = {"a draw": {}, "top-p 0.95": {"top_p": 0.95}}
"""Sampling steps at that temperature: the filters of each."""
STEPPING = ("full", "cascade")
RIVAL = "torch bf16"
FORMS = ("", ", graph")
"""How a call is made: as it is, or as a graph."""
ROWS = 64
"""Queries that are checked at a time."""


def engines(settings: Settings) -> dict[str, Entry]:
    """Every engine that is offered on a device; ``cascade`` and ``auto`` see calibration vectors where there are some."""
    promise = {"eps": settings.eps, "delta": settings.delta}
    return {
        "full": Entry("full", {}, {}),
        "cascade": Entry("cascade", promise, {}),
        "cascade, ids only": Entry("cascade", promise, {"eps": math.inf}),
        "auto": Entry("auto", {"eps": math.inf}, {}),
    }


def names() -> list[str]:
    """All engines and PyTorch, in every form."""
    return [name + form for name in (*engines(Settings()), RIVAL, f"{RIVAL}, compiled") for form in FORMS]


class Field:
    """The contestants over one layer, each engine compiled once, the weight on the device once."""

    def __init__(self, layer: Layer, settings: Settings, place: Place, calibration: Any) -> None:
        self.settings, self.place, self.calibration = settings, place, calibration
        weight = tensor_of(layer.weight, place.torch, place.device)
        self.layer = Layer(weight, layer.bias, layer.link)
        self.torch_layer = TorchLayer(layer, weight)
        self.compiled: dict[str, tuple[Any, float]] = {}

    def engine(self, entry: Entry) -> tuple[Any, float]:
        """The engine and the seconds that compiling it took."""
        key = f"{entry.method} {sorted(entry.compiled.items())}"
        if key not in self.compiled:
            start = time.perf_counter()
            options = {**entry.compiled, "seed": self.settings.seed, "device": self.place.name}
            options |= {} if entry.method == "full" else {"calibration": self.calibration}
            self.compiled[key] = headlong.compile(self.layer, entry.method, **options), time.perf_counter() - start
        return self.compiled[key]

    def topk(self, name: str) -> Contestant:
        """The contestant of that name: ``engine.topk``, or PyTorch's product, top-k and normaliser."""
        stem, form = _form(name)
        known = engines(self.settings)
        if stem in known:
            entry = known[stem]
            engine, build = self.engine(entry)
            one = bench.engine_contestant(name, engine, self.settings.k, entry.asked, build)
            return replace(one, call=self.made(one.call, form), prepare=self.prepared, answer=on_host)
        return self.rival(name, self.torch_layer.topk(self.settings.k), _found)

    def step(self, name: str, filters: Mapping[str, Any]) -> Contestant:
        """A sampling step: ``engine.sample``, or PyTorch's softmax, sort and multinomial."""
        stem, form = _form(name)
        known = engines(self.settings)
        if stem in known:
            engine, _ = self.engine(known[stem])
            wish = {"temperature": TEMPERATURE, "seed": self.settings.seed, **filters}
            call = self.made(lambda hidden: engine.sample(hidden, **wish), form)
            return Contestant(name, call, self.prepared, on_host, {"engine": repr(engine)})
        return self.rival(name, self.torch_layer.step(TEMPERATURE, **filters), lambda ids: Found(_array(ids), None))

    def rival(self, name: str, call: Call, answer: Callable[[Any], Any]) -> Contestant:
        """PyTorch, as it is, compiled, or as a graph of either."""
        stem, form = _form(name)
        torch, size = self.place.torch, 2 * self.layer.vocab * self.layer.dim
        quick = self.place.compiled(call) if stem.endswith(", compiled") else torch.inference_mode()(call)
        about = {"reads": "all rows, bfloat16", "bytes": size}
        return Contestant(name, self.made(quick, form), lambda rows: self.prepared(rows).bfloat16(), answer, about)

    def ceilings(self) -> list[Contestant]:
        """What reading or copying as many bytes as the layer has (or ``place.ceiling``) takes at best."""
        torch, size = self.place.torch, max(self.place.ceiling, self.layer.weight.nbytes)
        source = torch.zeros(size // 4, dtype=torch.float32, device=self.place.device)
        target = torch.empty_like(source)
        return [
            Contestant("plain read", lambda _: source.sum(), about={"bytes": size}),
            Contestant("plain copy", lambda _: target.copy_(source), about={"bytes": 2 * size}),
        ]

    def made(self, call: Call, form: str) -> Call:
        return self.place.captured(call) if form else call

    def prepared(self, rows: Any) -> Any:
        """Queries on the device, in the layer's type."""
        torch = self.place.torch
        return torch.from_numpy(np.array(rows, np.float32)).to(self.place.device, getattr(torch, self.layer.dtype))


class Plan(NamedTuple):
    """What is timed together: contestants of top-k, and of each sampling step."""

    topk: list[Contestant]
    steps: dict[str, list[Contestant]]
    ceilings: list[Contestant]


def run(
    layer: Layer, hidden: Any, wanted: Sequence[str], settings: Settings, place: Place, stage: Stage,
    calibration: Any = None, path: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Answers and times of the named contestants; with a ``path``, goes on with the run it holds, and writes every batch."""
    unknown = next((name for name in wanted if name not in names()), None)
    if unknown is not None:
        raise OptionError(f"there is no contestant {unknown!r} on a device; expected one of {'; '.join(names())}")
    queries, settings = bench.spread(hidden, replace(settings, baseline=RIVAL))
    queries = np.asarray(queries).astype(layer.weight.dtype).astype(np.float32)
    facts = {"layer": bench.layer_facts(layer), "settings": json.loads(json.dumps(asdict(settings)))}
    record = kept(path, facts)
    todo = [batch for batch in settings.batches if batch not in {run["batch"] for run in record.get("runs", ())}]
    if not todo:
        return record
    failed: list[dict[str, Any]] = record.get("failed", [])
    plan = planned(wanted, Field(layer, settings, place, calibration), failed, stage("compile"))
    if not record:
        able = willing(plan.topk, queries[:ROWS], failed)
        record = {**bench.answered(able, layer, queries, settings, stage), **facts, "steps": [], "ceilings": []}
        record["draws"] = drawn(plan.steps, layer, queries, settings.seed, failed, stage("draw"))
    plan = plan._replace(topk=[one for one in plan.topk if one.name in {entry["contestant"] for entry in record["answers"]}])
    for batch in todo:
        for name, found in times(plan, queries, batch, settings, place, stage, failed).items():
            record[name] += found
        paths = sorted({run["path"].rpartition("/")[2] for run in record["runs"] if "path" in run})
        record |= {"environment": measure.environment(settings.threads, **place.facts, isa_used=paths), "failed": failed}
        if path is not None:
            measure.write_run(path, record)
    return record


def kept(path: Path | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The run in ``path``, where it is one of this layer with these settings; nothing where it is not."""
    if path is None or not path.is_file():
        return {}
    record = measure.read_run(path)
    return record if all(record.get(key) == value for key, value in facts.items()) else {}


def planned(wanted: Sequence[str], field: Field, failed: list[dict[str, Any]], progress: Progress) -> Plan:
    """Everyone who can be made here; ``failed`` says who cannot."""
    topk: list[Contestant] = []
    steps: dict[str, list[Contestant]] = {step: [] for step in STEPS}
    for done, name in enumerate(wanted):
        stem = _form(name)[0]
        try:
            topk.append(field.topk(name))
            if stem in STEPPING or stem.startswith(RIVAL):
                for step, filters in STEPS.items():
                    steps[step].append(field.step(name, filters))
        except RuntimeError as error:  # such as memory that is full: said in the record
            failed.append(_failure(name, 0, error))
        progress(done + 1, len(wanted))
    return Plan(topk, steps, field.ceilings())


def willing(field: Sequence[Contestant], block: Any, failed: list[dict[str, Any]]) -> list[Contestant]:
    """Those that answer a block of this size; of the others, what they raised: not every call can be compiled or captured."""
    able = []
    for one in field:
        try:
            one.answer(one.call(one.prepare(block)))
        except Exception as error:  # of whatever kind a compiler or a driver raises: said in the record
            failed.append(_failure(one.name, len(block), error))
        else:
            able.append(one)
    return able


def times(
    plan: Plan, queries: Any, batch: int, settings: Settings, place: Place, stage: Stage, failed: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """``runs``, ``ceilings`` and ``steps`` at one batch size."""
    schedule = Schedule(settings.rounds, calls=settings.calls, pause=0.0, seconds=settings.seconds, seed=settings.seed)
    able = willing(plan.topk, queries[:batch], failed)
    if not able:
        raise OptionError(f"nothing can run here at batch {batch}; the last to fail: {failed[-1]}")
    found = bench.timed([*able, *plan.ceilings], queries, batch, schedule, stage, place.clock)
    plain = {one.name for one in plan.ceilings}
    steps = []
    for step, field in plan.steps.items():
        able = willing(field, queries[:batch], failed)
        entries = bench.timed(able, queries, batch, schedule, _labelled(stage, step), place.clock)
        steps += [{"step": step, **entry} for entry in entries]
    return {
        "runs": [entry for entry in found if entry["contestant"] not in plain],
        "ceilings": [entry for entry in found if entry["contestant"] in plain],
        "steps": steps,
    }


def drawn(
    steps: Mapping[str, Sequence[Contestant]],
    layer: Layer,
    queries: Any,
    seed: int,
    failed: list[dict[str, Any]],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Of every engine and step: how many draws are said to be proved, and how many of those are not the true ones."""
    able = [(step, one) for step, field in steps.items() for one in willing(_ours(field), queries[:ROWS], failed)]
    counts = {(step, one.name): [0, 0] for step, one in able}
    for start in range(0, len(queries), ROWS):
        block = queries[start : start + ROWS]
        truth = true_draws(exponents(layer, block), TEMPERATURE, seed, STEPS)
        for step, one in able:
            answer = one.answer(one.call(one.prepare(block)))
            proved = answer.proved[:, 0]
            counts[step, one.name][0] += int(proved.sum())
            counts[step, one.name][1] += int((proved & (answer.ids[:, 0] != truth[step])).sum())
        progress(min(start + ROWS, len(queries)), len(queries))
    return [
        {"step": step, "contestant": name, "queries": len(queries), "proved": proved, "wrong": wrong}
        for (step, name), (proved, wrong) in counts.items()
    ]


def _labelled(stage: Stage, step: str) -> Stage:
    return lambda label: stage(f"{step}: {label}")


def _ours(field: Sequence[Contestant]) -> list[Contestant]:
    return [one for one in field if not one.name.startswith(RIVAL)]


def on_host(answer: Any) -> Any:
    """The answer with NumPy arrays of its own: what a graph replays into is written again by the next call."""
    if isinstance(answer, tuple):
        return type(answer)(*(on_host(part) for part in answer))
    return answer if isinstance(answer, str) else _array(answer)


def _array(tensor: Any) -> Any:
    return np.array(tensor.cpu().numpy())


def _found(result: tuple[Any, Any]) -> Found:
    return Found(_array(result[0]), _array(result[1].double()))


def _form(name: str) -> tuple[str, str]:
    """``"full, graph" -> ("full", ", graph")``"""
    stem = name.removesuffix(FORMS[1])
    return stem, name[len(stem) :]


def _failure(name: str, batch: int, error: Exception) -> dict[str, Any]:
    said = str(error).strip().splitlines() or [""]
    return {"contestant": name, "batch": batch, "error": f"{type(error).__name__}: {said[0]}"[:300]}
