"""Each verb of one engine, with the n-th allocation of native code failing, for every n to 200 and each 61st after it.

Run by test_memory.py. The allocator is that of failing_new.cpp, loaded before everything. A failure is a MemoryError, or
nothing where native code can do without (a further thread, memory for sorting); the engine answers as before afterwards.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import headlong as hl
from headlong.answers import named_fields
from headlong.layers.experts import ExpertsLayer
from headlong.layers.tree import TreeLayer

ALLOCATOR = ctypes.CDLL(None)
ALLOCATOR.calls_since.restype = ctypes.c_long
ALLOCATOR.fail_on.argtypes = [ctypes.c_long]


def same(found: Any, expected: Any) -> bool:
    numbers = {name: part for name, part in named_fields(expected).items() if isinstance(part, np.ndarray)}
    return all(np.array_equal(getattr(found, name), part, equal_nan=True) for name, part in numbers.items())


def every_failure(name: str, ask: Callable[[], Any]) -> None:
    ask()  # the pool's threads are there, and what they keep
    expected, tries, failures, n = ask(), 0, 0, 0
    while True:
        n += 1 if n < 200 else 61
        tries += 1
        ALLOCATOR.fail_on(n)
        try:
            found = ask()
            done = ALLOCATOR.calls_since() < n
        except MemoryError:
            found, done = expected, False
            failures += 1
        ALLOCATOR.fail_on(0)
        assert same(found, expected), f"{name}: another answer with failure {n}"
        if done:
            break
        if n % 16 == 0:
            assert same(ask(), expected), f"{name}: another answer after failure {n}"
    assert same(ask(), expected)
    print(f"{name}: {failures} of {tries - 1} failures came as MemoryError", flush=True)
    assert failures > 0


def layer_of(family: str, rng: np.random.Generator) -> Any:
    weight = rng.standard_normal((1500, 40)).astype(np.float32)
    if family == "experts":
        return ExpertsLayer(weight[:3], weight, np.tile(np.arange(500), 3), [0, 500, 1000, 1500], 500)
    if family == "tree":
        below = np.arange(1, 1023).reshape(511, 2)
        return TreeLayer(weight[:511], None, np.where(below < 511, below, ~(below - 511)))
    return hl.Layer(weight, weight[:, 0])


def main(family: str, threads: int) -> None:
    rng = np.random.default_rng(0)
    layer = layer_of(family, rng)
    method = {"calibrated": "codes", "experts": "auto", "tree": "auto"}.get(family, family)
    options: dict[str, Any] = {"calibration": rng.standard_normal((200, 40))} if family == "calibrated" else {}

    def compiled() -> Any:
        return hl.compile(layer, method, threads=threads, **options)

    rows = rng.standard_normal((70, 40))
    engine = compiled()
    every_failure(f"compile, {family}", lambda: compiled().topk(rows[:1], 3))
    for batch in (rows[:1], rows[:9], rows):
        size, ids = f"{family}, batch {len(batch)}, threads {threads}", np.arange(3 * len(batch)).reshape(-1, 3)
        every_failure(f"topk, {size}", partial(engine.topk, batch, 5))
        every_failure(f"lse, {size}", partial(engine.lse, batch))
        every_failure(f"log_prob, {size}", partial(engine.log_prob, batch, ids))
        every_failure(f"sample, {size}", partial(engine.sample, batch, 2, seed=1, top_p=0.9))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
