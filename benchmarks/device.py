"""On a GPU: every engine that there is, and PyTorch in bfloat16 as it is, compiled, and as a CUDA graph.

    python benchmarks/device.py --json results/device.json                       four shapes, batches of 1, 8, 32 and 128
    python benchmarks/device.py --layer smollm2 --batch 1,64 --json FILE         a layer of headlong.bench.real_layers
    python benchmarks/device.py --shape 128256,2048,1 --device cuda:1 --json FILE

    x     = median seconds of PyTorch's fastest form / those of the row's faster form (as it is, graph)         below 1: slower
    GB/s  = bytes that a call reads / seconds;  the row "copy" moves as many bytes as the layer has: what memory can do

All take turns, timed by device events, each behind a read of four times the L2 cache. ``outside`` counts answers that float64
refutes: a proved row with other ids, a log-probability beyond its error, a proved draw that is not the CPU engine's.
What cannot run here (memory, compilation, capture) is a row with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong.arrays import evenly
from headlong.bench import measure
from headlong.bench.measure import Contestant, Schedule
from headlong.bench.oracle import Truth, true_log_probs
from headlong.bench.real_layers import load
from headlong.bench.rivals.dense import linked
from headlong.bench.synthetic import shape, synthetic
from headlong.engines.device.memory import INTERPRETER, place_of, tensor_of
from headlong.errors import HeadlongError

SHAPES = ("33278,512,1", "262144,640,1", "128256,2048,1", "262144,3072,2")
ENGINES: dict[str, tuple[str, float]] = {
    "full": ("full", 0.01), "cascade, ids only": ("cascade", math.inf), "svd": ("svd", math.inf),
}  # fmt: skip
K, SEED, TEMPERATURE = 10, 0, 0.8
STEPS: dict[str, dict[str, float]] = {"draw": {}, "draw, top-p 0.95": {"top_p": 0.95}}
Call = Callable[[Any], Any]


class EventClock:
    """Device events around one call. ``other`` is read first: nothing of the call before stays in the L2 cache, and the GPU is
    busy while the host lines the call up."""

    def __init__(self, torch: Any, other: Any) -> None:
        self.torch, self.other = torch, other

    def __call__(self, call: Call, block: Any) -> float:
        self.other.sum()
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(block)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def captured(torch: Any, call: Call, block: Any) -> Call:
    """The call as one CUDA graph: queries are copied in, the graph is replayed."""
    static, stream = block.clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made once, kernels and workspaces, is made outside the graph
        for _ in range(3):
            call(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = call(static)

    def replay(rows: Any) -> Any:
        static.copy_(rows)
        graph.replay()
        return answer

    return replay


class Rival:
    """PyTorch's own way, in bfloat16."""

    def __init__(self, torch: Any, layer: hl.Layer, weight: Any) -> None:
        self.torch, self.layer, self.weight = torch, layer, weight.to(torch.bfloat16)
        self.bias = None if layer.bias is None else torch.tensor(layer.bias, device=weight.device).bfloat16()

    def logits(self, hidden: Any) -> Any:
        return linked(self.layer, self.torch.nn.functional.linear(hidden.bfloat16(), self.weight, self.bias), self.torch.tanh)

    def topk(self, hidden: Any) -> Any:
        z = self.logits(hidden)
        values, ids = z.topk(K)
        return values - z.logsumexp(1, keepdim=True), ids

    def draw(self, hidden: Any, top_p: float = 1.0) -> Any:
        probabilities = (self.logits(hidden).float() / TEMPERATURE).softmax(-1)
        if top_p >= 1:
            return probabilities.multinomial(1)
        ranked, order = probabilities.sort(-1, descending=True)
        return order.gather(-1, ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0.0).multinomial(1))


def subjects(asked: argparse.Namespace) -> Iterator[tuple[str, hl.Layer, Any]]:
    """Named layers and their queries."""
    for name in asked.layer:
        one = load(name)
        yield name, one.layer, evenly(one.valid, max(asked.queries, *asked.batch))
    for text in asked.shape or (() if asked.layer else SHAPES):
        found = synthetic(*shape(text), max(asked.queries, *asked.batch), SEED, measure.silent)
        yield f"synthetic {text}", found.layer, found.hidden


def calls(
    layer: hl.Layer, device: str, rival: Rival, tasks: dict[str, dict[str, float]]
) -> Iterator[tuple[str, str, Any, Call]]:
    """``task, name, engine or None, call`` of everyone."""
    for name, (method, eps) in ENGINES.items():
        engine = hl.compile(layer, method, eps=eps, device=device, seed=SEED)
        yield "top-k", name, engine, lambda rows, engine=engine: engine.topk(rows, K)  # type: ignore[misc]
        if method != "svd":
            for task, wish in tasks.items():
                yield (
                    task, name, engine,
                    lambda rows, engine=engine, wish=wish: engine.sample(rows, 1, TEMPERATURE, seed=SEED, **wish),  # type: ignore[misc]
                )  # fmt: skip
    yield "top-k", "torch", None, rival.topk
    for task, wish in tasks.items():
        yield task, "torch", None, lambda rows, wish=wish: rival.draw(rows, **wish)  # type: ignore[misc]


def measured(name: str, layer: hl.Layer, queries: Any, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one layer."""
    torch, device = place_of(asked.device)
    gpu = asked.device != INTERPRETER
    kind = getattr(torch, layer.dtype)
    weight = tensor_of(layer.weight, torch, device)
    there = hl.Layer(weight, layer.bias, layer.link) if gpu else layer
    size = layer.weight.nbytes
    source = torch.zeros(size // 4, dtype=torch.float32, device=device)
    cache = torch.cuda.get_device_properties(device).L2_cache_size if gpu else 0
    clock = EventClock(torch, torch.zeros(cache, device=device)) if gpu else None  # four bytes each
    schedule = Schedule(asked.rounds, calls=5, settle=2, pause=0.0, seconds=asked.seconds)
    everyone = list(calls(there, asked.device, Rival(torch, layer, weight), STEPS))
    everyone.append(("top-k", "copy", None, lambda _: source.clone()))
    for batch in asked.batch:
        rows = tensor_of(np.asarray(queries, np.float32), torch, device).to(kind)
        about = {"layer": name, "batch": batch, "vocab": layer.vocab, "dim": layer.dim, "dtype": layer.dtype}
        for task in dict.fromkeys(task for task, *_ in everyone):
            field, found = [], {}
            among = [one[1:] for one in everyone if one[0] == task]
            for form, engine, call in forms(torch, among, rows[:batch], gpu):
                row = found[form] = {**about, "task": task, "contestant": form}
                try:
                    for start in range(0, max(1, len(queries) // batch) * batch, batch):
                        block = rows[start : start + batch]
                        joined(row, checked(task, engine, call(block), layer, block))
                except Exception as error:  # whatever a compiler or a driver raises is a row
                    row["failed"] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
                else:
                    field.append(Contestant(form, call, lambda block: tensor_of(block, torch, device).to(kind)))
            times = measure.contest(field, queries, batch, schedule, **({} if clock is None else {"clock": clock}))
            for one, timing in zip(field, times, strict=True):
                found[one.name]["us"] = round(1e6 * statistics.median(timing.seconds), 3)
            yield from found.values()


def forms(torch: Any, everyone: list[Any], block: Any, gpu: bool) -> Iterator[tuple[str, Any, Call]]:
    """Everyone as they are and, on a GPU, as graphs; PyTorch compiled, too."""
    for name, engine, call in everyone:
        yield name, engine, call
        if not gpu or name == "copy":
            continue
        kinds = [("", call)] + ([(", compiled", torch.compile(call, dynamic=False, fullgraph=True))] if name == "torch" else [])
        for suffix, inner in kinds:
            if suffix:
                yield name + suffix, engine, inner
            graph: list[Call] = []

            def replayed(rows: Any, inner: Call = inner, graph: list[Call] = graph) -> Any:
                if not graph:
                    graph.append(captured(torch, inner, block))
                return graph[0](rows)

            yield f"{name}{suffix}, graph", engine, replayed


def checked(task: str, engine: Any, answer: Any, layer: hl.Layer, rows: Any) -> dict[str, Any]:
    """What an engine's answer cost, and how many of its rows float64 refutes."""
    if engine is None:
        return {}
    hidden = rows.double().cpu().numpy()
    proved = answer.proved.cpu().numpy()
    about = {"bytes": float(answer.cost.bytes.sum()), "proved": float(proved.mean()), "engine": repr(engine)}
    if task != "top-k":
        wish = {"seed": SEED, **STEPS[task]}
        true = hl.compile(layer, "full").sample(hidden, 1, TEMPERATURE, **wish)
        return about | {"outside": int((proved & (answer.ids.cpu().numpy() != true.ids)).sum())}
    truth, ids = Truth.of(layer, hidden, K), answer.ids.cpu().numpy()
    true = true_log_probs(layer, hidden, ids, truth.lse)
    off = np.abs(answer.log_probs.cpu().numpy() - true).max(axis=1) > answer.error.cpu().numpy() + 1e-9
    other = proved & (np.abs(true - truth.log_probs).max(axis=1) > 1e-9)  # ties may change places
    return about | {"outside": int((off | other).sum())}


def joined(row: dict[str, Any], more: dict[str, Any]) -> None:
    """Counts of refuted answers add up; of the rest the last block's are kept."""
    row |= more | ({"outside": row.get("outside", 0) + more["outside"]} if "outside" in more else {})


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each engine and ``copy``: the faster of its forms."""
    keys = dict.fromkeys((row["layer"], row["batch"], row["task"]) for row in rows)
    for key in keys:
        mine = [row for row in rows if (row["layer"], row["batch"], row["task"]) == key]
        best: dict[str, dict[str, Any]] = {}
        for row in (row for row in mine if "us" in row):
            stem = row["contestant"].removesuffix(", graph").removesuffix(", compiled")
            best[stem] = min(row, best.get(stem, row), key=lambda one: float(one["us"]))
        for stem, row in best.items():
            over = f"{best['torch']['us'] / row['us']:.2f}x" if "torch" in best else "-"
            size = 2.0 * row["vocab"] * row["dim"] * {"float32": 2, "float16": 1, "bfloat16": 1}[row["dtype"]]
            speed = (2 * size if stem == "copy" else row.get("bytes", size)) / row["us"] / 1e3
            yield f"{key[0]:24} {key[1]:4} {key[2]:17} {stem:18} {row['us']:10,.1f} us {over:>8} {speed:8,.0f} GB/s"
    failed = sorted({f"{row['contestant']}: {row['failed']}" for row in rows if "failed" in row})
    yield f"outside their proof: {sum(row.get('outside', 0) for row in rows)}; could not run: {'; '.join(failed) or 'none'}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", action="append", default=[], help="of headlong.bench.real_layers, or a harvested folder")
    parser.add_argument("--shape", action="append", default=[], help="VOCAB,DIM,POWER of a synthetic layer")
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32, 128])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--queries", type=int, default=256, help="how many answers are compared with float64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(words)
    try:
        torch, device = place_of(asked.device)
        facts: dict[str, Any] = {"gpu": "none: Triton's interpreter"}
        if asked.device != INTERPRETER:
            facts = {"gpu": torch.cuda.get_device_properties(device).name, "cuda": torch.version.cuda}
            facts["triton"] = importlib.import_module("triton").__version__
        rows = [row for subject in subjects(asked) for row in measured(*subject, asked)]
    except HeadlongError as error:
        parser.exit(2, f"{error}\n")
    sys.stdout.write("\n".join(table(rows)) + "\n")
    if asked.json is not None:
        command = " ".join(["python", "benchmarks/device.py", *(sys.argv[1:] if words is None else words)])
        record = {"command": command, "environment": measure.environment(measure.processors(), **facts), "rows": rows}
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
