"""What the library once got wrong, by public calls alone, so that any version of it can be asked what holds.

::

    python tests/storm/by_item.py                          this version
    PYTHONPATH=OLDER/src python tests/storm/by_item.py     another one

Each check runs in a process of its own, which a version that hangs or aborts does not survive. The tests proper, which know
how this version is made inside, are named in README.md beside what came of an older version here.
"""

from __future__ import annotations

import copy
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl

SECONDS, MEMORY = 25, 5 << 30
RNG = np.random.default_rng(0)


def layer_of(vocab: int, dim: int, size: float = 1.0) -> Any:
    return hl.Layer((size * RNG.standard_normal((vocab, dim))).astype(np.float32))


def a_batch_runs_away() -> bool:
    weight = RNG.normal(size=(12_103, 64)) * np.exp(0.4 * RNG.normal(size=(12_103, 1)))
    hidden = RNG.normal(size=(520, 64))
    hidden *= 60 / (hidden @ weight.T).std(axis=1, keepdims=True)
    engine = hl.compile(hl.Layer(weight.astype(np.float32)), "codes", calibration=hidden[:512], threads=2)
    start = time.process_time()
    engine.topk(hidden[512:], 10)
    return time.process_time() - start < 2


def the_winner_has_no_probability() -> bool:
    engine = hl.compile(layer_of(9_000, 64, 125.0), "codes", calibration=RNG.normal(size=(512, 64)), threads=2)
    top = engine.topk(RNG.normal(size=(64, 64)), 5, eps=np.inf)
    return bool(np.isfinite(top.log_probs[:, 0]).all() and np.isfinite(top.lse).all())


def the_pool_never_shrinks() -> bool:
    layer, row = layer_of(40_000, 64), RNG.standard_normal((1, 64))
    hl.compile(layer, "full", threads=64).topk(row, 3)
    return len(os.listdir("/proc/self/task")) <= 2 * len(os.sched_getaffinity(0)) + 2


def ctrl_c_waits_for_the_call() -> bool:
    engine = hl.compile(layer_of(40_000, 96), "full", threads=2)
    rows = RNG.standard_normal((10_000, 96))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell begins in the background ignores it
    sent: list[float] = []

    def send() -> None:
        time.sleep(0.3)
        sent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()
    try:
        engine.topk(rows, 3, eps=1e-6)
    except KeyboardInterrupt:
        return time.process_time() - sent[0] < 1
    return False


def a_flipped_bit_is_accepted() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path, noticed = Path(folder) / "engine.safetensors", 0
        hl.compile(layer_of(3_000, 32), "codes").save(path)
        whole = path.read_bytes()
        for place in np.linspace(len(whole) // 2, len(whole) - 1, 20).astype(int):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
            try:
                hl.load(path)
            except hl.errors.HeadlongError:
                noticed += 1
    return noticed == 20


def written_weights_are_saved_with_old_codes() -> bool:
    weight = RNG.standard_normal((3_000, 32)).astype(np.float32)
    engine = hl.compile(hl.Layer(weight), "codes")
    weight[5] *= 50
    with tempfile.TemporaryDirectory() as folder:
        try:
            engine.save(Path(folder) / "engine.safetensors")
        except hl.errors.HeadlongError:
            return True
    return False


def a_structured_file_is_read_as_one_matrix() -> bool:
    children = np.where((below := np.arange(1, 127).reshape(63, 2)) < 63, below, ~(below - 63))
    layer = hl.structured.TreeLayer(RNG.standard_normal((63, 16)).astype(np.float32), None, children)
    hidden = RNG.standard_normal((3, 16)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        layer.save(Path(folder) / "tree.safetensors")
        np.save(Path(folder) / "hidden.npy", hidden)
        asked = [sys.executable, "-m", "headlong", "topk", "tree.safetensors", "hidden.npy", "-k", "3", "--json"]
        said = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False).stdout
    expected = hl.compile(layer).topk(hidden, 3).ids.tolist()
    return all(str(ids) in said for ids in expected)


def engines_are_not_copied() -> bool:
    engine = hl.compile(layer_of(500, 16), "codes")
    copied = pickle.loads(pickle.dumps(copy.deepcopy(engine)))  # noqa: S301
    return bool((copied.topk(np.ones((1, 16)), 3).ids == engine.topk(np.ones((1, 16)), 3).ids).all())


def a_saved_files_permissions_are_widened() -> bool:
    engine = hl.compile(layer_of(500, 16), "codes")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.safetensors"
        engine.save(path)
        path.chmod(0o600)
        engine.save(path)
        return path.stat().st_mode & 0o777 == 0o600


def a_draw_among_ties_sorts_all_classes() -> bool:
    engine = hl.compile(hl.Layer(np.tile(RNG.standard_normal((1, 32)), (160_000, 1)).astype(np.float32)), "full", threads=1)
    row, spent = RNG.standard_normal((1, 32)), []
    for _ in range(9):
        start = time.process_time()
        engine.sample(row, top_p=0.9, seed=1)
        spent.append(time.process_time() - start)
    return min(spent) < 0.025


CHECKS: list[tuple[str, Callable[[], bool]]] = [
    ("1", a_batch_runs_away), ("2", the_winner_has_no_probability),
    ("4", the_pool_never_shrinks), ("5", ctrl_c_waits_for_the_call), ("6", a_flipped_bit_is_accepted),
    ("7", written_weights_are_saved_with_old_codes), ("8", a_structured_file_is_read_as_one_matrix),
    ("10", engines_are_not_copied), ("10", a_saved_files_permissions_are_widened),
    ("10", a_draw_among_ties_sorts_all_classes),
]  # fmt: skip


def apart(number: int) -> str:
    """What came of a check in a process of its own."""
    command = [sys.executable, __file__, str(number)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode < 0:
        ended = signal.Signals(-done.returncode).name
        return "hangs" if ended == "SIGXCPU" else f"aborts ({ended})"
    return done.stdout.strip() or (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:120]


def main() -> int:
    if len(sys.argv) > 1:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
        print("mended" if CHECKS[int(sys.argv[1])][1]() else "as its name says")
        return 0
    print(f"headlong {hl.__version__} of {Path(hl.__file__).parents[1].name}")
    well = True
    for number, (item, check) in enumerate(CHECKS):
        said = apart(number)
        well = well and said == "mended"
        print(f"| {item} | {check.__name__.replace('_', ' ')} | {said} |", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
