"""On a GPU: every engine that there is, and PyTorch in bfloat16 as it is, compiled, and as a CUDA graph.

    python benchmarks/device.py --json results/device.json                       four shapes, batches of 1, 8, 64 and 1,024
    python benchmarks/device.py --layer smollm2 --batch 1,64 --json FILE         one of common/real_layers.py
    python benchmarks/device.py --shape 128256,2048,1 --device cuda:1 --json FILE

    x     = median seconds of PyTorch's fastest form / those of the row's faster form (as it is, graph)         below 1: slower
            a graph that leaves rows unproved is not the faster form: what is open is not read again there
    GB/s  = bytes that a call reads / seconds;  the row "copy" moves as many bytes as the layer has: what memory can do

Rows are read in bfloat16 by all (``--dtype``: in another type by the engines). All take turns, timed by device events, each
behind a read of four times the L2 cache. ``outside`` counts answers that float64 refutes: a proved row with other ids, a
log-probability beyond its error, a proved draw that is not the CPU engine's.
What cannot run here (memory, compilation, capture) is a row with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import headlong as hl
from common.real_layers import load
from headlong.answers import Answer, named_fields
from headlong.arrays import evenly
from headlong.bench import measure
from headlong.bench.measure import Contestant, Schedule
from headlong.bench.oracle import Truth, true_log_probs
from headlong.bench.rivals.dense import linked
from headlong.bench.synthetic import shape, synthetic
from headlong.engines.device.memory import INTERPRETER, place_of, tensor_of
from headlong.errors import HeadlongError

SHAPES = ("33278,512,1", "262144,640,1", "128256,2048,1", "262144,3072,2")
K, SEED, TEMPERATURE = 10, 0, 0.8
STEPS: dict[str, dict[str, Any]] = {"draw": {}, "draw, top-p 0.95": {"top_p": 0.95}}
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


class Right(NamedTuple):
    """What float64 and the CPU's engine say of the queries ``hidden`` float64, whole batches of them."""

    layer: hl.Layer
    hidden: Any
    best: Any
    drawn: dict[str, Any]

    @classmethod
    def of(cls, layer: hl.Layer, hidden: Any, best: Any, batch: int) -> Right:
        """A draw depends on its row's place in the batch."""
        count, cpu = len(hidden) // batch * batch, hl.compile(layer, "full")
        place = np.arange(count) % batch
        drawn = {
            task: cpu.sample(hidden[:count], 1, TEMPERATURE, seed=SEED, position=place, **wish).ids
            for task, wish in STEPS.items()
        }
        return cls(layer, hidden[:count], Truth(*(part[:count] for part in best)), drawn)

    def outside(self, task: str, answers: list[Any]) -> dict[str, Any]:
        """How many rows of an engine's answers are refuted, how many were proved, and what the last batch cost."""
        ids, proved = (np.concatenate([getattr(one, name).cpu().numpy() for one in answers]) for name in ("ids", "proved"))
        about = {"proved": float(proved.mean()), "bytes": float(answers[-1].cost.bytes.sum())}
        if task != "top-k":
            return about | {"outside": int((proved & (ids != self.drawn[task])).sum())}
        true = true_log_probs(self.layer, self.hidden, ids, self.best.lse)
        stated = ("log_probs", "error")
        log_probs, error = (np.concatenate([getattr(one, name).cpu().numpy() for one in answers]) for name in stated)
        off = np.abs(log_probs - true).max(axis=1) > error + 1e-9
        other = proved & (np.abs(true - self.best.log_probs).max(axis=1) > 1e-9)  # ties may change places
        largest = float(error.max()) if np.isfinite(error).all() else None
        return about | {"outside": int((off | other).sum()), "same": float((ids == self.best.ids).mean()), "error": largest}


def subjects(asked: argparse.Namespace) -> Iterator[tuple[str, str, hl.Layer, Any]]:
    """Named layers and their queries."""
    count = max(asked.queries, *asked.batch)
    for name in asked.layer:
        one = load(name)
        yield name, one.about, one.layer, evenly(one.valid, count)
    for text in asked.shape or (() if asked.layer else SHAPES):
        found = synthetic(*shape(text), count, SEED, measure.silent)
        yield text, f"synthetic, energy of logits falls as j^-{text.split(',')[2]}", found.layer, found.hidden


def calls(
    layer: hl.Layer, device: str, rival: Rival, tasks: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, str, Any, Call]]:
    """``task, name, engine or None, call`` of everyone."""
    engine = hl.compile(layer, eps=0.01, device=device, seed=SEED)
    yield "top-k", engine.name, engine, lambda rows: engine.topk(rows, K)
    for task, wish in tasks.items():
        yield task, engine.name, engine, lambda rows, wish=wish: engine.sample(rows, 1, TEMPERATURE, seed=SEED, **wish)  # type: ignore[misc]
    yield "top-k", "torch", None, rival.topk
    for task, wish in tasks.items():
        yield task, "torch", None, lambda rows, wish=wish: rival.draw(rows, **wish)  # type: ignore[misc]


def measured(layer: hl.Layer, queries: Any, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one layer."""
    torch, device = place_of(asked.device)
    gpu = asked.device != INTERPRETER
    kind = getattr(torch, layer.dtype)
    weight = tensor_of(layer.weight, torch, device)
    there = hl.Layer(weight, layer.bias, layer.link) if gpu else layer
    source = torch.zeros(layer.weight.nbytes // 4, dtype=torch.float32, device=device)
    cache = torch.cuda.get_device_properties(device).L2_cache_size if gpu else 0
    clock = EventClock(torch, torch.zeros(cache, device=device)) if gpu else None  # four bytes each
    schedule = Schedule(asked.rounds, calls=5, settle=2, pause=0.0, seconds=asked.seconds)
    everyone = list(calls(there, asked.device, Rival(torch, layer, weight), STEPS))
    everyone.append(("top-k", "copy", None, lambda _: source.clone()))
    rows = tensor_of(np.asarray(queries, np.float32), torch, device).to(kind)
    hidden = rows.double().cpu().numpy()
    best = Truth.of(layer, hidden, K)
    for batch in asked.batch:
        right = Right.of(layer, hidden[: max(batch, asked.queries)], best, batch)
        torch._dynamo.config.recompile_limit = 1000  # noqa: SLF001 - each batch size is compiled for
        blocks = [rows[start : start + batch] for start in range(0, len(right.hidden), batch)]
        for task in dict.fromkeys(task for task, *_ in everyone):
            field, found = [], {}
            among = [one[1:] for one in everyone if one[0] == task]
            for form, engine, call in forms(torch, among, blocks[0], gpu):
                row = found[form] = {"batch": batch, "task": task, "contestant": form}
                try:
                    if engine is None:
                        call(blocks[0])
                    else:
                        row |= right.outside(task, [copied(torch, call(block)) for block in blocks])
                except Exception as error:  # whatever a compiler or a driver raises is a row
                    row["failed"] = f"{type(error).__name__}: {' '.join(str(error).strip().splitlines()[:1])}"
                else:
                    field.append(Contestant(form, call, lambda block: tensor_of(block, torch, device).to(kind)))
            times = measure.contest(field, queries, batch, schedule, clock=clock or measure.wall)
            for one, timing in zip(field, times, strict=True):
                found[one.name]["us"] = round(1e6 * statistics.median(timing.seconds), 3)
            yield from found.values()


def copied(torch: Any, answer: Any) -> Any:
    """The answer apart from a graph's own memory, which the next replay writes to."""
    if isinstance(answer, Answer):
        return type(answer)(*(copied(torch, part) for part in named_fields(answer).values()))
    if isinstance(answer, tuple):
        return type(answer)(*(copied(torch, part) for part in answer))
    return answer.clone() if isinstance(answer, torch.Tensor) else answer


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


def table(name: str, layer: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each engine and ``copy``: the faster of its forms."""
    for key in dict.fromkeys((row["batch"], row["task"]) for row in rows):
        best: dict[str, dict[str, Any]] = {}
        for row in (row for row in rows if "us" in row and (row["batch"], row["task"]) == key):
            stem = row["contestant"].removesuffix(", graph").removesuffix(", compiled")
            best[stem] = min(row, best.get(stem, row), key=lambda one: (-one.get("proved", 0.0), float(one["us"])))
        for stem, row in best.items():
            over = f"{best['torch']['us'] / row['us']:.2f}x" if "torch" in best else "-"
            size = 2.0 * layer["vocab"] * layer["dim"] * {"float32": 2, "float16": 1, "bfloat16": 1}[layer["dtype"]]
            speed = (2 * size if stem == "copy" else row.get("bytes", size)) / row["us"] / 1e3
            what = f"{name:20} {key[0]:4} {key[1]:17} {row['contestant']:24}"
            yield f"{what} {row['us']:10,.1f} us {over:>8} {speed:8,.0f} GB/s"
    failed = sorted({f"{row['contestant']}: {row['failed']}" for row in rows if "failed" in row})
    yield f"outside their proof: {sum(row.get('outside', 0) for row in rows)}; could not run: {'; '.join(failed) or 'none'}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", action="append", default=[], help="a layer that people have, or a harvested folder")
    parser.add_argument("--shape", action="append", default=[], help="VOCAB,DIM,POWER of a synthetic layer")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"], help="of the rows")
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 64, 1024])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--queries", type=int, default=256, help="how many answers are compared with float64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args(words)
    try:
        torch, device = place_of(asked.device)
        facts: dict[str, Any] = {"gpu": "none: Triton's interpreter"}
        if asked.device != INTERPRETER:
            facts = {"gpu": torch.cuda.get_device_properties(device).name, "cuda": torch.version.cuda}
            facts["triton"] = importlib.import_module("triton").__version__
        for name, about, stored, queries in subjects(asked):
            weight = stored.weight if stored.dtype == asked.dtype else stored.weight.astype(np.dtype(asked.dtype))
            layer = hl.Layer(weight, stored.bias, stored.link)
            kept = name if asked.dtype == "bfloat16" else f"{name}, {asked.dtype}"
            shown = {"about": about, "vocab": layer.vocab, "dim": layer.dim, "dtype": layer.dtype}
            rows = list(measured(layer, queries, asked))
            sys.stdout.write("\n".join(table(kept, shown, rows)) + "\n")
            sys.stdout.flush()
            if asked.json is not None:
                record = {"environment": measure.environment(measure.processors(), **facts), "layer": shown, "rows": rows}
                told = f"--batch {','.join(map(str, asked.batch))} --dtype {asked.dtype} --rounds {asked.rounds}"
                told += f" --queries {asked.queries}"
                which = f"--layer {name}" if name in asked.layer else f"--shape {name}"
                measure.keep(asked.json, "on a GPU", record, kept, f"python benchmarks/device.py {which} {told}")
    except HeadlongError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
