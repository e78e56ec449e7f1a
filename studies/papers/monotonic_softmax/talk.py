"""What the talk of Ganea et al. (2019) prints of language models, as data: an AWD-LSTM's figures on one GPU, 500 epochs."""

from __future__ import annotations

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
OURS = {"PLIF, ours": "PLIF, published"}
"""A head of our own, and the published head whose printed figures stand beside its."""


def printed(corpus: str, head: str, column: str = "test") -> float | None:
    """A head's figure over the softmax's; None where nothing is printed of it. Beside a head of ours: the published one's."""
    name, place, table = OURS.get(head, head), COLUMNS.index(column), TABLE[corpus]
    return table[name][place] / table["softmax"][place] if name in table else None
