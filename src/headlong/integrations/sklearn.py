"""scikit-learn classifiers with many classes: the k likeliest without the ``[n, vocab]`` matrix.

::

    proba, labels = TopKClassifier.of(fitted).predict_topk(X, k=5)          # any fitted linear classifier
    TopKClassifier(LogisticRegression()).fit(X, y).predict(X)               # or fitted here
    HeadClassifier(head="dense", epochs=10).fit(X, y).predict_topk(X, 5)    # trained by a head of headlong.heads

``predict_proba`` is dense, as scikit-learn's contract says, and refuses matrices beyond ``memory_limit`` bytes.
Probabilities are the softmax of the decision values: for a multinomial ``LogisticRegression`` its own; for classifiers
without probabilities (``RidgeClassifier``, hinge loss) a score that ranks as they do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import headlong
from headlong.checks import real, whole
from headlong.engines.arguments import checked_eps
from headlong.errors import InputError, NonFiniteError, OptionError, ShapeError

Doubles = NDArray[np.float64]

ROWS = 4096
"""Rows of ``X`` answered at once."""
SPARE = 4
"""Classes fetched beyond k, so that rounding the coefficients to float32 cannot hide one of the k."""
PIECE = 2**22
"""Decision values held at once where all of them are needed."""


class _Ranking(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """What both classifiers share: ``engine_`` answers, ``classes_`` names the answers."""

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803  # scikit-learn's name
        """The likeliest class of each row; of equally likely ones the first in ``classes_``."""
        _, ids = self._topk(self._rows(X), 1, math.inf)
        return np.asarray(self.classes_[ids[:, 0]])

    def predict_topk(self, X: Any, k: int = 5, eps: float | None = None) -> tuple[Doubles, NDArray[Any]]:  # noqa: N803
        """``(proba, labels) [n, k]``, likeliest first. ``eps``: how far log-probabilities may be off, in nats."""
        rows = self._rows(X)
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= len(self.classes_):
            raise ShapeError(f"k is {k!r}; expected 1 to {len(self.classes_)}, the number of classes")
        log_probs, ids = self._topk(rows, int(k), eps)
        return np.exp(log_probs), np.asarray(self.classes_[ids])

    def _rows(self, X: Any) -> NDArray[Any]:  # noqa: N803
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=[np.float64, np.float32]))

    def _topk(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        parts = [self._some(rows[start : start + ROWS], k, eps) for start in range(0, max(1, len(rows)), ROWS)]
        log_probs, ids = zip(*parts, strict=True)
        return np.concatenate(log_probs), np.concatenate(ids)

    def _some(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        top = self.engine_.topk(rows, k=k, eps=eps)
        return top.log_probs, top.ids

    def _fits(self, rows: int) -> None:
        size = 8 * rows * len(self.classes_)
        if size > self.memory_limit:
            raise OptionError(
                f"predict_proba of {rows:,} rows and {len(self.classes_):,} classes takes {size / 2**30:.1f} GiB, more than "
                f"memory_limit={self.memory_limit:,}; use predict_topk, fewer rows, or raise memory_limit"
            )

    def _compiled(self, layer: Any) -> Any:
        return headlong.compile(layer, self.method, eps=self.eps, delta=self.delta)

    def __getstate__(self) -> dict[str, Any]:
        """An engine is made again from the layer rather than stored."""
        state = dict(super().__getstate__())
        state.pop("engine_", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "classes_" in state:
            self.engine_ = self._compiled(self._layer())


class TopKClassifier(_Ranking):
    """A linear classifier read by an engine.

    ``estimator``     anything with ``coef_``, ``intercept_`` and ``classes_`` once fitted; None: ``LogisticRegression()``
    ``memory_limit``  bytes that ``predict_proba`` may return
    ``method, eps, delta``  as :func:`headlong.compile`
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "auto",
        eps: float = 0.01,
        delta: float = 1e-3,
        memory_limit: int = 2**30,
    ) -> None:
        self.estimator, self.memory_limit = estimator, memory_limit
        self.method, self.eps, self.delta = method, eps, delta

    @classmethod
    def of(cls, fitted: Any, **parameters: Any) -> TopKClassifier:
        """Over a classifier that has been fitted already; it is kept, not copied."""
        made = cls(fitted, **parameters)
        made._adopt(fitted)
        return made

    def fit(self, X: Any, y: Any) -> TopKClassifier:  # noqa: N803
        """Fit a copy of ``estimator``, and compile what it learned."""
        X, y = validate_data(self, X, y)  # noqa: N806
        check_classification_targets(y)
        self._adopt((LogisticRegression() if self.estimator is None else clone(self.estimator)).fit(X, y))
        return self

    def predict_proba(self, X: Any) -> Doubles:  # noqa: N803
        """``[n, vocab]``: the softmax of all decision values; OptionError beyond ``memory_limit``."""
        rows = self._rows(X)
        self._fits(len(rows))
        scores = rows.astype(np.float64) @ self._weight.T + self._offset
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return np.asarray(scores)

    def _adopt(self, fitted: Any) -> None:
        for name in ("coef_", "intercept_", "classes_"):
            if not hasattr(fitted, name):
                raise InputError(f"{type(fitted).__name__} has no {name}; expected a fitted linear classifier")
        targets = getattr(getattr(fitted, "_label_binarizer", None), "y_type_", "")
        if targets.startswith("multilabel"):
            raise InputError(f"{type(fitted).__name__} was fitted on {targets} targets; expected one class for each row")
        self.estimator_, self.classes_ = fitted, np.asarray(fitted.classes_)
        if hasattr(fitted, "feature_names_in_"):
            self.feature_names_in_ = fitted.feature_names_in_
        coefficients = fitted.coef_.toarray() if issparse(fitted.coef_) else fitted.coef_  # after sparsify()
        weight = np.atleast_2d(np.asarray(coefficients, np.float64))
        offset = np.broadcast_to(np.asarray(fitted.intercept_, np.float64).reshape(-1), len(weight)).copy()
        if len(weight) == 1 and len(self.classes_) == 2:  # one decision value: the first class has 0
            weight, offset = np.concatenate([np.zeros_like(weight), weight]), np.concatenate([[0.0], offset])
        if len(weight) != len(self.classes_):
            raise ShapeError(f"coef_ has {len(weight)} rows for {len(self.classes_)} classes; expected one row per class")
        self.n_features_in_ = weight.shape[1]
        self._weight, self._offset = weight, offset
        self.engine_ = self._compiled(self._layer())

    def _layer(self) -> headlong.Layer:
        """The coefficients in float32, and how far that can move a decision value: ``rounded * ‖x‖ + shifted``."""
        weight, offset = self._weight.astype(np.float32), self._offset.astype(np.float32)
        lost = np.sqrt(((weight - self._weight) ** 2).sum(axis=1).max())
        self._rounded = (float(lost) * (1 + 1e-9), float(np.abs(offset - self._offset).max()))
        return headlong.Layer(weight, offset)

    def _some(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        """The k best by the float64 coefficients: a few more by the rounded ones, ranked again."""
        vocab, spare = len(self.classes_), SPARE
        asked = checked_eps(self.eps if eps is None else eps)
        while True:
            top = self.engine_.topk(rows, k=min(k + spare, vocab), eps=0.9 * asked)
            scores = np.einsum("nkd,nd->nk", self._weight[top.ids], rows.astype(np.float64)) + self._offset[top.ids]
            order = np.lexsort((top.ids, -scores), axis=1)[:, :k]
            best, ids = (np.take_along_axis(part, order, axis=1) for part in (scores, top.ids))
            reach = self._rounded[0] * np.linalg.norm(rows, axis=1) + self._rounded[1]
            if top.ids.shape[1] == vocab or (top.logits[:, -1] + reach < best[:, -1]).all():
                return best - self._lse(rows, top.lse, reach > 0.1 * asked)[:, None], ids
            spare *= 8

    def _lse(self, rows: NDArray[Any], lse: Doubles, far: NDArray[np.bool_]) -> Doubles:
        """``lse``, in float64 over all classes for rows whose decision values the rounded coefficients may miss too ``far``."""
        if not far.any():
            return lse
        exact, piece = np.array(lse), max(1, PIECE // len(self.classes_))
        for some in np.array_split(np.flatnonzero(far), -(-int(far.sum()) // piece)):
            scores = rows[some].astype(np.float64) @ self._weight.T + self._offset
            exact[some] = logsumexp(scores, axis=1)
        return exact


class HeadClassifier(_Ranking):
    """An output layer of :mod:`headlong.heads` trained on features, by Adam.

    ``head, options``   the head's name and its options
    ``epochs, batch_size, rate``   passes over the rows, rows of a step, Adam's learning rate
    ``random_state``    an int makes a fit repeatable
    """

    def __init__(
        self,
        head: str = "dense",
        options: dict[str, Any] | None = None,
        *,
        epochs: int = 50,
        batch_size: int = 64,
        rate: float = 0.02,
        random_state: Any = None,
        method: str = "auto",
        eps: float = 0.01,
        delta: float = 1e-3,
        memory_limit: int = 2**30,
    ) -> None:
        self.head, self.options, self.epochs, self.batch_size, self.rate = head, options, epochs, batch_size, rate
        self.random_state, self.memory_limit = random_state, memory_limit
        self.method, self.eps, self.delta = method, eps, delta

    def fit(self, X: Any, y: Any) -> HeadClassifier:  # noqa: N803
        """Standardise the features, train, finish, compile."""
        from headlong.integrations.training import trained

        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])  # noqa: N806
        check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y holds one class, {self.classes_[0]!r}; expected two or more classes")
        whole(self.epochs, "epochs", 1, 2**31)
        whole(self.batch_size, "batch_size", 1, 2**31)
        real(self.rate, "rate", 1e-12, 1e6)
        with np.errstate(over="ignore", invalid="ignore"):
            self.centre_, spread = X.mean(axis=0), X.std(axis=0)
        if not np.isfinite(spread).all():
            raise NonFiniteError(f"X reaches {np.abs(X).max():.3g}, whose squares overflow; rescale the features")
        self.scale_ = np.where(spread > 0, spread, 1.0)
        rows = ((X - self.centre_) / self.scale_).astype(np.float32)
        self.layer_ = trained(rows, target, len(self.classes_), self.get_params())
        self.engine_ = self._compiled(self.layer_)
        return self

    def predict_proba(self, X: Any) -> Doubles:  # noqa: N803
        """``[n, vocab]``, in the order of ``classes_``; OptionError beyond ``memory_limit``."""
        rows = self._rows(X)
        self._fits(len(rows))
        log_probs, ids = self._topk(rows, len(self.classes_), self.eps)
        dense = np.zeros_like(log_probs)
        np.put_along_axis(dense, ids, np.exp(log_probs), axis=1)
        return np.asarray(dense / dense.sum(axis=1, keepdims=True))

    def _rows(self, X: Any) -> NDArray[Any]:  # noqa: N803
        return np.asarray(((super()._rows(X) - self.centre_) / self.scale_).astype(np.float32))

    def _layer(self) -> Any:
        return self.layer_
