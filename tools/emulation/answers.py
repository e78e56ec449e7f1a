"""The same saved engines, asked on x86-64 and then on each emulated level: ids, proofs and samples equal to the bit.

    python tools/emulation/answers.py write FOLDER --cases 60            on x86-64: the storm's cases, compiled, saved, asked
    tools/arm.sh python tools/emulation/answers.py compare FOLDER        on AArch64: loaded, asked, compared
    HEADLONG_ISA=avx512vnni python tools/emulation/answers.py compare FOLDER

Layers are the storm's: every spectrum, storage type, link, bias, promise and plan that it throws, up to a size. The engine goes
from one processor to the other as a file, and the hidden vectors with it; answers do not, only what they are compared with.
Logits and normalisers are sums in a level's own order and not compared here: the oracle's tests bound those.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong import native
from headlong.errors import HeadlongError

LARGEST = 1_500_000  # numbers of a layer: emulation is slow
ROWS = 24  # of a batch, at the most


def level() -> str:
    return os.environ.get("HEADLONG_ISA") or native.levels()[-1]


def calls(engine: Any, hidden: np.ndarray, case: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    k, seed, vocab = case["k"], case["number"], engine.layer.vocab
    few = hidden[: min(4, len(hidden))]
    yield "topk", lambda: engine.topk(hidden, k)
    yield "topk of one", lambda: engine.topk(hidden[:1], k)
    yield "ids alone", lambda: engine.topk(hidden, k, eps=float("inf"))
    yield "topk of some", lambda: engine.topk(few, min(k, vocab - vocab // 3), exclude=np.arange(0, vocab - 1, 3))
    yield "samples", lambda: engine.sample(hidden, 3, seed=seed)
    yield "warmer samples", lambda: engine.sample(few, 2, seed=seed, temperature=1.5)
    yield "samples of the best", lambda: engine.sample(few, 2, seed=seed, top_k=min(20, vocab))


def asked(call: Callable[[], Any]) -> dict[str, np.ndarray]:
    """What a call gives, or which error: either is the same everywhere."""
    try:
        found = call()
    except HeadlongError as error:
        return {"error": np.array(type(error).__name__)}
    return {"ids": np.asarray(found.ids), "proved": np.asarray(found.proved)}


def answers(folder: Path, case: dict[str, Any]) -> dict[str, np.ndarray]:
    engine = hl.load(folder / "engine.safetensors", threads=case["threads"])
    if case["looks"] and isinstance(engine, hl.Engine) and (engine.plan.levels or engine.plan.arrays):
        engine = engine.reading_densely(float("inf"))
    hidden = np.load(folder / "hidden.npy")
    return {f"{name}: {part}": array for name, call in calls(engine, hidden, case) for part, array in asked(call).items()}


def write(folder: Path, count: int) -> None:
    """The first cases of the storm that fit and that a file can keep, in order."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests" / part) for part in ("storm", "helpers")]
    from cases import build, compiled, draw

    native.isa()  # without the native module every case would be refused, for ever
    number = made = 0
    while made < count:
        case, number = draw(number), number + 1
        if case.vocab * case.dim > LARGEST or case.method == "shards":
            continue
        thrown = build(case)
        options = dict(case.options) | {"eps": case.eps, "delta": case.delta, "seed": case.number}
        options |= {} if thrown.vectors is None else {"calibration": thrown.vectors}
        here = folder / f"{case.number:04d}"
        try:
            engine = compiled(case, thrown.layer, options)
            here.mkdir(parents=True, exist_ok=True)
            engine.save(here / "engine.safetensors")
        except HeadlongError:  # refused, or nothing that a file can keep
            continue
        np.save(here / "hidden.npy", thrown.hidden[:ROWS])
        facts = {name: value for name, value in dataclasses.asdict(case).items() if name != "options"}
        np.savez(here / "answers.npz", **answers(here, facts))
        (here / "case.json").write_text(json.dumps(facts))
        made += 1
    sys.stdout.write(f"{made} engines of {number} cases, answered by {level()}\n")


def compare(folder: Path, ended: Path | None) -> int:
    """One line for each engine, as tools/emulation/resume.py writes them; 1 where an answer differs."""
    lines = [json.loads(line) for line in ended.read_text().splitlines()] if ended and ended.exists() else []
    before = {line["test"] for line in lines if line["ended"] == "passed"}
    different = 0
    for here in sorted(folder.glob("*/")):
        if here.name in before:
            continue
        start = time.monotonic()
        case = json.loads((here / "case.json").read_text())
        ours, theirs = answers(here, case), dict(np.load(here / "answers.npz"))
        wrong = [name for name in theirs if name not in ours or not np.array_equal(ours[name], theirs[name])]
        different += bool(wrong)
        if wrong:
            sys.stdout.write(f"case {here.name} ({case['method']}, {case['spectrum']}): {', '.join(wrong)} differ\n")
        if ended:
            line = {"test": here.name, "ended": "failed" if wrong else "passed", "seconds": round(time.monotonic() - start, 1)}
            with ended.open("a") as file:
                file.write(json.dumps(line) + "\n")
    sys.stdout.write(f"{different} engines answer otherwise on {level()}\n")
    return int(different > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--ended", type=Path, help="a file of engines that were compared before")
    given = parser.parse_args()
    if given.what == "compare":
        return compare(given.folder, given.ended)
    write(given.folder, given.cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
