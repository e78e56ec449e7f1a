"""The contestants in a GPU's memory: engines as they are and as CUDA graphs, PyTorch also compiled, plain reads and copies.

All read one copy of the weight on the device. What cannot be made or run there is not dropped: ``failed`` gets a line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import headlong
from headlong.bench import run as bench
from headlong.bench.gpu_clock import Call, Place
from headlong.bench.measure import Contestant, Progress
from headlong.bench.rivals import Found
from headlong.bench.rivals.device import TorchLayer
from headlong.bench.run import Entry
from headlong.bench.settings import Settings
from headlong.engines.device.memory import tensor_of
from headlong.layers.matrix import Layer

TEMPERATURE = 0.8
STEPS: dict[str, dict[str, float]] = {"a draw": {}, "top-p 0.95": {"top_p": 0.95}}
"""Sampling steps at that temperature: the filters of each."""
OFFERED = ("full", "cascade", "cascade, ids only", "svd")
STEPPING = ("full", "cascade")
RIVAL = "torch bf16"
PLAIN = ("plain read", "plain copy")
"""The ceilings."""
FORMS = ("", ", graph")
"""How a call is made: as it is, or as a graph."""


def engines(settings: Settings) -> dict[str, Entry]:
    """Every engine that is offered on a device; all but ``full`` see calibration vectors where there are some."""
    found = bench.engines(settings)
    return {name: found[name] for name in OFFERED} | {"auto": Entry("auto", {"eps": math.inf}, {})}


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
            Contestant(PLAIN[0], lambda _: source.sum(), about={"bytes": size}),
            Contestant(PLAIN[1], lambda _: target.copy_(source), about={"bytes": 2 * size}),
        ]

    def made(self, call: Call, form: str) -> Call:
        return self.place.captured(call) if form else call

    def prepared(self, rows: Any) -> Any:
        """Queries on the device, in the layer's type."""
        torch = self.place.torch
        return torch.from_numpy(np.array(rows, np.float32)).to(self.place.device, getattr(torch, self.layer.dtype))


class Contestants(NamedTuple):
    """What is timed together: contestants of top-k, and of each sampling step."""

    topk: list[Contestant]
    steps: dict[str, list[Contestant]]
    ceilings: list[Contestant]


def planned(wanted: Sequence[str], field: Field, failed: list[dict[str, Any]], progress: Progress) -> Contestants:
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
    return Contestants(topk, steps, field.ceilings())


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
