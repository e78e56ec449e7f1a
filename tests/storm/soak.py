"""Hours of work in minutes or hours: threads that ask, engines that come and go, forks all the while; memory has to stay flat.

::

    python tests/storm/soak.py --seconds 3600 --json soak.json      (`just soak`)

Every answer is compared with float64's. Resident memory is looked at from the second quarter on, when every engine has been
loaded by every thread: what is used at the end may exceed it by a tenth and 64 MiB. Beside the engines that each thread loads
and drops, all of them share some that adapt to their queries, and now and then begin anew. With ``--torch`` PyTorch computes
products all the while in a thread of its own, whose team changes its size; they are compared, too. Seconds are those in which
the process ran: one that is stopped for a while goes on where it was. The record is written once a minute.
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

from cases import (  # noqa: E402
    MAKERS,
    Oracle,
    Reference,
    Wanted,
    build_structured,
)

import headlong as hl  # noqa: E402
from headlong.bench.measure import commit  # noqa: E402

THREADS = 16
PATIENCE = 600
"""Seconds after which a forked child is taken to hang, on a machine however busy."""
STEP = 1.0
"""What one look at the clock adds at most: a process that was stopped has not been at work."""
ANEW = 400
"""Calls of which one gives the threads a new adapting engine."""
LATE = 10.0
"""Seconds of forks that a busy machine may catch up with."""
MARGIN = 64 << 20
AT_ONCE = 12
"""Children that may be at work together."""


class Soak:
    def __init__(self, folder: Path, seconds: float, threads: int) -> None:
        self.threads = threads
        self.seconds, self.calls, self.forks, self.plans, self.products = seconds, 0, 0, 0, 0
        self.faults: list[str] = []
        self.commit = commit()
        self.memory: list[int] = []
        self.children: dict[int, float] = {}
        self.all_forked = False
        self.lock, self.forking = threading.Lock(), threading.Lock()
        rng = np.random.default_rng(0)
        self.asked: list[tuple[Path, int, Oracle]] = []
        for number, (vocab, dim, scale) in enumerate(((3_000, 40, 0.5), (12_103, 64, 3.0), (700, 100, 1.0))):
            layer = hl.Layer((rng.standard_normal((vocab, dim)) * scale).astype(np.float32))
            vectors = rng.standard_normal((600, dim))
            calls: list[tuple[str, dict[str, Any]]] = [
                ("full", {}), ("codes", {}),
                ("codes", {"calibration": vectors}), ("codes", {"blocks": True, "calibration": vectors}),
            ]  # fmt: skip
            for method, options in calls:
                path = folder / f"{number}-{len(self.asked)}.safetensors"
                hl.compile(layer, method, threads=2, **options).save(path)
                self.asked.append((path, dim, matrix(layer)))
        for kind in MAKERS:
            wanted = Wanted(900, 32, 3.0, np.float32, rng.standard_normal((64, 32)), rng)
            structured, oracle = build_structured(kind, wanted)
            path = folder / f"{kind}.safetensors"
            hl.compile(structured, threads=2).save(path)
            self.asked.append((path, 32, oracle))
        self.asked.append(changed(folder / "changed.safetensors", rng))
        self.layer = hl.Layer((3 * rng.standard_normal((9_000, 48))).astype(np.float32))
        self.truth, self.adapting = matrix(self.layer), self.learner()
        self.now, self._seen = 0.0, time.monotonic()

    def learner(self) -> Any:
        return hl.compile(self.layer, "codes", adapt=True, threads=2)

    @property
    def left(self) -> float:
        return self.seconds - self.now

    def tick(self) -> None:
        """The clock goes on, by a second at most."""
        seen = time.monotonic()
        self.now, self._seen = self.now + min(seen - self._seen, STEP), seen

    def ask(self, engine: Any, dim: int, oracle: Oracle, rng: np.random.Generator, batch: int) -> str:
        """One call of each verb; what is wrong with it."""
        hidden = rng.standard_normal((batch, dim))
        logits = oracle(hidden).exponents
        top = engine.topk(hidden, 5)
        best = np.sort(logits, axis=1)[:, :-6:-1]
        # The logits of a mixture are sums over its parts, whose normalisers are within what is promised.
        close = 0.05 if engine.name == "mixture" else 1e-9
        there = np.where(top.ids < 0, -np.inf, np.take_along_axis(logits, np.maximum(top.ids, 0), 1))
        if not np.allclose(there, best, rtol=close, atol=close) or not (top.proved.all() or engine.promise.delta > 0):
            return f"topk of {engine.name}, batch {batch}"
        alone = engine.topk(hidden, 5, eps=np.inf)
        if not np.allclose(np.where(alone.ids < 0, -np.inf, alone.logits), best, rtol=close, atol=close):
            return f"ids of {engine.name}, batch {batch}"
        drawn = engine.sample(hidden, 2, seed=7, top_p=0.9)
        again = engine.sample(hidden[:1], 2, seed=7, top_p=0.9)
        # A new plan may come between the two, and decide a nucleus that is not proved another way.
        sure = drawn.proved[0] & again.proved[0] if hasattr(engine, "adapted") else slice(None)
        if (drawn.ids[0] != again.ids[0])[sure].any():
            return f"sample of {engine.name}, batch {batch}"
        given = engine.log_prob(hidden, np.maximum(top.ids, 0))
        if not np.allclose(given.logits, np.take_along_axis(logits, np.maximum(top.ids, 0), 1), rtol=close, atol=close):
            return f"log_prob of {engine.name}, batch {batch}"
        exact = np.log(np.exp(logits - best[:, :1]).sum(axis=1)) + best[:, 0]
        if (np.abs(engine.lse(hidden).lse - exact) > 0.5).any():  # fifty times what is promised, except with probability 1e-3
            return f"lse of {engine.name}, batch {batch}"
        return ""

    def work(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while self.left > 0:
            try:
                engine, dim, oracle = self.chosen(int(rng.integers(len(self.asked) + 2)), int(rng.integers(1, 4)))
                if rng.integers(ANEW) == 0:
                    with self.lock:
                        self.plans += self.adapting.adapted
                        self.adapting = self.learner()
                for batch in rng.choice([1, 2, 8, 17, 64], 4):
                    wrong = self.ask(engine, dim, oracle, rng, int(batch))
                    with self.lock:
                        self.calls += 6
                        if wrong:
                            self.faults.append(wrong)
            except Exception as error:
                with self.lock:
                    self.faults.append(f"{type(error).__name__}: {error}"[:300])

    def beside(self) -> None:
        """PyTorch's products, on one to three threads: each entry is the sum of 600 ones."""
        import torch

        ones = torch.ones(600, 600)
        while self.left > 0:
            torch.set_num_threads(1 + self.products % 3)
            right = bool((ones @ ones == 600).all())
            with self.lock:
                self.products += 1
                if not right:
                    self.faults.append("a product of PyTorch")

    def chosen(self, number: int, threads: int) -> tuple[Any, int, Oracle]:
        """An engine from a file, or the one that adapts and that all threads share."""
        if number >= len(self.asked):
            return self.adapting, self.layer.dim, self.truth
        path, dim, oracle = self.asked[number]
        return hl.load(path, threads=threads), dim, oracle

    def fork(self) -> None:
        """A child every second, whatever became of those before; where the machine is so busy that many are left, fewer."""
        due = self.now
        while self.left > 0:
            while self.now >= due and len(self.children) < AT_ONCE:
                with self.forking:  # the child never takes it
                    self.children[self.child(self.forks)] = self.now
                self.forks += 1
                due = max(due + 1, self.now - LATE)
            time.sleep(0.05)
        self.all_forked = True

    def child(self, number: int) -> int:
        """A forked process that loads an engine, asks, and says by its status whether an answer was wrong."""
        child = os.fork()
        if child:
            return child
        try:
            engine, dim, oracle = self.chosen(number % (len(self.asked) + 4), 2)
            wrong = self.ask(engine, dim, oracle, np.random.default_rng(number), 9)
            os._exit(1 if wrong else 0)
        except BaseException:
            os._exit(2)

    def reap(self) -> None:
        """Children that ended badly are faults. In a thread of its own: one that forks waits for Python's lock often enough."""
        while not self.all_forked or self.children:
            try:
                child, status = os.wait()
            except ChildProcessError:
                time.sleep(0.05)
                continue
            with self.forking:
                del self.children[child]
            if (code := os.waitstatus_to_exitcode(status)) != 0:
                with self.lock:
                    self.faults.append(f"a forked child ended with {code}")

    def end_those_that_hang(self) -> None:
        with self.forking:
            for child, begun in self.children.items():
                if self.now - begun > PATIENCE:
                    os.kill(child, signal.SIGKILL)

    def grown(self) -> int:
        """Bytes by which the last minutes exceed the second quarter."""
        quarter = self.memory[len(self.memory) // 4 : len(self.memory) // 2] or self.memory
        return max(self.memory[-5:]) - max(quarter)

    def record(self) -> dict[str, Any]:
        return {
            "version": hl.__version__, "commit": self.commit,
            "seconds": round(self.now), "threads": self.threads, "calls": self.calls,
            "forks": self.forks, "products of PyTorch": self.products,
            "plans adapted": self.plans + self.adapting.adapted, "faults": self.faults[:20],
            "mebibytes": [size >> 20 for size in self.memory],
        }  # fmt: skip


def changed(path: Path, rng: np.random.Generator) -> tuple[Path, int, Oracle]:
    """An engine some of whose classes came and went."""
    weight = rng.standard_normal((4_000, 40)).astype(np.float32)
    settled = hl.compile(hl.Layer(weight[:3_900]), "codes", threads=2)
    gone = rng.choice(4_000, 200, replace=False)
    settled.with_rows(weight[3_900:]).without(gone).save(path)
    wide = weight.T.astype(np.float64)

    def oracle(hidden: Any) -> Reference:
        logits = hidden @ wide
        logits[:, gone] = -np.inf
        return Reference(logits, np.zeros(len(hidden)))

    return path, 40, oracle


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
    parser.add_argument("--no-forks", action="store_true", help="for the thread sanitizer, in which a forked child hangs")
    parser.add_argument("--torch", action="store_true", help="PyTorch's operations beside")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), given.seconds, given.threads)
        threads = [threading.Thread(target=soak.work, args=(seed,)) for seed in range(given.threads)]
        threads += [] if given.no_forks else [threading.Thread(target=soak.fork), threading.Thread(target=soak.reap)]
        threads += [threading.Thread(target=soak.beside)] if given.torch else []
        for thread in threads:
            thread.start()
        due = 0.0
        while soak.left > 0:
            time.sleep(0.1)
            soak.tick()
            soak.end_those_that_hang()
            if soak.now >= due:
                due += given.seconds / 60
                soak.memory.append(resident())
                write(soak, given.json)
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            soak.tick()  # children have their time still
            soak.end_those_that_hang()
    if (grown := soak.grown()) > MARGIN + soak.memory[len(soak.memory) // 2] // 10:
        soak.faults.append(f"memory grew by {grown >> 20} MiB")
    write(soak, given.json)
    most = max(soak.memory) >> 20
    counts = f"{soak.calls} calls, {soak.forks} forks, {soak.products} products of PyTorch"
    print(f"{counts}, {most} MiB, {grown >> 20} grown, faults: {soak.faults[:5]}")
    return 1 if soak.faults else 0


def write(soak: Soak, path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(soak.record(), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
