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
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl

THREADS = 16
MARGIN = 64 << 20


class Soak:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.start, self.seconds, self.calls, self.forks = time.monotonic(), seconds, 0, 0
        self.faults: list[str] = []
        self.lock = threading.Lock()
        rng = np.random.default_rng(0)
        self.layers = [
            hl.Layer((rng.standard_normal((vocab, dim)) * scale).astype(np.float32))
            for vocab, dim, scale in ((3_000, 40, 0.5), (12_103, 64, 3.0), (700, 100, 1.0))
        ]
        self.files: list[tuple[int, Path]] = []
        for number, layer in enumerate(self.layers):
            for method, options in (("full", {}), ("cascade", {}), ("cascade", {"bits": 4}), ("adaptive", {"delta": 1e-3})):
                path = folder / f"{number}-{len(self.files)}.safetensors"
                hl.compile(layer, method, threads=2, **options).save(path)
                self.files.append((number, path))

    @property
    def left(self) -> float:
        return self.start + self.seconds - time.monotonic()

    def ask(self, engine: Any, number: int, rng: np.random.Generator, batch: int) -> str:
        """One call, or several; what is wrong with it."""
        layer = self.layers[number]
        hidden = rng.standard_normal((batch, layer.dim))
        logits = hidden @ layer.weight.T.astype(np.float64)
        top = engine.topk(hidden, 5)
        best = np.sort(logits, axis=1)[:, :-6:-1]
        if not np.allclose(np.take_along_axis(logits, top.ids, 1), best, rtol=1e-9, atol=1e-9) or not top.proved.all():
            return f"topk of {engine.name}, batch {batch}"
        drawn = engine.sample(hidden, 2, seed=7, top_p=0.9)
        again = engine.sample(hidden[:1], 2, seed=7, top_p=0.9)
        if (drawn.ids[0] != again.ids[0]).any():
            return f"sample of {engine.name}, batch {batch}"
        given = engine.log_prob(hidden, top.ids)
        if not np.allclose(given.logits, best, rtol=1e-9, atol=1e-9):
            return f"log_prob of {engine.name}, batch {batch}"
        exact = np.log(np.exp(logits - best[:, :1]).sum(axis=1)) + best[:, 0]
        if (np.abs(engine.lse(hidden).lse - exact) > 0.5).any():  # fifty times what is promised but for once in a thousand
            return f"lse of {engine.name}, batch {batch}"
        return ""

    def work(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while self.left > 0:
            number, path = self.files[int(rng.integers(len(self.files)))]
            try:
                engine = hl.load(path, threads=int(rng.integers(1, 4)))
                for batch in rng.choice([1, 2, 8, 17, 64], 4):
                    wrong = self.ask(engine, number, rng, int(batch))
                    with self.lock:
                        self.calls += 5
                        if wrong:
                            self.faults.append(wrong)
            except Exception as error:
                with self.lock:
                    self.faults.append(f"{type(error).__name__}: {error}"[:300])

    def fork(self) -> None:
        """A child that asks and ends, a second after the last one."""
        while self.left > 0:
            child = os.fork()
            if child == 0:
                try:
                    number, path = self.files[self.forks % len(self.files)]
                    wrong = self.ask(hl.load(path, threads=2), number, np.random.default_rng(self.forks), 9)
                    os._exit(1 if wrong else 0)
                except BaseException:
                    os._exit(2)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != 0:
                with self.lock:
                    self.faults.append(f"a forked child ended with {status}")
            self.forks += 1
            time.sleep(1)


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
