"""Hours of work in minutes or hours: threads that ask, engines that come and go, forks all the while; memory has to stay flat.

::

    python tests/storm/soak.py --seconds 3600 --json results/soak.json      (`just soak`)

Every answer is compared with float64's. Resident memory is looked at from the second quarter on, when every engine has been
loaded by every thread: what is used at the end may exceed it by a tenth and 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]

from structured import MAKERS, Oracle, Reference, Wanted, build_structured  # noqa: E402

import headlong as hl  # noqa: E402

THREADS = 16
PATIENCE = 600
"""Seconds by the clock after which a forked child is taken to hang, on a machine however busy."""
MARGIN = 64 << 20
AT_ONCE = 12
"""Children that may be at work together."""


class Soak:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.seconds, self.calls, self.forks = seconds, 0, 0
        self.faults: list[str] = []
        self.lock = threading.Lock()
        rng = np.random.default_rng(0)
        self.asked: list[tuple[Path, int, Oracle]] = []
        for number, (vocab, dim, scale) in enumerate(((3_000, 40, 0.5), (12_103, 64, 3.0), (700, 100, 1.0))):
            layer = hl.Layer((rng.standard_normal((vocab, dim)) * scale).astype(np.float32))
            vectors = rng.standard_normal((600, dim))
            calls: list[tuple[str, dict[str, Any]]] = [
                ("full", {}), ("cascade", {}), ("cascade", {"bits": 4}), ("adaptive", {"delta": 1e-3}),
                ("cascade", {"calibration": vectors}), ("cascade", {"blocks": True, "calibration": vectors}),
            ]  # fmt: skip
            for method, options in calls:
                path = folder / f"{number}-{len(self.asked)}.safetensors"
                hl.compile(layer, method, threads=2, **options).save(path)
                self.asked.append((path, dim, matrix(layer)))
        for kind in (one for one in MAKERS if one != "screens"):  # which proves nothing
            wanted = Wanted(900, 32, 3.0, np.float32, rng.standard_normal((64, 32)), rng)
            structured, oracle = build_structured(kind, wanted)
            path = folder / f"{kind}.safetensors"
            hl.compile(structured, threads=2).save(path)
            self.asked.append((path, 32, oracle))
        self.start = time.monotonic()

    @property
    def left(self) -> float:
        return self.start + self.seconds - time.monotonic()

    def ask(self, engine: Any, dim: int, oracle: Oracle, rng: np.random.Generator, batch: int) -> str:
        """One call of each verb; what is wrong with it."""
        hidden = rng.standard_normal((batch, dim))
        logits = oracle(hidden).exponents
        top = engine.topk(hidden, 5)
        best = np.sort(logits, axis=1)[:, :-6:-1]
        # The logits of a mixture are sums over its parts, whose normalisers are within what is promised.
        close = 0.05 if engine.name == "mixture" else 1e-9
        there = np.where(top.ids < 0, -np.inf, np.take_along_axis(logits, np.maximum(top.ids, 0), 1))
        if not np.allclose(there, best, rtol=close, atol=close) or not top.proved.all():
            return f"topk of {engine.name}, batch {batch}"
        alone = engine.topk(hidden, 5, eps=np.inf)
        if not np.allclose(np.where(alone.ids < 0, -np.inf, alone.logits), best, rtol=close, atol=close):
            return f"ids of {engine.name}, batch {batch}"
        drawn = engine.sample(hidden, 2, seed=7, top_p=0.9)
        again = engine.sample(hidden[:1], 2, seed=7, top_p=0.9)
        if (drawn.ids[0] != again.ids[0]).any():
            return f"sample of {engine.name}, batch {batch}"
        given = engine.log_prob(hidden, np.maximum(top.ids, 0))
        if not np.allclose(given.logits, np.take_along_axis(logits, np.maximum(top.ids, 0), 1), rtol=close, atol=close):
            return f"log_prob of {engine.name}, batch {batch}"
        exact = np.log(np.exp(logits - best[:, :1]).sum(axis=1)) + best[:, 0]
        if (np.abs(engine.lse(hidden).lse - exact) > 0.5).any():  # fifty times what is promised but for once in a thousand
            return f"lse of {engine.name}, batch {batch}"
        return ""

    def work(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while self.left > 0:
            path, dim, oracle = self.asked[int(rng.integers(len(self.asked)))]
            try:
                engine = hl.load(path, threads=int(rng.integers(1, 4)))
                for batch in rng.choice([1, 2, 8, 17, 64], 4):
                    wrong = self.ask(engine, dim, oracle, rng, int(batch))
                    with self.lock:
                        self.calls += 6
                        if wrong:
                            self.faults.append(wrong)
            except Exception as error:
                with self.lock:
                    self.faults.append(f"{type(error).__name__}: {error}"[:300])

    def fork(self) -> None:
        """A child every second, whatever became of those before; where the machine is so busy that many are left, fewer."""
        children: list[int] = []
        due = time.monotonic()
        while self.left > 0:
            children = self.reaped(children, AT_ONCE - 1)
            children.append(self.child(self.forks))
            self.forks += 1
            due = max(due + 1, time.monotonic())
            time.sleep(max(0.0, min(due - time.monotonic(), self.left)))
        self.reaped(children, 0)

    def child(self, number: int) -> int:
        """A forked process that loads an engine, asks, and says by its status whether an answer was wrong."""
        child = os.fork()
        if child:
            return child
        signal.alarm(PATIENCE)
        try:
            path, dim, oracle = self.asked[number % len(self.asked)]
            wrong = self.ask(hl.load(path, threads=2), dim, oracle, np.random.default_rng(number), 9)
            os._exit(1 if wrong else 0)
        except BaseException:
            os._exit(2)

    def reaped(self, children: list[int], most: int) -> list[int]:
        """The children that go on, no more than ``most`` of them: the eldest are waited for; a fault where one ended badly."""
        left = []
        for number, child in enumerate(children):
            wait = len(left) + len(children) - number > most
            found, status = os.waitpid(child, 0 if wait else os.WNOHANG)
            if found == 0:
                left.append(child)
            elif os.waitstatus_to_exitcode(status) != 0:
                with self.lock:
                    self.faults.append(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")
        return left


def matrix(layer: hl.Layer) -> Oracle:
    """All logits in float64."""
    wide = layer.weight.T.astype(np.float64)
    return lambda hidden: Reference(hidden @ wide, np.zeros(len(hidden)))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), given.seconds)
        threads = [threading.Thread(target=soak.work, args=(seed,)) for seed in range(given.threads)]
        threads.append(threading.Thread(target=soak.fork))
        for thread in threads:
            thread.start()
        memory = []
        while soak.left > 0:
            time.sleep(min(max(soak.left, 0.1), given.seconds / 60))
            memory.append(resident())
        for thread in threads:
            thread.join()
    quarter = memory[len(memory) // 4 : len(memory) // 2] or memory
    grown = max(memory[-5:]) - max(quarter)
    if grown > MARGIN + max(quarter) // 10:
        soak.faults.append(f"memory grew by {grown >> 20} MiB")
    record = {
        "version": hl.__version__, "seconds": given.seconds, "threads": given.threads, "calls": soak.calls, "forks": soak.forks,
        "faults": soak.faults[:20], "mebibytes": [size >> 20 for size in memory],
    }  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{soak.calls} calls, {soak.forks} forks, {max(memory) >> 20} MiB, {grown >> 20} grown, faults: {soak.faults[:5]}")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
