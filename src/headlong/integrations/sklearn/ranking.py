"""What both classifiers share: rows in pieces, the k likeliest, and the dense matrices of scikit-learn's contract."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted, validate_data

import headlong
from headlong.arrays import as_numpy, kind_of
from headlong.dtypes import BFLOAT16, Doubles
from headlong.errors import OptionError, ShapeError

ROWS = 4096
"""Rows of ``X`` answered at once..."""
PIECE = 2**22
"""...and numbers held at once, where sparse rows are written out or all decision values are needed."""


class Ranking(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn ships no types
    """``engine_`` answers, ``classes_`` names the answers."""

    classes_: NDArray[Any]
    memory_limit: int
    method: str
    eps: float
    delta: float

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803  # scikit-learn's name
        """The likeliest class of each row; of equally likely ones the first in ``classes_``."""
        _, ids = self._topk(self._rows(X), 1, math.inf)
        return np.asarray(self.classes_[ids[:, 0]])

    def predict_topk(self, X: ArrayLike, k: int = 5, eps: float | None = None) -> tuple[Doubles, NDArray[Any]]:  # noqa: N803
        """``(proba, labels) [n, k]``, likeliest first. ``eps``: how far their logarithms may be off, in nats."""
        rows = self._rows(X)
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= len(self.classes_):
            raise ShapeError(f"k is {k!r}; expected 1 to {len(self.classes_):,}, the number of classes")
        log_probs, ids = self._topk(rows, int(k), eps)
        return np.exp(np.minimum(log_probs, 0.0)), np.asarray(self.classes_[ids])

    def predict_proba(self, X: ArrayLike) -> Doubles:  # noqa: N803
        """``[n, vocab]``, in the order of ``classes_``; OptionError beyond ``memory_limit``."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: ArrayLike) -> Doubles:  # noqa: N803
        """``[n, vocab]``; OptionError beyond ``memory_limit``."""
        exponents = self._exponents(self._all_scores(self._rows(X)))
        exponents -= exponents.max(axis=1, keepdims=True)  # first, so that rounding is of differences, as decision values are
        return np.asarray(exponents - logsumexp(exponents, axis=1, keepdims=True))

    def decision_function(self, X: ArrayLike) -> Doubles:  # noqa: N803
        """``[n, vocab]``, and ``[n]`` where there are two classes; OptionError beyond ``memory_limit``."""
        scores = self._all_scores(self._rows(X))
        return np.asarray(scores[:, 1] - scores[:, 0]) if len(self.classes_) == 2 else scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows(self, X: ArrayLike) -> Any:  # noqa: N803
        """``X``, checked: an array, or sparse rows."""
        check_is_fitted(self)
        return validate_data(self, host_array(X), reset=False, dtype=[np.float64, np.float32], accept_sparse="csr")

    def _topk(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        log_probs, ids = zip(*(self._some(piece, k, eps) for piece in written_out(rows)), strict=True)
        return np.concatenate(log_probs), np.concatenate(ids)

    @abstractmethod
    def _some(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        """``log_probs, ids [n, k]`` of a piece of dense rows."""

    @abstractmethod
    def _scores(self, rows: NDArray[Any]) -> Doubles:
        """``[n, vocab]`` decision values of rows that may be sparse."""

    def _exponents(self, scores: Doubles) -> Doubles:
        """What the softmax is taken of: the decision values, unless a classifier says otherwise."""
        return scores

    def _all_scores(self, rows: NDArray[Any]) -> Doubles:
        size = 8 * rows.shape[0] * len(self.classes_)
        if size > self.memory_limit:
            raise OptionError(
                f"all values of {rows.shape[0]:,} rows and {len(self.classes_):,} classes take {size / 2**30:.1f} GiB, more "
                f"than memory_limit={self.memory_limit:,}; use predict_topk, fewer rows, or raise memory_limit"
            )
        return self._scores(rows)

    def _compiled(self, layer: Any) -> Any:
        return headlong.compile(layer, self.method, eps=self.eps, delta=self.delta)


def host_array(rows: ArrayLike) -> Any:
    """A tensor as an array that scikit-learn reads; everything else as it is."""
    if kind_of(rows) != "torch":
        return rows
    array = as_numpy(rows, "X")
    return array.astype(np.float32) if array.dtype == BFLOAT16 else array


def written_out(rows: Any) -> Iterator[NDArray[Any]]:
    """Dense pieces of at most ``ROWS`` rows; of sparse ones, of at most about ``PIECE`` numbers."""
    sparse = issparse(rows)
    step = min(ROWS, max(1, PIECE // rows.shape[1])) if sparse else ROWS
    for start in range(0, rows.shape[0], step):
        piece = rows[start : start + step]
        yield piece.toarray() if sparse else piece


def predict_topk(model: BaseEstimator, X: ArrayLike, k: int = 5, eps: float | None = None) -> tuple[Doubles, NDArray[Any]]:  # noqa: N803
    """``predict_topk`` of a ``Pipeline``, or of a search's best one, whose last step has it. A classifier that has none is read
    as ``TopKClassifier.of`` reads it, and compiled for this call: keep ``TopKClassifier.of(model)`` for more than one."""
    while not hasattr(model, "predict_topk") and hasattr(model, "best_estimator_"):
        model = model.best_estimator_
    if isinstance(model, Pipeline):
        before, model = model[:-1], model[-1]
        X = before.transform(X) if len(before) else X  # noqa: N806
        return predict_topk(model, X, k, eps)
    if not isinstance(model, Ranking):
        from headlong.integrations.sklearn.linear import TopKClassifier  # which is a Ranking

        return TopKClassifier.of(model).predict_topk(X, k, eps)
    return model.predict_topk(X, k, eps)
