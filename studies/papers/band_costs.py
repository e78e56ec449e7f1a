"""Our bands beside ``torch.nn.AdaptiveLogSoftmaxWithLoss``: loss, time of a training step, time of top-10, in one run.

::

    python -m studies reproduce bands:costs studies/results/band-costs.json

Both start from the same weights (no biases, the same cutoffs and widths) and take the same steps on the same hidden vectors
and targets of a trained WikiText-2 model, V = 33,278, D = 512; then both answer the ten likeliest classes of validation
vectors. Times are interleaved medians. What the other cannot do is tried, and what it says is kept.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headlong.bench.measure import Contestant, Schedule, contest, environment, pinned, processors, write_run
from headlong.compile import compile as compile_layer
from headlong.store import open_file

HIDDEN = "heads/wikitext2-gpt512.hidden.safetensors"
VOCAB, CUTOFFS, DIV = 33_278, (2_000, 10_000), 4.0
ROWS, STEPS = 1024, 24


class Pair(NamedTuple):
    """Our head and torch's with the same weights; ``order`` are the class ids by falling frequency, which torch needs."""

    ours: Any
    theirs: Any
    place: Any


def built(counts: Any, dim: int) -> Pair:
    import torch

    from headlong.heads import BandsHead

    torch.manual_seed(0)
    theirs: Any = torch.nn.AdaptiveLogSoftmaxWithLoss(dim, VOCAB, list(CUTOFFS), div_value=DIV)
    widths = [turn.out_features for turn, _ in theirs.tail]
    ours = BandsHead(dim, VOCAB, counts=counts, cutoffs=CUTOFFS, widths=widths, bias=False)
    with torch.no_grad():
        ours.head_weight.copy_(theirs.head.weight)
        for number, (turn, tail) in enumerate(theirs.tail):
            ours.projections[number].copy_(turn.weight)
            ours.weights[number].copy_(tail.weight)
    return Pair(ours, theirs, ours.place)


def step(head: Any, hidden: Any, target: Any, optimiser: Any) -> float:
    optimiser.zero_grad(set_to_none=True)
    leaf = hidden.clone().requires_grad_()  # the backbone wants its gradient
    loss = head(leaf, target).loss
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def trained(pair: Pair, hidden: Any, target: Any, schedule: Schedule) -> dict[str, Any]:
    """Losses of the same steps, one head after the other; then times of further steps, interleaved."""
    import torch

    targets = {"ours": target, "torch": pair.place[target]}
    heads = {"ours": pair.ours, "torch": pair.theirs}
    optimisers = {name: torch.optim.SGD([p for p in head.parameters() if p.requires_grad], 1.0) for name, head in heads.items()}
    losses = {
        name: [step(head, hidden[at], targets[name][at], optimisers[name]) for at in _rows(len(hidden))]
        for name, head in heads.items()
    }

    def call(name: str) -> Callable[[Any], float]:
        return lambda rows: step(heads[name], hidden[rows], targets[name][rows], optimisers[name])

    fields = [Contestant(name, call(name), torch.from_numpy) for name in heads]
    times = contest(fields, np.arange(len(hidden)), ROWS, schedule)
    return {"losses": losses, "step": {one.contestant: one.seconds for one in times}}


def _rows(count: int) -> list[Any]:
    return [np.random.default_rng(number).choice(count, ROWS, replace=False) for number in range(STEPS)]


def answered(pair: Pair, hidden: Any, threads: int, schedule: Schedule) -> dict[str, Any]:
    """Times of the ten likeliest classes at batch 1 and 64, and how far the answers agree."""
    import torch

    engine = compile_layer(pair.ours.to_layer(), threads=threads)
    order = pair.ours.order

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def theirs(rows: Any) -> Any:
        values, places = pair.theirs.log_prob(rows).topk(10)
        return values, order[places]

    fields = [
        Contestant("ours", lambda rows: engine.topk(rows, k=10)),
        Contestant("torch", theirs, torch.from_numpy),
    ]
    seconds = {
        str(batch): {one.contestant: one.seconds for one in contest(fields, hidden, batch, schedule)} for batch in (1, 64)
    }
    mine, others = engine.topk(hidden, k=10), theirs(torch.from_numpy(hidden))[1].numpy()
    same = float(np.mean([len(set(a) & set(b)) for a, b in zip(mine.ids.tolist(), others.tolist(), strict=True)]))
    return {"topk": seconds, "top10_agreement": same, "rows": float(mine.cost.rows.mean()), "engine": repr(engine)}


def tried(pair: Pair, hidden: Any, target: Any) -> dict[str, dict[str, str]]:
    """bfloat16 autocast and ``torch.compile(fullgraph=True)``, default backend: the loss, or the first line of the fault."""
    import torch

    def cast(head: Any, classes: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return head(hidden, classes).loss

    def graph(head: Any, classes: Any) -> Any:
        torch.compiler.reset()
        return torch.compile(lambda x, y: head(x, y).loss, fullgraph=True)(hidden, classes)

    found: dict[str, dict[str, str]] = {}
    for word, attempt in (("bf16 autocast", cast), ("fullgraph", graph)):
        for name, head, classes in (("ours", pair.ours, target), ("torch", pair.theirs, pair.place[target])):
            try:
                said = f"{float(attempt(head, classes).detach()):.4f}"
            except Exception as error:  # whatever the other raises is the finding
                said = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
            found.setdefault(word, {})[name] = said
    return found


def main(path: str, schedule: Schedule | None = None) -> None:
    import torch

    out, threads = Path(path), processors()
    torch.set_num_threads(threads)
    file = open_file(Path(os.environ["HEADLONG_DATA"]) / HIDDEN)
    train, valid = (file.read(name).astype(np.float32) for name in ("train_hidden", "valid_hidden"))
    target = torch.from_numpy(file.read("train_target").astype(np.int64))
    pair = built(np.bincount(target.numpy(), minlength=VOCAB) + 0.5, train.shape[1])
    with pinned(threads):
        plan = schedule or Schedule(rounds=9, settle=1, calls=3, seconds=20.0)
        learned = trained(pair, torch.from_numpy(train), target, plan)
        found = answered(pair, np.ascontiguousarray(valid[::32]), threads, plan)
    shape = {"vocab": VOCAB, "dim": train.shape[1], "rows": ROWS}
    record: dict[str, Any] = {"environment": environment(threads), "shape": shape, "runs": []}
    record |= {"cutoffs": list(CUTOFFS), **learned, **found}
    write_run(out, record)
    write_run(out, record | {"tried": tried(pair, torch.from_numpy(train[:ROWS]), target[:ROWS])})
    medians = {name: statistics.median(values) for name, values in learned["step"].items()}
    sys.stderr.write(f"seconds of a step: {medians}\n")
