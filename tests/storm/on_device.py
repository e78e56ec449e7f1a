"""The storm's layers and calls on a GPU: every verb against float64.

::

    python tests/storm/on_device.py --seconds 60 --jobs 8 --json results/device.json

The cases are those of ``cases.py``, with vectors in float32, float16 or bfloat16 in turn. Beside the storm's own checks: a row
that is NaN leaves the others as they are, and graphs that were captured with other vectors answer within what they say.
Without a GPU the same in Triton's interpreter, but for the graphs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]
if not any(Path("/dev").glob("nvidia*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import checks  # noqa: E402
import numpy as np  # noqa: E402
from cases import Case, build, draw, facts_of  # noqa: E402

import headlong as hl  # noqa: E402
from devices import GPU, PLACE, tensor, torch  # noqa: E402
from headlong.answers import named_fields  # noqa: E402
from headlong.bench import measure  # noqa: E402
from headlong.engines.class_masks import class_mask  # noqa: E402
from oracle import Truth  # noqa: E402

KINDS = ("float32", "float16", "bfloat16")
VERBS = ("topk", "log_prob", "lse", "sample")


class InNumpy:
    """An engine on the device that is asked in NumPy: its vectors are tensors of one type, its answers arrays."""

    def __init__(self, engine: Any, kind: str, largest: float) -> None:
        self.engine, self.kind = engine, getattr(torch, kind)
        self.promise = engine.promise._replace(eps=engine.promise.eps + largest * 2.0**-23)  # answers are float32

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if name not in VERBS:
            return found

        def verb(hidden: Any, *rest: Any, **more: Any) -> Any:
            return arrays(found(tensor(hidden).to(self.kind), *rest, **more))

        return verb


def arrays(answer: Any) -> Any:
    parts = answer if isinstance(answer, tuple) else named_fields(answer).values()
    return type(answer)(*(arrays(part) if isinstance(part, tuple) else _array(part) for part in parts))


def _array(part: Any) -> Any:
    return (part.double() if part.is_floating_point() else part).cpu().numpy() if hasattr(part, "cpu") else part


def thrown(number: int) -> Case:
    """The storm's case, as a device is asked it: nothing is learned from vectors, and all is proved."""
    case = replace(draw(number), method="full", options={}, calibration="none", delta=0.0)
    return case if GPU else replace(case, vocab=min(case.vocab, 300), batch=min(case.batch, 3), k=min(case.k, 5, case.vocab))


def run(number: int) -> checks.Found:
    found, case, kind = checks.Found(), thrown(number), KINDS[number % 3]
    made = build(case)
    largest = float(torch.finfo(getattr(torch, kind)).max)
    hidden = torch.from_numpy(np.clip(made.hidden, -largest, largest)).to(getattr(torch, kind)).double().numpy()
    made = made._replace(hidden=hidden)
    masks = checks._masks(case)
    marks = class_mask(masks.get("allowed"), masks.get("exclude"), len(hidden), case.vocab)
    live = None if marks is None else np.broadcast_to(marks == 1, (len(hidden), case.vocab))
    facts, whole = facts_of(made, live), facts_of(made, None)
    extent = np.abs(np.concatenate([whole.log_probs, whole.lse[:, None]], axis=1)).max()
    engine = InNumpy(hl.compile(made.layer, case.method, eps=case.eps, seed=number, device=PLACE), kind, float(extent))
    checks._topk(found, case, engine, hidden, facts, masks)
    checks._ids_alone(found, case, engine, hidden, facts, masks)
    checks._given(found, engine, hidden, whole)
    checks._lse(found, engine, hidden, facts, masks)
    checks._sample(found, case, engine, hidden, facts, masks)
    _beside_nan(found, engine, hidden, case.k, whole)
    if GPU:
        _captured(found, engine, hidden, case.k, whole)
    return found


def _beside_nan(found: checks.Found, engine: InNumpy, hidden: Any, k: int, facts: Truth) -> None:
    spoilt = np.concatenate([hidden, hidden[:1]])
    spoilt[-1, -1] = np.nan
    top, drawn = engine.topk(spoilt, k), engine.sample(spoilt, seed=1)
    answered = (top.ids[-1] != -1).any() or top.proved[-1] or not np.isnan(top.lse[-1])
    if answered or drawn.ids[-1, 0] != -1 or drawn.proved[-1, 0]:
        found.fault("NaN", f"is answered by {top.ids[-1]}, {drawn.ids[-1]}")
    checks.ranked(found, "beside NaN", replace(top, ids=top.ids[:-1], logits=top.logits[:-1]), facts)


def _captured(found: checks.Found, engine: InNumpy, hidden: Any, k: int, facts: Truth) -> None:
    """A graph of other vectors is given these: what it calls proved is right, what it says of its error is true."""
    static = tensor(np.zeros_like(hidden)).to(engine.kind)
    engine.engine.topk(static, k), engine.engine.sample(static, seed=3)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        answers = engine.engine.topk(static, k), engine.engine.sample(static, seed=3)
    static.copy_(tensor(hidden))
    graph.replay()
    top, drawn = (arrays(one) for one in answers)
    checks.ranked(found, "in a graph", top, facts)
    off = np.where(top.lse == facts.lse, 0.0, np.abs(top.lse - facts.lse))
    if not (off <= top.error + checks._slack(engine, facts)).all():
        found.fault("in a graph", f"lse off by {off.max():.6g}, stated {top.error}")
    plain = engine.sample(hidden, seed=3)
    if ((drawn.ids != plain.ids) & drawn.proved).any():
        found.fault("in a graph", f"drew {drawn.ids[:2]}, without {plain.ids[:2]}")
    found.rows += len(hidden)


def work(share: tuple[int, int, int, float]) -> list[tuple[int, int, list[str]]]:
    """``(number, rows, faults)`` of every case of one process until the time is over."""
    first, step, count, end = share
    came: list[tuple[int, int, list[str]]] = []
    for number in range(first, count, step):
        if time.time() >= end:
            break
        try:
            found = run(number)
            came.append((number, found.rows, found.faults))
        except Exception as error:
            calls = " > ".join(f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(error.__traceback__))
            came.append((number, 0, [f"raised {type(error).__name__}: {str(error)[:300]} ({calls})"]))
    return came


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10**6)
    parser.add_argument("--seconds", type=float, default=60.0, help="by the clock")
    parser.add_argument("--jobs", type=int, default=1, help="processes, which share the GPU")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    end = time.time() + asked.seconds
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        shares = [(first, asked.jobs, asked.cases, end) for first in range(asked.jobs)]
        came = sorted(one for part in pool.map(work, shares) for one in part)
    faults = [(number, fault) for number, _, some in came for fault in some]
    for number, fault in faults[:40]:
        print(f"case {number}: {fault}", flush=True)
    ended = Counter("fault" if some else "well" for *_, some in came)
    checked = sum(rows for _, rows, _ in came)
    row = {"what": "random layers and calls", "cases": len(came), "rows": checked, "wrong": len(faults)}
    print(f"{row}; {dict(ended)}", flush=True)
    if asked.json is not None:
        name = torch.cuda.get_device_properties(0).name if GPU else "none: Triton's interpreter"
        record = {"environment": measure.environment(measure.processors(), gpu=name), "rows": [row], "faults": faults[:40]}
        command = f"python tests/storm/on_device.py --seconds {asked.seconds:g} --jobs {asked.jobs}"
        measure.keep(asked.json, "random calls", record, "storm", command)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
