"""Calls between PyTorch's operations: on our own threads, in PyTorch's OpenMP team, and as the library chooses by itself.

    python benchmarks/calls_beside_pytorch.py --layer gpt --layer smollm2 --runs 8 --json results/how.json

Each run is a fresh process. In it the three ways take turns of some calls in a fresh order. Before each call PyTorch multiplies
other weights, more than the caches hold; after it comes PyTorch's dynamic int8 product of the same layer, whose time says what
our threads leave of the processors. ``--busy 0,1,2`` runs so many processes that only count beside all this; ``--engines 2``
has another engine asked all the while by another Python thread; ``--alone`` leaves PyTorch's operations out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

WAYS = {"own threads": 0, "PyTorch's team": 1, "chosen": -1}
TURN = 0.4
"""Seconds of one way, before another has its turn: a program does not change its threads from call to call either."""
QUIET, MOST_LEFT_OUT = 0.05, 12


def say(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 1)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """While so many processes count."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def run(name: str, threads: int, seconds: float, loads: list[int], others: int, alone: bool) -> None:
    """What one process measures: a row for each load and kind of call."""
    import torch

    import headlong as hl
    from common.real_layers import load
    from headlong import native
    from headlong.bench import cold, rivals
    from headlong.bench.machine_load import Neighbours

    torch.set_num_threads(threads)
    one, module, rng = load(name), native.loaded(), random.Random(0)
    engines = {
        "ids": hl.compile(one.layer, calibration=one.train, eps=math.inf, threads=threads),
        "default": hl.compile(one.layer, calibration=one.train, threads=threads),
    }
    queries = [one.valid[i : i + 1] for i in range(0, len(one.valid), 8)]
    product = rivals.contestant("torch int8 dynamic", one.layer, 10, threads)
    prepared = [product.prepare(query) for query in queries]
    work: Any = (lambda: None) if alone else cold.OtherLayers(cold.megabytes())
    over = threading.Event()

    def asks() -> None:
        while not over.is_set():
            engines["default"].topk(queries[0], 10)

    def turns(engine: Any, undisturbed: bool) -> dict[str, Any]:
        """Turns of all ways; a few in which other programs took more than QUIET of the processors are not counted."""
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        after: dict[str, list[float]] = {way: [] for way in WAYS}
        rounds, end, left_out = dict.fromkeys(WAYS, 0), perf_counter() + seconds, 0
        while perf_counter() < end or min(map(len, times.values())) == 0:
            for way in rng.sample(list(WAYS), len(WAYS)):
                module.tell_way(WAYS[way])
                neighbours, begun, asked = Neighbours(), module.team_rounds(), perf_counter()
                calls: list[float] = []
                products: list[float] = []
                while perf_counter() < asked + TURN:
                    at = len(calls) % len(queries)
                    work()
                    start = perf_counter()
                    engine.topk(queries[at], 10)
                    middle = perf_counter()
                    calls.append(middle - start)
                    if not alone:
                        product.call(prepared[at])
                        products.append(perf_counter() - middle)
                if undisturbed and left_out < MOST_LEFT_OUT and neighbours.share() > QUIET:
                    left_out += 1
                    end += TURN
                    continue
                times[way] += calls
                after[way] += products
                rounds[way] += module.team_rounds() - begun
        row: dict[str, Any] = {"turns left out": left_out}
        for way, seen in times.items():
            row[way] = {"calls": len(seen), "team rounds a call": round(rounds[way] / len(seen), 2)}
            row[way] |= {"median_us": microseconds(statistics.median(seen)), "mean_us": microseconds(statistics.mean(seen))}
            if after[way]:
                row[way]["int8 after_us"] = microseconds(statistics.median(after[way]))
        return row

    for count in loads:
        asking = [threading.Thread(target=asks) for _ in range(others)]
        for thread in asking:
            thread.start()
        with busy(count):
            for kind, engine in engines.items():
                row = {"layer": name, "call": kind, "busy": count, "other engines": others, "alone": alone}
                say(row | turns(engine, undisturbed=count == 0))
        over.set()
        for thread in asking:
            thread.join()
        over.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", action="append", required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load and kind of call")
    parser.add_argument("--busy", default="0")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        loads = [int(count) for count in asked.busy.split(",")]
        run(asked.layer[0], asked.threads, asked.seconds, loads, asked.engines - 1, asked.alone)
        return
    from headlong.bench import measure
    from headlong.bench.machine_load import Neighbours, load_average

    load, neighbours, rows = load_average(), Neighbours(), []
    os.environ |= {"OMP_NUM_THREADS": str(asked.threads)}
    for number in range(asked.runs):
        for name in asked.layer:
            more = ["--one", "--layer", name, "--threads", str(asked.threads), "--seconds", str(asked.seconds)]
            more += ["--busy", asked.busy, "--engines", str(asked.engines), *(["--alone"] if asked.alone else [])]
            process = subprocess.Popen([sys.executable, __file__, *more], stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                rows.append({"run": number} | json.loads(line))
                say(rows[-1])
            if process.wait() != 0:
                raise SystemExit(f"the run of {name} ended with {process.returncode}")
    if asked.json is not None:
        made = measure.environment(asked.threads, load=load, others=neighbours.share())
        name = f"{asked.busy} busy processes, {asked.engines} engines" + (", nothing between calls" if asked.alone else "")
        told = f"--runs {asked.runs} --seconds {asked.seconds} --busy {asked.busy} --engines {asked.engines}"
        layers = " ".join(f"--layer {layer}" for layer in asked.layer)
        command = f"python benchmarks/calls_beside_pytorch.py {layers} {told}" + (" --alone" if asked.alone else "")
        measure.keep(asked.json, "calls beside PyTorch", {"environment": made, "rows": rows}, name, command)


if __name__ == "__main__":
    main()
