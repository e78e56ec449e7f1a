"""A fitted linear classifier, read by an engine: ids of its own float64 coefficients, read rounded to float32.

::

    |score - rounded score| <= rounded * |x| + shifted         so a few classes more than k are fetched and ranked again
    log p = score - logsumexp(scores)          or, one-against-rest,      log sigmoid(score) - log(sum of all sigmoids)

Rows of X with few nonzeros are no engine's work: their products with the columns they name read less than a look at every
row's codes would, so those are taken instead, in float64, a few rows at a time.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import MethodType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, has_fit_parameter, validate_data

import headlong
from headlong.dtypes import Doubles
from headlong.engines.arguments import checked_eps, part_of
from headlong.errors import InputError
from headlong.integrations.sklearn.ranking import PIECE, Ranking, host_array
from headlong.integrations.sklearn.sources import check_kind, learned, linear, prepared
from headlong.layers.written_to import digest
from headlong.links import Table

SPARE = 4
"""Classes fetched beyond k, so that rounding the coefficients to float32 cannot hide one of the k."""
FEW = 8
"""Sparse rows with less than one number in this many: the float64 columns they name are fewer bytes than all int8 codes."""


class WeightedFit:
    """``fit`` with ``sample_weight`` in its signature, where classifiers around this one look, if ``estimator`` takes one."""

    def __init__(self, fit: Any) -> None:
        self.fit, self.__doc__ = fit, fit.__doc__

    def __get__(self, one: Any, kind: Any = None) -> Any:
        if one is None:
            return self.fit
        if not has_fit_parameter(_last(_inside(one)), "sample_weight"):
            return MethodType(self.fit, one)

        def fit(X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, **others: Any) -> Any:  # noqa: N803
            return self.fit(one, X, y, sample_weight=sample_weight, **others)

        return fit


class TopKClassifier(Ranking):
    """A linear classifier read by an engine.

    ``estimator``     a classifier of ``sources.py``, or a ``Pipeline`` that ends in one; None: ``LogisticRegression()``
    ``memory_limit``  bytes that ``predict_proba``, ``predict_log_proba`` and ``decision_function`` may return
    ``method, eps, delta``  as :func:`headlong.compile`
    """

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        *,
        method: str = "auto",
        eps: float = 0.01,
        delta: float = 1e-6,
        memory_limit: int = 2**30,
    ) -> None:
        self.estimator, self.memory_limit = estimator, memory_limit
        self.method, self.eps, self.delta = method, eps, delta

    @classmethod
    def of(cls, fitted: BaseEstimator, **parameters: Any) -> TopKClassifier:
        """Over a classifier, or a Pipeline that ends in one, that has been fitted already; it is kept, not copied."""
        made = cls(fitted, **parameters)
        made._adopt(fitted)
        return made

    @WeightedFit
    def fit(self, X: ArrayLike, y: ArrayLike, **parameters: Any) -> TopKClassifier:  # noqa: N803
        """Fit a copy of ``estimator``, and compile what it learned; ``sample_weight=`` where its own ``fit`` takes one."""
        if unknown := parameters.keys() - {"sample_weight"}:
            raise InputError(f"fit takes sample_weight=, and no {', '.join(sorted(unknown))}; set it on the estimator")
        inside = clone(_inside(self))
        check_kind(_last(inside))
        if not isinstance(inside, Pipeline):  # whose first step may read texts
            X, y = validate_data(self, host_array(X), y, accept_sparse="csr")  # noqa: N806
            check_classification_targets(y)
        self._adopt(inside.fit(X, y, **_weights(inside, parameters.get("sample_weight"), X)))
        return self

    def predict_topk(self, X: ArrayLike, k: int = 5, eps: float | None = None) -> tuple[Doubles, NDArray[Any]]:  # noqa: N803
        """``(proba, labels) [n, k]``, likeliest first. ``eps``: how far their logarithms may be off, in nats."""
        self._say_whose_probabilities()
        return super().predict_topk(X, k, eps)

    def predict_log_proba(self, X: ArrayLike) -> Doubles:  # noqa: N803
        """``[n, vocab]``; OptionError beyond ``memory_limit``."""
        self._say_whose_probabilities()
        return super().predict_log_proba(X)

    def _say_whose_probabilities(self) -> None:
        self._follow()
        if self._theirs:
            warnings.warn(f"{self._theirs}; those here are the softmax of its decision values", UserWarning, stacklevel=3)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            inside = get_tags(self.estimator)
            tags.input_tags.sparse, tags.input_tags.positive_only = inside.input_tags.sparse, inside.input_tags.positive_only
            tags.classifier_tags.poor_score = bool(inside.classifier_tags and inside.classifier_tags.poor_score)
        return tags

    @property
    def coef_(self) -> Doubles:
        """``[vocab, dim]``, and ``[1, dim]`` where there are two classes."""
        return self._weight[1:] - self._weight[:1] if len(self._weight) == 2 else self._weight

    @property
    def intercept_(self) -> Doubles:
        """``[vocab]``, and ``[1]`` where there are two classes."""
        return self._offset[1:] - self._offset[:1] if len(self._offset) == 2 else self._offset

    def _follow(self) -> None:
        """What was learned is read again where the estimator has learned more since: some do in the same arrays."""
        check_is_fitted(self)
        if self._seen != digest(*learned(_last(self.estimator_))):
            self._adopt(self.estimator_)

    def _adopt(self, fitted: BaseEstimator) -> None:
        pipeline = isinstance(fitted, Pipeline)
        self._before: Any = fitted[:-1] if pipeline and len(fitted) > 1 else None
        last = _last(fitted)
        self._seen = digest(*learned(last))
        found = linear(last)
        self.estimator_, self.classes_ = fitted, found.classes
        if hasattr(fitted, "feature_names_in_") and not pipeline:
            self.feature_names_in_ = fitted.feature_names_in_
        weight, offset = found.weight, found.offset
        if len(weight) == 1 and len(found.classes) == 2:  # one decision value: the first class has 0
            weight, offset = np.concatenate([np.zeros_like(weight), weight]), np.concatenate([[0.0], offset])
        self.n_features_in_ = weight.shape[1]
        self._weight, self._offset, self._sigmoids, self._above = weight, offset, found.sigmoids, found.above
        self._theirs = "" if found.own else _other_probabilities(last)
        self.engine_ = self._read()

    def _read(self) -> Any:
        """Over the classes that have a chance: those that a naive Bayes has not seen yet have none, -inf, and are nobody's."""
        engine, never = self._compiled(self._layer()), np.flatnonzero(np.isneginf(self._offset))
        return engine.without(never) if len(never) else engine

    def _layer(self) -> headlong.Layer:
        """The coefficients in float32, and how far that can move a decision value: ``rounded * ‖x‖ + shifted``."""
        own = np.where(np.isneginf(self._offset), 0.0, self._offset)
        weight, offset = self._weight.astype(np.float32), own.astype(np.float32)
        lost = np.sqrt(((weight - self._weight) ** 2).sum(axis=1).max())
        self._rounded = (float(lost) * (1 + 1e-9), float(np.abs(offset - own).max()))
        return headlong.Layer(weight, offset, log_sigmoid() if self._sigmoids else None)

    def _rows(self, X: ArrayLike) -> Any:  # noqa: N803
        self._follow()
        rows = super()._rows(X if self._before is None else self._before.transform(X))
        return prepared(rows, self._above)

    def _scores(self, rows: NDArray[Any]) -> Doubles:
        return np.asarray(safe_sparse_dot(rows.astype(np.float64), self._weight.T, dense_output=True) + self._offset)

    def _exponents(self, scores: Doubles) -> Doubles:
        return -np.logaddexp(0.0, -scores) if self._sigmoids else scores

    def _topk(self, rows: Any, k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        if not issparse(rows) or rows.nnz * FEW >= rows.shape[0] * rows.shape[1]:
            return super()._topk(rows, k, eps)
        step = max(1, PIECE // len(self.classes_))
        parts = [self._by_columns(rows[start : start + step], k) for start in range(0, rows.shape[0], step)]
        log_probs, ids = zip(*parts, strict=True)
        return np.concatenate(log_probs), np.concatenate(ids)

    def _by_columns(self, rows: Any, k: int) -> tuple[Doubles, NDArray[np.int64]]:
        """All decision values of a few sparse rows, from the columns that they name; of equal ones the first class."""
        columns = np.unique(rows.indices)
        scores = np.asarray(rows[:, columns].astype(np.float64) @ np.ascontiguousarray(self._weight.T[columns]))
        scores += self._offset
        ids = np.empty((len(scores), k), np.int64)
        for row, kth in enumerate(np.partition(scores, -k, axis=1)[:, -k]):
            reach = np.flatnonzero(scores[row] >= kth)
            ids[row] = reach[np.argsort(-scores[row, reach], kind="stable")[:k]]
        exponents = self._exponents(scores)
        return np.take_along_axis(exponents, ids, axis=1) - logsumexp(exponents, axis=1, keepdims=True), ids

    def _some(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        """The k best by the float64 coefficients: a few more by the rounded ones, ranked again."""
        vocab, spare = len(self.classes_), SPARE
        asked = checked_eps(self.eps if eps is None else eps)
        fine = self._sigmoids and asked < FINE  # finer than the table that the engine reads
        while True:
            top = self.engine_.topk(rows, k=min(k + spare, vocab), eps=np.inf if fine else part_of(asked, 0.9))
            named, never = np.array(top.ids), np.flatnonzero(np.isneginf(self._offset))
            if len(never):  # last, and in their own order
                named[named < 0] = np.tile(never[: (named[0] < 0).sum()] if len(named) else never, len(named))
            scores = self._again(rows, named)
            order = np.lexsort((named, -scores), axis=1)[:, :k]
            best, ids = (np.take_along_axis(part, order, axis=1) for part in (scores, named))
            reach = self._rounded[0] * np.linalg.norm(rows, axis=1) + self._rounded[1]
            if top.ids.shape[1] == vocab or (top.logits[:, -1] + reach < best[:, -1]).all():
                lse = self._lse(rows, top.lse, (reach > 0.1 * asked) | fine)
                return self._exponents(best) - lse[:, None], ids
            spare *= 8

    def _again(self, rows: NDArray[Any], ids: NDArray[np.int64]) -> Doubles:
        """Decision values of a few classes of each row, in float64; their coefficients are gathered for a few rows at once."""
        scores, step = np.empty(ids.shape), max(1, PIECE // (ids.shape[1] * rows.shape[1]))
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            scores[some] = np.einsum("nkd,nd->nk", self._weight[ids[some]], rows[some].astype(np.float64))
        return scores + self._offset[ids]

    def _lse(self, rows: NDArray[Any], lse: Doubles, far: NDArray[np.bool_]) -> Doubles:
        """``lse``, in float64 over all classes for rows whose decision values the rounded coefficients may miss too ``far``."""
        if not far.any():
            return lse
        exact, piece = np.array(lse), max(1, PIECE // len(self.classes_))
        for some in np.array_split(np.flatnonzero(far), -(-int(far.sum()) // piece)):
            exact[some] = logsumexp(self._exponents(self._scores(rows[some])), axis=1)
        return exact

    def __getstate__(self) -> dict[str, Any]:
        """An engine is made again from the coefficients rather than stored."""
        state = dict(super().__getstate__())
        state.pop("engine_", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "classes_" in state:
            self.engine_ = self._read()


FINE = 1e-4
"""Below this many nats an answer is not taken from the table of log sigmoid, which is off by at most 2e-7 a class."""


@cache
def log_sigmoid() -> Table:
    """``log sigmoid(z)`` as chords of width h, off by at most ``h^2 / 32``; straight beyond 40, where it is z, or 0."""
    reach, cells = 40.0, 2**15
    step = 2 * reach / cells
    values = -np.logaddexp(0.0, reach - step * np.arange(cells + 1))
    far = float(np.exp(-reach))  # what both tails leave out
    return Table(-reach, step, values, 1.0, float(np.finfo(np.float64).tiny), step * step / 32 + far)


def _other_probabilities(fitted: BaseEstimator) -> str:
    """Why the softmax of decision values is not the classifier's own probability."""
    name = type(fitted).__name__
    if not hasattr(fitted, "predict_proba"):
        return f"{name} has no probabilities of its own"
    return f"{name} computes its probabilities in another way"


def _inside(one: TopKClassifier) -> Any:
    return LogisticRegression() if one.estimator is None else one.estimator


def _last(inside: BaseEstimator) -> Any:
    return inside[-1] if isinstance(inside, Pipeline) else inside


def _weights(inside: BaseEstimator, sample_weight: ArrayLike | None, X: ArrayLike) -> dict[str, Any]:  # noqa: N803
    """``sample_weight`` as the estimator's ``fit`` takes it; InputError where it takes none."""
    if sample_weight is None:
        return {}
    last = _last(inside)
    if not has_fit_parameter(last, "sample_weight"):
        raise InputError(f"{type(last).__name__}.fit takes no sample_weight; expected an estimator that weighs its rows")
    if last is not inside:
        return {f"{inside.steps[-1][0]}__sample_weight": sample_weight}
    return {"sample_weight": _check_sample_weight(sample_weight, X)}
