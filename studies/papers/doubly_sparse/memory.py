"""Peak memory of training 64 doubly sparse experts beside training one full softmax, at the same frozen vectors::

    python -m studies reproduce liao2019:memory studies/results/experts-memory.json TASK

    rise = the process's highest resident set while it trains - the resident set before the head is made

Each head trains in a process of its own: weights, gradients, Adam's moments, the batch and all that a step holds. The experts
are seeded from the trained layer as in the study, and pruned once; the full softmax starts from the same layer. The full
softmax's logits are held whole, as `F.linear` and `F.cross_entropy` do, or in pieces, as `DenseHead` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from headlong.bench.measure import environment
from headlong.heads.dense import DenseHead
from headlong.store import replacing
from studies.models.step_costs import _status
from studies.papers.doubly_sparse import tasks as study

STEPS = 3
WAYS = ("full, whole", "full, in pieces", "experts")


def full(data: study.Data, task: study.Task, vocab: int, chunk: int | None) -> None:
    """Adam on a dense head of ``vocab`` classes, ``STEPS`` steps."""
    import torch

    head = DenseHead(data.layer.dim, vocab, chunk=chunk)
    optimiser = torch.optim.Adam(head.parameters(), task.rate)
    for step in range(STEPS):
        rows = slice(step * task.batch, (step + 1) * task.batch)
        optimiser.zero_grad()
        head(data.train.hidden[rows].float(), data.train.target[rows] % vocab).loss.backward()
        optimiser.step()


def rise(name: str, kind: str) -> int:
    """Bytes by which the resident set of this process grows; to be called once in a fresh process."""
    task = study.TASKS[name]._replace(steps=STEPS)
    data = study.read(Path(os.environ["HEADLONG_DATA"]), task)
    full(data, task, 64, 0)  # loads the kernels and the optimiser
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    if kind == "experts":
        study.grown(data, task, study.TRAINED)
    else:
        full(data, task, data.layer.vocab, 0 if kind == "full, whole" else None)
    return _status("VmHWM") - before


def main(path: str, name: str) -> None:
    found: dict[str, int] = {}
    for kind in WAYS:
        code = f"from studies.papers.doubly_sparse.memory import rise; print(rise({name!r}, {kind!r}))"
        found[kind] = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    ratio = {kind: round(found["experts"] / found[kind], 3) for kind in WAYS[:2]}
    command = f"python -m studies reproduce liao2019:memory studies/results/{Path(path).name} {name}"
    run = {"format": "headlong-experts-memory", "version": 1, "command": command, "environment": environment(1)}
    with replacing(path) as beside:
        beside.write(json.dumps(run | {"task": name, "rise": found, "experts_over": ratio}, indent=1).encode() + b"\n")
