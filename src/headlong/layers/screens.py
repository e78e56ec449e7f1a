"""A trained layer behind a screen: clusters of contexts or of classes say which rows are worth reading.

::

    x = [hidden, 1]        chosen = the ``probes`` clusters with the largest <centroid, x>, the smaller among equals
    candidates = the classes of the chosen clusters        z = weight @ hidden + bias, exactly, for them alone

Two published screens have this form: learned screening (Chen et al., 2019: one cluster of contexts, overlapping sets of
classes) and equal-size clusters of rows with several probes, which recent drafters ship. The rows are stored once, in the
order of their ids. What the screen misses is not bounded; ``missed`` is what was measured on vectors held out for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, stored_matrix
from headlong.errors import IdError, NonFiniteError, OptionError, ShapeError
from headlong.layers.experts import ExpertsLayer, whole_numbers
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer, part_of, part_tensors, register_layer
from headlong.links import IDENTITY


@register_layer
class ScreenLayer(StructuredLayer):
    """``rows`` (a plain layer), ``centroids [C, dim + 1]`` float32, ``ids [n]`` in runs ``starts [C + 1]``.

    ``probes``  clusters that a query reads
    ``missed``  ``(k, rate)``: the top k of a query like the calibration vectors are incomplete at most at this rate; or None
    """

    kind: ClassVar[str] = "screens"

    def __init__(
        self,
        rows: Layer,
        centroids: Any,
        ids: Any,
        starts: Any,
        probes: int = 1,
        missed: tuple[int, float] | None = None,
    ) -> None:
        self.rows, self.vocab, self.dim = rows, rows.vocab, rows.dim
        self.centroids: NDArray[np.float32] = stored_matrix(centroids, "centroids").astype(np.float32)
        self.centroids.flags.writeable = False
        self.ids, self.starts = whole_numbers(ids, "ids"), whole_numbers(starts, "starts")
        self.probes, self.missed = probes, None if missed is None else (int(missed[0]), float(missed[1]))
        self._check()

    @property
    def clusters(self) -> int:
        return len(self.centroids)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def part(self, number: int) -> slice:
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def packed(self) -> ExpertsLayer:
        """With one probe: each cluster's rows side by side, so that a query is one contiguous scan. Costs their memory."""
        if self.probes != 1:
            raise OptionError(f"this screen reads {self.probes} clusters; only one probe can be packed: pass probes=1")
        rows, bias = self.rows, self.rows.bias
        last = np.zeros((self.vocab, 1), np.float32) if bias is None else bias[:, None]
        weight = np.concatenate([rows.weight[self.ids].astype(np.float32), last[self.ids]], axis=1)
        return ExpertsLayer(self.centroids, weight, self.ids, self.starts, self.vocab, constant=True, scaled=False)

    def tensors(self) -> dict[str, Array]:
        return {**part_tensors("rows", self.rows), "centroids": self.centroids, "ids": self.ids, "starts": self.starts}

    def facts(self) -> dict[str, Any]:
        return {"probes": self.probes, "missed": self.missed}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> ScreenLayer:
        centroids, ids, starts = (tensors[name] for name in ("centroids", "ids", "starts"))
        missed = facts["missed"]
        return cls(part_of("rows", tensors), centroids, ids, starts, facts["probes"], missed and (missed[0], missed[1]))

    def _check(self) -> None:
        count, width = self.centroids.shape
        if self.rows.link != IDENTITY:
            raise OptionError(f"the rows have the link {self.rows.link}; fold it into the weights before screening them")
        if width != self.dim + 1:
            raise ShapeError(f"centroids are {[count, width]}; expected [clusters, {self.dim + 1}]: the last is for a constant")
        if not np.isfinite(self.centroids).all():
            raise NonFiniteError("centroids hold NaN or infinity; repair them")
        if self.starts.shape != (count + 1,) or self.starts[0] != 0 or self.starts[-1] != len(self.ids):
            raise ShapeError(f"starts {list(self.starts.shape)} do not divide {len(self.ids)} ids among {count} clusters")
        if (empty := self.starts[1:] <= self.starts[:-1]).any():  # compared, not subtracted: damaged numbers may be far apart
            raise OptionError(f"cluster {int(np.argmax(empty))} has no class; leave every cluster one or more")
        if self.ids.min() < 0 or self.ids.max() >= self.vocab:
            raise IdError(f"ids hold {int(self.ids.min())}..{int(self.ids.max())}; class ids run from 0 to {self.vocab - 1}")
        inner = np.ones(len(self.ids), bool)
        inner[self.starts[:-1]] = False
        if (np.diff(self.ids, prepend=-1)[inner] <= 0).any():
            raise IdError("the ids of a cluster do not ascend, or one occurs twice; sort each cluster's ids")
        if type(self.probes) is not int or not 1 <= self.probes <= count:
            raise OptionError(f"probes={self.probes!r}; expected 1 to the {count} clusters")
        if self.missed is not None and not (self.missed[0] >= 1 and 0 <= self.missed[1] <= 1):
            raise OptionError(f"missed={self.missed}; expected (k, rate) with k of 1 or more and a rate from 0 to 1")

    def __repr__(self) -> str:
        sizes = self.sizes
        return (
            f"ScreenLayer(vocab={self.vocab}, dim={self.dim}, {self.rows.dtype}, {self.clusters} clusters of {sizes.min()} to "
            f"{sizes.max()} classes, probes={self.probes})"
        )
