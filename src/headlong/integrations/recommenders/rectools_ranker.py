"""A ranker for RecTools: what its ``ImplicitRanker`` answers, exactly and from an engine.

::

    DOT        <u, i>                       COSINE     <u, i> / |u||i|                    EUCLIDEAN  |u - i|, the nearest first
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rectools.models.rank import Distance
from scipy.sparse import csr_matrix

import headlong
from headlong.errors import InputError, ShapeError

ROWS = 1024
"""Subjects that are answered at once."""


class HeadlongRanker:
    """``subjects_factors [subjects, dim]``, ``objects_factors [objects, dim]``; ``options`` go to :func:`headlong.compile`."""

    def __init__(self, distance: Distance, subjects_factors: ArrayLike, objects_factors: ArrayLike, **options: Any) -> None:
        self.distance = Distance(distance)
        self.subjects = np.array(subjects_factors, np.float32)  # as they are now, like the objects
        objects = np.asarray(objects_factors, np.float32)
        bias = None
        if self.distance == Distance.COSINE:
            objects = (objects / _lengths(objects)).astype(np.float32)
        if self.distance == Distance.EUCLIDEAN:
            bias = (-0.5 * np.square(objects.astype(np.float64)).sum(1)).astype(np.float32)
        calibration = self.subjects[:: max(1, len(self.subjects) // 512)]
        shared = {"eps": np.inf, "delta": 0.0, "calibration": calibration if len(calibration) else None, **options}
        self.engine = headlong.compile(headlong.Layer(objects, bias, copy=True), **shared)

    def rank(
        self, subject_ids: ArrayLike, k: int | None = None, filter_pairs_csr: csr_matrix | None = None,
        sorted_object_whitelist: ArrayLike | None = None,
    ) -> tuple[list[Any], NDArray[np.int64], NDArray[np.float32]]:  # fmt: skip
        """``subjects, objects, scores``, flat: the best ``k`` of each subject, best first, those that are left out missing."""
        subjects = np.asarray(subject_ids)
        if filter_pairs_csr is not None and filter_pairs_csr.shape[0] != len(subjects):
            raise ShapeError(
                f"filter_pairs_csr has {filter_pairs_csr.shape[0]} rows for {len(subjects):,} subjects; expected one each"
            )
        allowed = None if sorted_object_whitelist is None else np.asarray(sorted_object_whitelist)
        most = self.engine.layer.vocab if allowed is None else len(allowed)
        if not most:
            raise InputError("sorted_object_whitelist is empty; expected objects to rank")
        count = most if k is None else min(int(k), most)
        found = []
        for start in range(0, len(subjects), ROWS):
            some = slice(start, start + ROWS)
            out = None if filter_pairs_csr is None else filter_pairs_csr[some]
            top = self.engine.topk(self.subjects[subjects[some]], count, allowed=allowed, exclude=out)
            found.append((top.ids, self._scores(top, subjects[some])))
        ids = np.concatenate([part for part, _ in found]) if found else np.empty((0, count), np.int64)
        scores = np.concatenate([part for _, part in found]) if found else np.empty((0, count), np.float32)
        there = ids >= 0
        return list(np.repeat(subjects, there.sum(1))), ids[there], scores[there]

    def _scores(self, top: Any, subjects: NDArray[Any]) -> NDArray[np.float32]:
        wide = self.subjects[subjects].astype(np.float64)
        if self.distance == Distance.COSINE:
            return np.asarray(top.logits / _lengths(wide), np.float32)
        if self.distance == Distance.EUCLIDEAN:
            squares = np.square(wide).sum(1, keepdims=True) - 2 * np.asarray(top.logits)
            return np.asarray(np.sqrt(np.maximum(squares, 0.0)), np.float32)
        return np.asarray(top.logits, np.float32)


def _lengths(rows: NDArray[Any]) -> NDArray[np.float64]:
    """``[n, 1]``; a row of zeros is at right angles to everything, as in RecTools."""
    found: NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.where(found > 0, found, 1e-10)
