"""A layer that people have, read by every installed dense product and by headlong, in batches of several sizes.

    python benchmarks/dense_products.py --layer smollm2 --batch 1,8,16,64,1024 --json results/dense-products.json

    x = median seconds of the fastest dense product at this batch size / median seconds of the row    below 1: slower

*cold*: before each call PyTorch multiplies other weights, more than the caches hold; *loop*: nothing but such calls. All take
turns in a fresh order. Batches of 16 are asked for 16 classes, as drafters of tokens do, others for 10. ``same`` is the share
of those ids that float64 has, too, and ``worst`` the largest ``|log p^ - log p|`` of the ids that were named.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import headlong as hl
from headlong.arrays import evenly
from headlong.bench import cold, measure, rivals
from headlong.bench.measure import Contestant, Schedule
from headlong.bench.oracle import Truth, true_log_probs
from headlong.bench.real_layers import LAYERS, RealLayer, load
from headlong.costs.machine_load import Neighbours, load_average

ENGINES: dict[str, Callable[[RealLayer, int], Any]] = {
    "headlong": lambda one, threads: hl.compile(one.layer, threads=threads),
    "headlong, calibrated": lambda one, threads: hl.compile(one.layer, calibration=one.train, threads=threads),
    "headlong, calibrated, ids only": lambda one, threads: hl.compile(
        one.layer, calibration=one.train, eps=math.inf, threads=threads
    ),
    "headlong, proved within 0.2": lambda one, threads: hl.compile(
        one.layer, calibration=one.train, eps=0.2, delta=0.0, threads=threads
    ),
}
ANSWERED = 256
"""Queries whose answers are compared with float64: so many, and those of one batch at least."""
TIE = 1e-9


def classes_asked(batch: int) -> int:
    return 16 if batch == 16 else 10


def contestants(one: RealLayer, k: int, threads: int, engines: dict[str, Any], only: Sequence[str]) -> Iterator[Contestant]:
    for name, engine in engines.items():
        yield Contestant(name, partial(engine.topk, k=k), about={"engine": repr(engine)})
    for name in rivals.DENSE:
        if name in rivals.installed() and (not only or name in only):
            yield rivals.contestant(name, one.layer, k, threads)


def compared(one: Contestant, layer: hl.Layer, queries: Any, batch: int, k: int, truth: Truth) -> dict[str, Any]:
    """How often the ids of a contestant are float64's, ties counted, and how far its log-probabilities are off."""
    count = max(batch, min(ANSWERED, len(queries)) // batch * batch)
    parts = [one.answer(one.call(one.prepare(queries[i : i + batch]))) for i in range(0, count, batch)]
    ids = np.concatenate([np.asarray(part.ids) for part in parts])
    true = true_log_probs(layer, queries[:count], ids, truth.lse[:count])
    found: dict[str, Any] = {"same": float((true >= truth.log_probs[:count, k - 1 : k] - TIE).mean()), "answered": count}
    if parts[0].log_probs is not None:
        off = np.concatenate([np.asarray(part.log_probs, np.float64) for part in parts]) - true
        found["worst"] = float(np.abs(off).max())
    if hasattr(parts[0], "proved"):
        found["proved"] = float(np.mean([np.asarray(part.proved).mean() for part in parts]))
    return found


def measured(
    one: RealLayer, batch: int, engines: dict[str, Any], asked: argparse.Namespace, work: cold.OtherLayers
) -> Iterator[dict[str, Any]]:
    """A row for each contestant."""
    k = classes_asked(batch)
    queries = np.ascontiguousarray(evenly(one.valid, max(ANSWERED, 2 * batch)))
    truth = Truth.of(one.layer, queries[: max(ANSWERED, batch)], k)
    field = list(contestants(one, k, asked.threads, engines, asked.only))
    rows = {each.name: {"layer": one.name, "batch": batch, "k": k, "contestant": each.name} for each in field}
    for each in field:
        rows[each.name] |= compared(each, one.layer, queries, batch, k, truth)
    schedule = Schedule(asked.rounds, calls=5 if batch < 64 else 1, settle=2 if batch < 64 else 1, seconds=asked.seconds)
    timings = {
        "cold": cold.contest(field, queries, batch, 4 * asked.rounds, work, seconds=asked.seconds),
        "loop": measure.contest(field, queries, batch, schedule),
    }
    for way, found in timings.items():
        dense = [each for each in found if each.contestant in rivals.DENSE]
        base = min(dense, key=lambda each: statistics.median(each.seconds))
        for name, _, seconds in found:
            low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
            rows[name][way] = {
                "us": round(1e6 * middle, 1), "q25": round(1e6 * low, 1), "q75": round(1e6 * high, 1), "calls": len(seconds),
                "over": base.contestant, "x": round(statistics.median(base.seconds) / middle, 3),
            }  # fmt: skip
    yield from rows.values()


def line(row: dict[str, Any]) -> str:
    worst = f"{row['worst']:.2g}" if "worst" in row else "none"
    times = "  ".join(f"{row[way]['us']:>10,.0f} us {row[way]['x']:>5.2f}x" for way in ("cold", "loop"))
    return f"{row['batch']:>5}  {row['contestant']:<32} {times}  {row['same']:>8.2%}  {worst:>8}"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--layer", default="smollm2", help=f"{', '.join(LAYERS)}, or a folder of 'headlong harvest'")
    parser.add_argument("--batch", default="1,8,16,64,1024")
    parser.add_argument("--only", default="", help="dense products, with semicolons; default: all that are installed")
    parser.add_argument("--engines", default="", help="of headlong, with semicolons; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=6.0, help="at most about so many for each batch size and way")
    parser.add_argument("--json", help="the record")
    asked = parser.parse_args()
    asked.only = [name.strip() for name in asked.only.split(";") if name.strip()]
    measure.claim_threads(asked.threads)
    one, chosen = load(asked.layer), [name.strip() for name in asked.engines.split(";") if name.strip()]
    rows, load_before, neighbours = [], load_average(), Neighbours()
    with measure.pinned(asked.threads):
        engines = {name: make(one, asked.threads) for name, make in ENGINES.items() if not chosen or name in chosen}
        sys.stdout.write(f"{one.name}: {one.about}, {one.layer.vocab:,} x {one.layer.dim}\n")
        import torch

        torch.set_num_threads(asked.threads)
        work = cold.OtherLayers(cold.megabytes())
        sys.stdout.write(f"{'batch':>5}  {'':<32} {'cold':>20}  {'loop':>20}  {'same':>8}  {'worst':>8}\n")
        for batch in map(int, asked.batch.split(",")):
            found = list(measured(one, batch, engines, asked, work))
            rows += found
            for way in ("cold", "loop"):
                sys.stdout.write(f"{batch:>5}  fastest dense product, {way}: {found[0][way]['over']}\n")
            sys.stdout.write("".join(f"{line(row)}\n" for row in found))
            sys.stdout.flush()
    made = measure.environment(asked.threads, load=load_before, others=neighbours.share(), emptied_by=work.made)
    sys.stdout.write(f"{made['cpu']}, {asked.threads} threads, {', '.join(made['isa'])}, commit {made['commit']}\n")
    if asked.json:
        layer = {"name": one.name, "about": one.about, "vocab": one.layer.vocab, "dim": one.layer.dim}
        made_of = {name: repr(engine) for name, engine in engines.items()}
        measure.write_run(asked.json, {"environment": made, "layer": layer, "engines": made_of, "runs": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
