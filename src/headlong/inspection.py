"""What a layer is made of, and what that means for reading it fast: ``headlong inspect``.

::

    norms            ‖w_i‖ over the classes
    singular values  sqrt(eigenvalues of W^T W, or of W W^T where there are fewer classes than dimensions)
    width            2 * radius_i(h): how wide a code of eight bits leaves the logit of class i, for certain, in nats
    candidates       rows that have to be scored exactly before the top k is proved

Widths and candidates depend on the hidden vectors. Without any, isotropic ones are drawn and scaled until the median
probability of the likeliest class is 0.3; trained hidden vectors are nothing like isotropic, so pass real ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.arrays import evenly
from headlong.bench import expected
from headlong.bench.measure import Progress
from headlong.bench.oracle import wide_rows
from headlong.bench.synthetic import scale
from headlong.dtypes import Doubles
from headlong.engines.arguments import FLOAT32_MAX, checked_hidden, checked_k
from headlong.engines.base import Engine
from headlong.engines.method_choice import choose
from headlong.errors import ShapeError
from headlong.layers.matrix import Layer
from headlong.plan import MOST_SCORED
from headlong.promise import Promise
from headlong.randomness import stream
from headlong.report import plots
from headlong.report.page import page
from headlong.report.tables import ReportTable, percent, times

QUERIES = 64
DEFAULT = Promise(0.01, 1e-6)
"""What compile promises where nothing is asked for."""
ENOUGH = 4
"""Hidden vectors for each coordinate, from which on their second moments are those of later ones, about."""
MUCH_SMALLER = 4
"""Times fewer weights than any layer that was measured has: nothing is known of such."""
CLASSES = 1 << 16
PERCENTILES = (0, 5, 50, 95, 100)


class Facts(NamedTuple):
    """``norms [vocab]``, ``widths [queries, up to CLASSES]`` in nats, ``candidates [queries]``.

    ``singular``  ``[min(vocab, dim)]``, falling
    ``energy``  of the logits, in an eighth of the directions; None where too few hidden vectors were given to tell
    """

    layer: Layer
    norms: Doubles
    singular: Doubles
    hidden: Doubles
    synthetic: bool
    widths: NDArray[np.float32]
    candidates: NDArray[np.int64]
    read: float
    k: int
    energy: float | None


def inspect(layer: Layer, hidden: NDArray[Any] | None, k: int, threads: int, progress: Progress) -> Facts:
    """Everything the tables below are made of. ``hidden`` None: synthetic ones."""
    checked_k(k, layer.vocab)
    if hidden is not None and not len(hidden):
        raise ShapeError("hidden has no rows; expected one or more vectors, or None for synthetic ones")
    queries = synthetic_hidden(layer, QUERIES) if hidden is None else checked_hidden(evenly(hidden, QUERIES), layer.dim)
    norms, singular = spectrum(layer, progress)
    engine = headlong.compile(layer, "codes", eps=math.inf, delta=0.0, threads=threads, blocks=False)
    classes = evenly(np.arange(layer.vocab), CLASSES)
    widths = np.stack([widths_of(engine, row[None])[classes] for row in queries]).astype(np.float32)
    answered = [engine.topk(row[None], k=k, eps=math.inf).cost for row in queries]
    read = float(np.mean([cost.bytes[0] for cost in answered])) / (4 * layer.vocab * layer.dim)
    rows = np.array([cost.rows[0] for cost in answered])
    share = None if hidden is None or len(hidden) < ENOUGH * layer.dim else expected.energy(layer, hidden)
    return Facts(layer, norms, singular, queries, hidden is None, widths, rows, read, k, share)


def widths_of(engine: Engine, hidden: Doubles) -> Doubles:
    """``[vocab]``: how wide the codes leave each logit of one query; nothing where all rows are read."""
    if engine.plan.codes is None:
        return np.zeros(engine.layer.vocab)
    reader: Any = engine.reader
    radius = np.asarray(reader.estimates(hidden, 0.0, 0)[1][0, : engine.layer.vocab], np.float64)
    return np.minimum(2 * radius, FLOAT32_MAX)


def synthetic_hidden(layer: Layer, count: int) -> Doubles:
    """Isotropic directions, of the length at which the likeliest class has probability 0.3 in the median."""
    rng = stream("trial queries", 0)
    directions = rng.standard_normal((min(count, 16), layer.dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    rows = rng.standard_normal((count, layer.dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True) * scale(layer, directions))


def tables(facts: Facts) -> list[ReportTable]:
    """Norms, singular values, widths and candidates as text."""
    source = "synthetic isotropic hidden vectors" if facts.synthetic else "of the hidden vectors given"
    widths = np.percentile(facts.widths, PERCENTILES)
    spread = [
        ("row norm ‖w‖", *(f"{value:.4g}" for value in np.percentile(facts.norms, PERCENTILES))),
        ("hidden norm ‖h‖", *(f"{v:.4g}" for v in np.percentile(np.linalg.norm(facts.hidden, axis=1), PERCENTILES))),
        ("interval of a code, nats", *(f"{value:.3g}" for value in widths)),
        (f"rows scored for a proved top {facts.k}", *(f"{v:,.0f}" for v in np.percentile(facts.candidates, PERCENTILES))),
    ]
    energy = energy_of(facts.singular)
    prefixes = sorted({max(1, len(energy) // part) for part in (32, 16, 8, 4, 2, 1)})
    falling = [(str(r), f"{facts.singular[r - 1]:.4g}", percent(float(np.minimum(energy[r - 1], 1.0)))) for r in prefixes]
    percentiles = ("smallest", "5%", "median", "95%", "largest")
    return [
        ReportTable(
            "Spread", ("", *percentiles), tuple(spread), f"{len(facts.hidden)} {source}; codes of eight bits; proved."
        ),
        ReportTable("Singular values", ("the first", "the last of them", "share of the energy"), tuple(falling)),
        ReportTable("What would help", ("finding", "what to do"), tuple(advice(facts))),
    ]


def energy_of(singular: Doubles) -> Doubles:
    """The share of the first directions in ``sum_i singular_i^2``, one after the other."""
    return np.asarray(np.cumsum(singular**2) / max(float(np.sum(singular**2)), 1e-300))


def advice(facts: Facts) -> Iterator[tuple[str, str]]:
    """What the numbers mean for the choice of a method."""
    layer, scored = facts.layer, float(np.median(facts.candidates)) / facts.layer.vocab
    name, reason = choose(layer, DEFAULT, calibrated=not facts.synthetic)
    yield from expectation(facts)
    yield f"compile takes '{name}'", reason
    if name == "codes":
        left = f"codes of eight bits leave {np.median(facts.candidates):,.0f} rows to score in the median, for a proof"
        if scored > MOST_SCORED:
            yield left, "such queries read all rows"
        else:
            yield left, f"ids are proved from {percent(min(facts.read, 1.0))} of the float32 bytes"
    rank = int(np.searchsorted(energy_of(facts.singular), 0.9)) + 1
    if name == "codes" and rank <= layer.dim // 4:
        yield (
            f"90% of the energy is in {rank} of {layer.dim:,} directions",
            "few bits of most coordinates are enough: calibration=hidden lets compile try them",
        )
    peak = np.abs(facts.hidden).max(1) / np.maximum(np.linalg.norm(facts.hidden, axis=1), 1e-300)
    if float(np.median(peak)) > 0.5:
        yield (
            f"one coordinate carries {percent(float(np.median(peak)) ** 2)} of ‖h‖²",
            "its rounding widens every interval: remove it upstream",
        )
    mean = np.linalg.norm(facts.hidden.mean(0)) ** 2 / max(float(np.mean(np.sum(facts.hidden**2, axis=1))), 1e-300)
    if not facts.synthetic and mean > 0.25:
        yield (
            f"{percent(min(float(mean), 1.0))} of the hidden energy is their common mean",
            "pass calibration=hidden, so that centring is tried",
        )
    zero = int(np.sum(facts.norms == 0))
    if zero:
        yield f"{zero:,} rows are zero", "padding of the vocabulary? exclude= their ids, or cut them off"
    if facts.synthetic:
        yield (
            "no hidden vectors were given",
            "pass HIDDEN: trained hidden vectors leave fewer candidates than isotropic ones",
        )


def expectation(facts: Facts) -> Iterator[tuple[str, str]]:
    """What the measured layer that is most like this one gained."""
    if facts.energy is None:
        if not facts.synthetic:
            few = f"{ENOUGH * facts.layer.dim:,} hidden vectors or more tell what speed to expect"
            yield f"{len(facts.hidden):,} were looked at", few
        return
    weights, among = facts.layer.vocab * facts.layer.dim, expected.measured()
    smallest = min(one.vocab * one.dim for one in among)
    if MUCH_SMALLER * weights < smallest:
        yield f"{weights:,} weights; the smallest layer that was measured has {smallest:,}", "expect little; bench measures it"
        return
    like = expected.most_like(facts.energy, weights, among)
    said = "; ".join(f"{what} {times(cold)} cold, {times(loop)} in a loop" for what, (cold, loop) in like.times.items())
    share = f"{percent(facts.energy)} of the logits' energy is in an eighth of the directions"
    yield (
        f"{share}; {percent(like.energy)} in {like.about}, {like.vocab:,} × {like.dim}, which is most like it",
        f"expect about {said}, over the fastest dense product, one query, as {like.about} on {like.cpu}; bench measures it",
    )


def html_page(facts: Facts, name: str) -> str:
    """The tables and the curve of the singular values."""
    return page(f"headlong inspect {name}", [repr(facts.layer), *tables(facts), *plots.spectrum(facts.singular)])


def as_json(facts: Facts) -> dict[str, Any]:
    """The numbers for programs."""
    layer = facts.layer
    return {
        "vocab": layer.vocab,
        "dim": layer.dim,
        "dtype": layer.dtype,
        "bias": layer.bias is not None,
        "link": layer.link.as_dict(),
        "percentiles": list(PERCENTILES),
        "row_norms": np.percentile(facts.norms, PERCENTILES).tolist(),
        "singular_values": facts.singular.tolist(),
        "synthetic_hidden": facts.synthetic,
        "widths": np.percentile(facts.widths, PERCENTILES).tolist(),
        "candidates": np.percentile(facts.candidates, PERCENTILES).tolist(),
        "read_share": facts.read,
        "energy": facts.energy,
        "advice": [list(line) for line in advice(facts)],
    }


def spectrum(layer: Layer, progress: Progress) -> tuple[Doubles, Doubles]:
    """Row norms and singular values ``[min(vocab, dim)]``, falling."""
    norms, gram = [], np.zeros((layer.dim, layer.dim))
    for some, rows in wide_rows(layer):
        norms.append(np.linalg.norm(rows, axis=1))
        gram += rows.T @ rows
        progress(min(some.stop, layer.vocab), layer.vocab)
    energies = np.linalg.eigvalsh(gram)[::-1][: min(layer.vocab, layer.dim)]
    return np.concatenate(norms), np.sqrt(np.maximum(energies, 0.0))
