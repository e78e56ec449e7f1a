"""A trained mixture of five softmaxes read beside the best dense mixture, and held against float64::

    python -m studies reproduce mixture:reading time HARVEST HEAD studies/results/mixture-reading.json
    python -m studies reproduce mixture:reading exact HARVEST HEAD studies/results/mixture-exact.json

``HARVEST`` and ``HEAD`` are those of ``mixture_training.py``. The dense mixture reads its rows once for all components, in
float32 or bfloat16, in any of eight ways: the fastest of them is what engines are compared with.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong.bench.measure import Contestant, Schedule, contest, environment
from headlong.engines.mixture.engine import MixtureEngine
from headlong.layers.mixture import MixtureLayer
from headlong.layers.structured import load_layer
from headlong.store import replacing
from studies.models.mixture_training import CALIBRATION, Data, Vectors, harvested

if TYPE_CHECKING:
    from torch import Tensor

K, PROVED = 10, 512
"""Of the asked vectors, so many are read with everything proved, which takes longer."""


Way = tuple[str, bool, bool]
WAYS: dict[str, Way] = {
    f"dense {name}{', rows first' * rows_first}{', probabilities' * plain}": (kind, rows_first, plain)
    for name, kind in {"fp32": "float32", "bf16": "bfloat16"}.items()
    for rows_first in (False, True)
    for plain in (False, True)
}
"""The type of the rows; rows times contexts, or the other way round; a mean of probabilities, or of their logarithms."""


def dense(layer: MixtureLayer, way: Way) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The mixture as PyTorch computes it, its rows read once for all components: the best that is dense."""
    import torch

    kind, rows_first, plain = getattr(torch, way[0]), *way[1:]
    parts = (layer.project, layer.offset, layer.prior, layer.matrix.weight, layer.matrix.bias)
    project, offset, prior, weight, bias = (torch.from_numpy(np.array(part, np.float32)) for part in parts)
    rows = weight.to(kind)

    @torch.no_grad()
    def answer(hidden: Tensor) -> tuple[Tensor, Tensor]:
        contexts = torch.tanh(torch.nn.functional.linear(hidden, project, offset)).view(-1, layer.latent).to(kind)
        z = (rows @ contexts.T).T if rows_first else torch.nn.functional.linear(contexts, rows)
        shift = torch.nn.functional.linear(hidden, prior).log_softmax(-1)
        if plain:
            best = (shift.exp() @ (z.float() + bias).softmax(-1))[0].topk(K)
            return best.values.log(), best.indices
        best = ((z.float() + bias).log_softmax(-1) + shift.T).logsumexp(0).topk(K)
        return best.values, best.indices

    return answer


def engines(data: Data, layer: MixtureLayer, threads: int) -> dict[str, MixtureEngine]:
    """At the asked promise and with everything proved; both know the calibration vectors."""
    about: dict[str, Any] = {"calibration": data.valid[:CALIBRATION], "threads": threads}
    found = {
        "log-probabilities but for 1e-3": hl.compile(layer, delta=1e-3, **about),
        "all proved": hl.compile(layer, delta=0.0, **about),
    }
    return {name: engine for name, engine in found.items() if isinstance(engine, MixtureEngine)}


def contestants(data: Data, layer: MixtureLayer, threads: int) -> list[Contestant]:
    import torch

    def asking(engine: MixtureEngine, eps: float | None) -> Callable[[Any], Any]:
        return lambda rows: engine.topk(rows, K, eps=eps)

    calls = [
        Contestant(f"{name}, {what}", asking(engine, eps), about=_facts(engine))
        for name, engine in engines(data, layer, threads).items()
        for what, eps in {"ids alone": np.inf, "log-probabilities within 0.01": None}.items()
    ]
    rivals = [Contestant(name, dense(layer, way), lambda rows: torch.from_numpy(rows).float()) for name, way in WAYS.items()]
    return calls + rivals


def _facts(engine: MixtureEngine) -> dict[str, Any]:
    """What calibration made of it."""
    widths, levels = engine.widths, engine.part.plan.levels
    facts = {"engine": repr(engine), "reason": engine.reason, "first_look": max(stop for _, stop, _ in levels[0].layout)}
    if widths is not None:
        facts |= {"radius": widths.radius.tolist(), "margins": widths.margins.tolist(), "list": widths.listed}
    return facts


def times(data: Data, head_path: str, threads: int = 2) -> dict[str, Any]:
    """Interleaved times of one query at a time, and each engine's over the best dense mixture's of the same run."""
    import torch

    torch.set_num_threads(threads)
    calls = contestants(data, _mixture(head_path), threads)
    timings = contest(calls, data.asked, 1, Schedule(rounds=24, settle=2, calls=8, seconds=60.0))
    middle = {one.contestant: statistics.median(one.seconds) for one in timings}
    best = min((name for name in middle if name.startswith("dense")), key=middle.__getitem__)
    return {
        "queries": len(data.asked),
        "k": K,
        "about": {one.name: one.about for one in calls if one.about},
        "microseconds": {name: 1e6 * value for name, value in middle.items()},
        "mean_microseconds": {one.contestant: 1e6 * statistics.mean(one.seconds) for one in timings},
        "best_dense": best,
        "over_best_dense": {name: middle[best] / value for name, value in middle.items()},
        "seconds": {one.contestant: one.seconds for one in timings},
    }


def exactness(data: Data, head_path: str, threads: int = 2) -> dict[str, Any]:
    """The top 10 of every asked vector against the float64 mixture: ids, proofs, log-probabilities, and what was read."""
    layer, asked = _mixture(head_path), data.asked
    weight = layer.matrix.weight.astype(np.float64)
    truth = _joined(oracle(layer, weight, asked[at : at + 64]) for at in range(0, len(asked), 64))
    counts = {}
    for name, engine in engines(data, layer, threads).items():
        for what, eps in {"ids alone": np.inf, "log-probabilities within 0.01": None}.items():
            every = max(1, len(asked) // PROVED)
            some, (values, ids) = asked[::every], (side[::every] for side in truth)
            tops = [engine.topk(row[None], K, eps=eps) for row in some]
            sides = ("ids", "log_probs", "error")
            found, log_probs, error = (np.concatenate([getattr(top, side) for top in tops]) for side in sides)
            off, read = np.abs(log_probs - values).max(axis=1), np.concatenate([top.cost.bytes for top in tops])
            counts[f"{name}, {what}"] = {
                "queries": len(some),
                "same_ids": int((found == ids).all(axis=1).sum()),
                "proved": int(sum(top.proved.sum() for top in tops)),
                "dense": int(sum(top.cost.dense.sum() for top in tops)),
                "within_error": int((off <= error + 1e-9).sum()),
                "worst_log_prob": float(off.max()),
                "worst_error": float(error.max()),
                "bytes": {"median": float(np.median(read)), "mean": float(read.mean())},
                "rows": float(np.mean([top.cost.rows[0] for top in tops])),
            }
    return {"k": K, "matrix_bytes": layer.matrix.weight.nbytes, **counts}


def oracle(layer: MixtureLayer, weight: Vectors, hidden: Vectors) -> tuple[Vectors, NDArray[np.int64]]:
    """The 10 likeliest classes of the mixture and their log-probabilities, by products of whole matrices in float64."""
    contexts = np.tanh(hidden @ layer.project.astype(np.float64).T + layer.offset).reshape(-1, layer.latent)
    p = contexts @ weight.T
    p += np.asarray(layer.matrix.bias, np.float64)
    p -= p.max(axis=1, keepdims=True)
    prior = hidden @ layer.prior.astype(np.float64).T
    prior -= np.logaddexp.reduce(prior, axis=1, keepdims=True)
    np.exp(p, out=p)
    p *= np.exp(prior).reshape(-1, 1) / p.sum(axis=1, keepdims=True)
    p = p.reshape(len(hidden), layer.components, -1).sum(axis=1)
    some = np.sort(np.argpartition(-p, 2 * K, axis=1)[:, : 2 * K], axis=1)
    order = np.argsort(-np.take_along_axis(p, some, 1), axis=1, kind="stable")[:, :K]
    ids = np.take_along_axis(some, order, 1)
    return np.log(np.take_along_axis(p, ids, 1)), ids


def _joined(parts: Iterable[tuple[Vectors, NDArray[np.int64]]]) -> tuple[Vectors, NDArray[np.int64]]:
    values, ids = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate(ids)


def _mixture(path: str) -> MixtureLayer:
    layer = load_layer(path)
    assert isinstance(layer, MixtureLayer)
    return layer


WHAT: dict[str, Callable[[Data, str], dict[str, Any]]] = {"time": times, "exact": exactness}


def main(what: str, folder: str, head: str, path: str) -> None:
    command = f"python -m studies reproduce mixture:reading {what} HARVEST HEAD studies/results/{Path(path).name}"
    about = {"format": f"headlong-mixture-{what}", "version": 1, "command": command}
    record = about | {"environment": environment(2)} | WHAT[what](harvested(folder), head)
    with replacing(path) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    sys.stdout.write(f"wrote {path}\n")
