"""Ganea et al. (2019): the rank of the log-probabilities of made heads: a softmax's, and what exceeds it.

    python -m studies reproduce ganea2019:ranks results/studies/ganea2019.ranks.json

    press = #{s_i > s_1 2^-24 sqrt(m + n + 1)}        singular values s of log p [contexts, classes], in float64

300 contexts and 300 classes at random, d = 8. The softmax cannot exceed rank 9; links and mixtures can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from studies.papers.scripts import keep

SIZE, DIM, COMPONENTS = 300, 8, 3
Doubles = NDArray[np.float64]


def softmax(z: Doubles) -> Doubles:
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def press(p: Doubles) -> int:
    """What noise of float32's size leaves of the rank (Press et al., Numerical Recipes)."""
    singular = np.linalg.svd(np.log(p), compute_uv=False)
    return int((singular > singular[0] * 2.0**-24 * math.sqrt(sum(p.shape) + 1)).sum())


def made() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    weight, hidden = 1.5 * rng.standard_normal((SIZE, DIM)), rng.standard_normal((SIZE, DIM))
    slopes = np.exp(rng.uniform(math.log(0.3), math.log(3), 256))
    values = np.concatenate([[0.0], np.cumsum(slopes) * 40 / 256])
    links: dict[str, Callable[[Any], Any]] = {
        "softmax": np.asarray, "SigSoftmax": hl.Gss(), "GSS(-1.5, 2.5)": hl.Gss(-1.5, 2.5),
        "PLIF": hl.Table(-20.0, 40 / 256, values, 1.0, 1.0),
    }  # fmt: skip
    found = {name: softmax(np.asarray(link(hidden @ weight.T))) for name, link in links.items()}
    contexts = np.tanh(hidden @ rng.standard_normal((COMPONENTS, DIM, DIM)))
    prior = softmax(hidden @ rng.standard_normal((DIM, COMPONENTS)))
    found["MoS, K = 3"] = np.sum([prior[:, k, None] * softmax(contexts[k] @ weight.T) for k in range(COMPONENTS)], axis=0)
    found["MoC, K = 3"] = softmax(np.einsum("nk,knd->nd", prior, contexts) @ weight.T)
    for name, p in found.items():
        yield {"head": name, "contexts": SIZE, "classes": SIZE, "dim": DIM, "press": press(p)}


def main(path: str) -> None:
    keep(path, "ganea2019:ranks", {"runs": list(made())})
