"""``headlong bench --device``: engines and PyTorch in a GPU's memory; the record of :mod:`headlong.bench.run` and more.

::

    record = {environment, layer, settings, truth, answers, runs,          as on the CPU
              steps: one entry per sampling step, contestant and batch, draws: what the steps drew, beside float64,
              ceilings: plain reads and copies timed among them, failed: what could not run here, and why}

Every contestant runs as it is and as a CUDA graph, PyTorch also compiled. All see the same queries, rounded to the layer's
type first. Every batch size is other kernels, so answers are compared with the truth at each. A batch that is done is
written at once, and is not timed again by a run that goes on with the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headlong.bench import measure
from headlong.bench import run as bench
from headlong.bench.device_contestants import PLAIN, RIVAL, STEPS, TEMPERATURE, Contestants, Field, names, planned, willing
from headlong.bench.gpu_clock import Place
from headlong.bench.measure import Contestant, Schedule
from headlong.bench.oracle import TrueDraws, Truth
from headlong.bench.run import Stage
from headlong.bench.settings import Settings
from headlong.errors import OptionError
from headlong.layers.matrix import Layer

ROWS = 64
"""Queries in one block while answers are recorded; draws are checked for as many, or for one batch if that is more."""
Entries = list[dict[str, Any]]


def run(
    layer: Layer, hidden: Any, wanted: Sequence[str], settings: Settings, place: Place, stage: Stage,
    calibration: Any = None, path: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Answers and times of the named contestants; with a ``path``, goes on with the run it holds, and writes every batch."""
    unknown = next((name for name in wanted if name not in names()), None)
    if unknown is not None:
        raise OptionError(f"there is no contestant {unknown!r} on a device; expected one of {'; '.join(names())}")
    queries, settings = bench.spread(layer, hidden, replace(settings, baseline=RIVAL, ways=("loop",)))
    queries = np.asarray(queries).astype(layer.weight.dtype).astype(np.float32)
    facts = {"layer": bench.layer_facts(layer), "settings": json.loads(json.dumps(asdict(settings)))}
    record = kept(path, facts)
    todo = [batch for batch in settings.batches if batch not in {run["batch"] for run in record.get("runs", ())}]
    if not todo:
        return record
    failed: Entries = record.get("failed", [])
    plan = planned(wanted, Field(layer, settings, place, calibration), failed, stage("compile"))
    contest = Contest(layer, queries, settings, place, stage, plan, failed)
    record = record or {**contest.answers(), **facts, "steps": [], "ceilings": [], "draws": []}
    contest.only(entry["contestant"] for entry in record["answers"])
    for batch in todo:
        for name, found in contest.at(batch).items():
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


@dataclass
class Contest:
    """One layer, its queries, everyone who is asked and timed, and what they should say."""

    layer: Layer
    queries: Any
    settings: Settings
    place: Place
    stage: Stage
    plan: Contestants
    failed: Entries
    truth: Truth = field(init=False)
    draws: TrueDraws = field(init=False)

    def __post_init__(self) -> None:
        self.truth = Truth.of(self.layer, self.queries, self.settings.k)
        rows = self.queries[: max(ROWS, *self.settings.batches)]
        self.draws = TrueDraws(self.layer, rows, TEMPERATURE, self.settings.seed, STEPS, self.stage("true draws"))

    def answers(self) -> dict[str, Any]:
        """The record that all batches join."""
        able = willing(self.plan.topk, self.queries[:ROWS], self.failed)
        return bench.answered(able, self.layer, self.queries, self.settings, self.stage, self.truth)

    def only(self, answered: Iterable[str]) -> None:
        """Whoever did not answer is not timed."""
        there = set(answered)
        self.plan = self.plan._replace(topk=[one for one in self.plan.topk if one.name in there])

    def at(self, batch: int) -> dict[str, Entries]:
        """``runs``, ``ceilings``, ``steps`` and ``draws`` at one batch size."""
        able = willing(self.plan.topk, self.queries[:batch], self.failed)
        if not able:
            raise OptionError(f"nothing can run here at batch {batch}; the last to fail: {self.failed[-1]}")
        outside = {one.name: self.outside(one, batch) for one in able if not one.name.startswith(RIVAL)}
        timed = self.timed([*able, *self.plan.ceilings], batch, "top-k")
        found: dict[str, Entries] = {"runs": [], "ceilings": [], "steps": [], "draws": []}
        for entry in timed:
            name = entry["contestant"]
            proof = {"outside": outside[name]} if name in outside else {}
            found["ceilings" if name in PLAIN else "runs"].append(entry | proof)
        for step, everyone in self.plan.steps.items():
            able = willing(everyone, self.queries[:batch], self.failed)
            found["draws"] += [self.drawn(step, one, batch) for one in able if not one.name.startswith(RIVAL)]
            found["steps"] += [{"step": step, **entry} for entry in self.timed(able, batch, step)]
        return found

    def timed(self, able: Sequence[Contestant], batch: int, what: str) -> Entries:
        wish = self.settings
        schedule = Schedule(wish.rounds, calls=wish.calls, pause=0.0, seconds=wish.seconds, seed=wish.seed)
        return bench.timed(able, self.queries, batch, schedule, lambda label: self.stage(f"{what}: {label}"), self.place.clock)

    def outside(self, one: Contestant, batch: int) -> int:
        """Queries whose proved ids or stated errors do not hold, asked in blocks of this size."""
        return int(bench.asked(one, self.layer, self.queries, self.truth, batch)["outside"])

    def drawn(self, step: str, one: Contestant, batch: int) -> dict[str, Any]:
        """How many draws are said to be proved, and how many of those are not the true ones."""
        rows, truth, proved, wrong = len(self.draws.values), self.draws.at(step, batch), 0, 0
        for start in range(0, rows, batch):
            answer = one.answer(one.call(one.prepare(self.queries[start : min(start + batch, rows)])))
            sure = answer.proved[:, 0]
            proved += int(sure.sum())
            wrong += int((sure & (answer.ids[:, 0] != truth[start : start + batch])).sum())
        return {"step": step, "contestant": one.name, "batch": batch, "queries": rows, "proved": proved, "wrong": wrong}
