"""How often promises of every kind of engine fail, one query a call, on vectors that chose nothing, against float64.

    python benchmarks/promise_kinds.py NAME LAYER HIDDEN... --json results/promise-kinds.json [--only WORDS]
    python benchmarks/promise_kinds.py --made --json results/promise-kinds.json

What is asked are the vectors that are left of 16,000 when ``--calibration`` of them have taken their part.

    few bits over a rotation    top-10 ids but for 0.01, over the rotation that was drawn
    two shards                  each with half of the rates: what the whole promises is their sum
    a nucleus                   a draw of the top 0.9 that is not the exact one of the same seed, but for the normaliser's rate
    an adapted plan             the default promise, after as many queries as a plan is made of
    a mixture                   top-10 ids but for 0.01, of three softmaxes made of the layer's rows; in their order
    a screen                    the ten best are not all behind it, but for the rate that it found on vectors of its own

Failures, limits and vectors are those of ``benchmarks/promises.py``; with ``--draw`` others of them calibrate.
A kind that the file has is not counted again. No clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blocks import recommender, recurrent
from numpy.typing import NDArray
from promises import BLOCK, CALIBRATION, COUNT, TAUGHT, TIE, Exact, K, exact, row, write

import headlong as hl
from headlong.cli import inputs
from headlong.engines.shards import here
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.previews.screens import equal_clusters, learned_screen

TOP_P, SHARDS, WAIT_S, COMPONENTS = 0.9, 2, 300.0, 3
LEARNED_CLASSES = 800.0
"""That a learned screen reads, on average."""
BOTH = "calibration and query"
IDS: dict[str, Any] = {"eps": math.inf, "delta_ids": 0.01, "over": TAUGHT}
LOG_PROBS: dict[str, Any] = {"eps": 0.05, "delta": 0.01, "over": TAUGHT}


class Case(NamedTuple):
    """A layer, vectors that calibrate, vectors that are asked, and what is right for the latter."""

    name: str
    layer: Layer
    calibration: NDArray[np.float32]
    asked: NDArray[np.float32]
    true: Exact
    threads: int

    def compiled(self, method: str, **options: Any) -> Any:
        return hl.compile(self.layer, method, calibration=self.calibration, threads=self.threads, **options)

    def row(self, kind: str, over: str, promised: float, failures: int, **more: Any) -> dict[str, Any]:
        about = {"calibrated_with": len(self.calibration)} | more
        return row(self.name, kind, over, promised, failures, len(self.asked), **about)


def wrong_ids(engine: Any, case: Case) -> int:
    """Answers with an id that is not among the k largest logits."""
    return wrong_and_read(engine, case)[0]


def wrong_and_read(engine: Any, case: Case) -> tuple[int, float]:
    """The same, and the share of float32's bytes that an answer reads."""
    answers = [engine.topk(one[None], K) for one in case.asked]
    found, read = np.array([top.logits[0].min() for top in answers]), np.mean([top.cost.bytes[0] for top in answers])
    wrong = int((found < case.true.least - TIE * (1 + np.abs(case.true.least))).sum())
    return wrong, float(read) / (4.0 * case.layer.vocab * case.layer.dim)


def far_off(engine: Any, case: Case) -> tuple[int, float]:
    """Normalisers beyond eps, and the worst error."""
    off = np.abs(np.array([engine.lse(one[None]).lse[0] for one in case.asked]) - case.true.lse)
    return int((off > engine.promise.eps).sum()), float(off.max())


def in_shards(case: Case, options: dict[str, Any]) -> Any:
    """Each of them with its part of the rates."""
    parts = {name: value / SHARDS if name.startswith("delta") else value for name, value in options.items()}
    weight, bias = case.layer.weight, case.layer.bias
    edges = np.linspace(0, len(weight), SHARDS + 1).astype(int)
    each = (slice(*pair) for pair in itertools.pairwise(edges))
    layers = [Layer(weight[part], None if bias is None else bias[part]) for part in each]
    return here([case._replace(layer=layer).compiled("cascade", **parts) for layer in layers])


def few_bits(case: Case, kind: str) -> dict[str, Any]:
    wrong, read = wrong_and_read(case.compiled("cascade", **{**IDS, "bits": 4, "over": "rotation"}), case)
    return case.row(kind, "rotation", 0.01, wrong, share_read=read)


def shards_ids(case: Case, kind: str) -> dict[str, Any]:
    return case.row(kind, BOTH, 0.01, wrong_ids(in_shards(case, IDS), case))


def shards_log_probs(case: Case, kind: str) -> dict[str, Any]:
    failures, worst = far_off(in_shards(case, LOG_PROBS), case)
    return case.row(kind, BOTH, 0.01, failures, worst=worst)


def nucleus(case: Case, kind: str) -> dict[str, Any]:
    """Draws of a nucleus that a bet decides, beside those that all logits give."""
    both = case.compiled("cascade", **LOG_PROBS), hl.compile(case.layer, "full", threads=case.threads)
    pairs = [
        tuple(each.sample(one[None], top_p=TOP_P, seed=seed) for each in both) for seed, one in enumerate(case.asked)
    ]
    read = float(np.mean([drawn.cost.bytes[0] for drawn, _ in pairs])) / (4.0 * case.layer.vocab * case.layer.dim)
    other = sum(int(drawn.ids[0, 0]) != int(right.ids[0, 0]) for drawn, right in pairs)
    return case.row(kind, BOTH, 0.01, other, share_read=read)


def adapted(case: Case, kind: str) -> dict[str, Any]:
    """An engine that has learned from its queries."""
    engine: Any = hl.compile(case.layer, "cascade", adapt=True, threads=case.threads)
    for one in case.calibration:
        engine.topk(one[None], K)
        if engine.adapted:
            break
    engine.wait(WAIT_S)
    assert engine.adapted, engine.trouble
    failures, worst = far_off(engine, case)
    return case.row(kind, "query", 0.001, failures, worst=worst)


def mixture(case: Case, kind: str) -> dict[str, Any]:
    """Softmaxes whose contexts are the hidden vector, each turned a little."""
    rng, dim = np.random.default_rng(0), case.layer.dim
    turned = [np.eye(dim) + 0.3 * rng.standard_normal((dim, dim)) / math.sqrt(dim) for _ in range(COMPONENTS)]
    prior = rng.standard_normal((COMPONENTS, dim)) / math.sqrt(dim)
    layer = MixtureLayer(case.layer, np.concatenate(turned), np.zeros(COMPONENTS * dim), prior)
    engine: Any = hl.compile(layer, calibration=case.calibration, eps=math.inf, delta_ids=0.01, threads=case.threads)
    wrong, read = 0, 0.0
    for start in range(0, len(case.asked), BLOCK):
        some = case.asked[start : start + BLOCK]
        true = log_probs(layer, some.astype(np.float64))
        answers = [engine.topk(one[None], K) for one in some]
        given = np.take_along_axis(true, np.concatenate([top.ids for top in answers]), axis=1)
        best = -np.sort(-np.partition(true, -K, axis=1)[:, -K:], axis=1)
        wrong += int((given < best - TIE * (1 + np.abs(best))).any(axis=1).sum())
        read += sum(float(top.cost.bytes[0]) for top in answers) / (4.0 * case.layer.vocab * dim)
    over = " and ".join(sorted(engine.promise.over))
    return case.row(kind, over, 0.01, wrong, share_read=read / len(case.asked))


def log_probs(layer: MixtureLayer, hidden: NDArray[np.float64]) -> NDArray[np.float64]:
    """``log sum_k pi_k softmax(W tanh(P_k h) + b)`` in float64."""
    contexts = np.tanh(hidden @ layer.project.astype(np.float64).T + layer.offset).reshape(len(hidden), layer.components, -1)
    prior = hidden @ layer.prior.astype(np.float64).T
    prior -= np.logaddexp.reduce(prior, axis=1, keepdims=True)
    weight, bias = layer.matrix.weight.astype(np.float64), layer.matrix.bias
    total = np.full((len(hidden), layer.vocab), -np.inf)
    for component in range(layer.components):
        z = contexts[:, component] @ weight.T + (0 if bias is None else bias)
        z -= np.logaddexp.reduce(z, axis=1, keepdims=True)
        np.logaddexp(total, z + prior[:, component, None], out=total)
    return total


def screen(made: Callable[..., Any], **options: Any) -> Callable[[Case, str], dict[str, Any]]:
    def counted(case: Case, kind: str) -> dict[str, Any]:
        engine: Any = hl.compile(made(case.layer, case.calibration.astype(np.float64), top=K, **options), threads=case.threads)
        return case.row(kind, "calibration", engine.promise.delta_ids, wrong_ids(engine, case))

    return counted


KINDS: dict[str, Callable[[Case, str], dict[str, Any]]] = {
    "few bits over a rotation, top-10 ids but for 0.01": few_bits,
    "two shards, top-10 ids but for 0.01": shards_ids,
    "two shards, within 0.05 but for 0.01": shards_log_probs,
    "a nucleus by a bet, but for 0.01": nucleus,
    "an adapted plan, within 0.01 but for 0.001": adapted,
    "a mixture, top-10 ids but for 0.01": mixture,
    "a learned screen, top-10 ids but for what it found": screen(learned_screen, budget=LEARNED_CLASSES),
    "equal clusters, top-10 ids but for what they found": screen(equal_clusters),
}


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    if asked.made:
        count = CALIBRATION + COUNT
        layers = {"a recommender's, made": recommender(count=count), "an LSTM's, made": recurrent(count=count)}
    else:
        vectors = np.concatenate([np.asarray(inputs.hidden(source)) for source in asked.hidden])
        layers = {asked.name: (inputs.layer(asked.layer), vectors)}
    for name, (layer, vectors) in layers.items():
        every = np.random.default_rng(asked.draw).permutation(vectors)[: CALIBRATION + COUNT].astype(np.float32)
        some = every[asked.calibration :]
        yield Case(name, layer, every[: asked.calibration], some, exact(layer, some, K), asked.threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("layer", nargs="?", default="")
    parser.add_argument("hidden", nargs="*")
    parser.add_argument("--calibration", type=int, default=CALIBRATION, help="vectors that calibrate")
    parser.add_argument("--draw", type=int, default=0, help="which vectors calibrate and which are asked: rows of their own")
    parser.add_argument("--made", action="store_true", help="the recommender's layer that benchmarks/blocks.py makes")
    parser.add_argument("--only", default="", help="kinds with these words in their names")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    known = json.loads(asked.json.read_text(encoding="utf-8"))["rows"] if asked.json.is_file() else []
    done = {(one["layer"], one["promise"]) for one in known}
    for case in cases(asked):
        for kind, counted in KINDS.items():
            named = f"{kind}, draw {asked.draw}" if asked.draw else kind
            if asked.only in kind and (case.name, named) not in done:
                write(counted(case, named), asked.json, asked.threads)


if __name__ == "__main__":
    main()
