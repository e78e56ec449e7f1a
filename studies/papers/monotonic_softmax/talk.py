"""What the talk of Ganea et al. (2019) prints of language models, as data, and what a replication prints of the same heads.

Perplexities and times are those of an AWD-LSTM on one GPU (500 epochs). A verdict here compares with the talk alone; the
replication stands beside it and earns none.
"""

from __future__ import annotations

from typing import NamedTuple

WHERE = {
    "results": "talk, Language Modeling Results",
    "mixture": "talk, Breaking the Softmax Bottleneck [1]",
    "sigmoid": "talk, Breaking the Softmax Bottleneck [2]",
    "bottleneck": "talk, What is the Softmax Bottleneck",
    "theorem": "talk, the theorem on learned functions",
    "curve": "talk, Piecewise Linear Increasing Functions",
    "synthetic": "talk, Synthetic Experiments",
}
COLUMNS = ("parameters, M", "valid", "test", "seconds an epoch")
TABLE: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "ptb": {
        "softmax": (24.2, 60.83, 58.37, 60),
        "PLIF, published": (24.4, 59.45, 57.25, 70),
        "MoS, K = 15": (26.6, 58.58, 56.43, 150),
        "MoS, K = 15, PLIF, published": (28.6, 58.20, 56.02, 220),
    },
    "wikitext2": {
        "softmax": (33, 68.11, 65.22, 120),
        "PLIF, published": (33.2, 67.87, 64.86, 150),
        "MoS, K = 15": (33, 66.01, 63.33, 550),
    },
}
UNCLEAR = {("ptb", "MoS, K = 15, PLIF, published", "valid"): "printed unclearly, as 58-20"}
ILLEGIBLE = ("wikitext2", "MoS, K = 15, PLIF, published")
"""A row of the table whose figures cannot be read in our copy of the talk, except for "5.1"."""
OURS = {"PLIF, ours": "PLIF, published", "MoS, K = 15, PLIF": "MoS, K = 15, PLIF, published"}
"""Heads of our own, and the published head whose printed figures stand beside theirs."""
AGAIN: dict[str, dict[str, float]] = {
    "ptb": {"softmax": 57.08, "SigSoftmax": 57.05, "GSS(-1.5, 2.5)": 57.00, "PLIF": 56.80, "MoS, K = 15": 54.91},
    "wikitext2": {"softmax": 64.63, "SigSoftmax": 64.35, "GSS(-1.5, 2.5)": 64.50, "PLIF": 64.16, "MoS, K = 15": 61.96},
}
"""Test perplexity in an independent replication (Parthiban et al. 2021), eleven seeds, ±.09 to ±.40; on WikiText-2 GSS has a
power of 3."""


class Ratios(NamedTuple):
    """A head's figures over the softmax's, each over its own softmax's: in the talk, and in the replication."""

    talk: float | None
    again: float | None


def printed(corpus: str, head: str, column: str = "test") -> Ratios:
    """None where nothing is printed of the head; a head of ours stands beside the published one."""
    name, place = OURS.get(head, head), COLUMNS.index(column)
    table, again = TABLE[corpus], AGAIN[corpus]
    talk = table[name][place] / table["softmax"][place] if name in table else None
    other = "PLIF" if name == "PLIF, published" else name
    return Ratios(talk, again[other] / again["softmax"] if other in again and column == "test" else None)
