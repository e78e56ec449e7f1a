"""Fitted classifiers whose decision values are linear in what they are given, as one matrix and an offset::

    scores = prepare(X) @ weight.T + offset          argmax as the classifier's own predict

linear models, discriminants ``coef_``, ``intercept_``: scikit-learn's LinearClassifierMixin, which decides so; support vectors
                             with a linear kernel of two classes (of more, their rows are pairs of classes)
OneVsRestClassifier          one row from each of its estimators
MultinomialNB, ComplementNB  weight = feature_log_prob_, offset = class_log_prior_ (Complement's: none)
BernoulliNB                  weight = log p - log(1 - p), offset = prior + sum log(1 - p); prepare: its threshold
NearestCentroid              -|(x - c) / s|^2 = 2 <x, c / s^2> - |c / s|^2 - |x / s|^2, the last the same for all classes, s the
                             spread of each feature; where priors are equal its predict uses no spread: half of this, with
                             one s for all features, is the log-density of rows spread alike around each centroid
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import binarize
from sklearn.svm import SVC, NuSVC

from headlong.dtypes import Doubles
from headlong.errors import InputError, ShapeError


class LinearModel(NamedTuple):
    """``weight [vocab, dim]``, ``offset [vocab]`` (one row for two classes: those of the second), ``classes [vocab]``.

    ``sigmoids``  probabilities are ``sigmoid(score) / sum of all sigmoids``, not the softmax of scores
    ``above``     rows are read as whether each number is above this; None: as they are
    ``own``       whether those probabilities are what the classifier's own ``predict_proba`` gives
    """

    weight: Doubles
    offset: Doubles
    classes: NDArray[Any]
    sigmoids: bool = False
    above: float | None = None
    own: bool = False


def linear(fitted: BaseEstimator) -> LinearModel:
    """The matrix in a fitted classifier; InputError where there is none."""
    check_kind(fitted)
    for kind, reader in _READERS.items():
        if isinstance(fitted, kind):
            if not hasattr(fitted, "classes_"):
                raise InputError(f"{type(fitted).__name__} is not fitted; call its fit first")
            return _checked(reader(fitted), fitted)
    if not hasattr(fitted, "coef_") or not hasattr(fitted, "classes_"):
        raise InputError(f"{type(fitted).__name__} is not fitted; call its fit first")
    return _checked(_of_coefficients(fitted), fitted)


def check_kind(estimator: BaseEstimator) -> None:
    """InputError for what is none of these classifiers, fitted or not."""
    if not isinstance(estimator, tuple(_READERS)) and not _decides_by_products(estimator):
        raise InputError(
            f"{type(estimator).__name__} is none of the classifiers that take the largest of one product for each class; "
            "expected one of scikit-learn's linear models or discriminants, LinearSVC, OneVsRestClassifier over one of them, "
            "MultinomialNB, ComplementNB, BernoulliNB or NearestCentroid"
        )


def _decides_by_products(fitted: BaseEstimator) -> bool:
    """``X @ coef_.T + intercept_``, the largest first, by its type: other classifiers have attributes of the same names."""
    if isinstance(fitted, (SVC, NuSVC)):
        return bool(fitted.kernel == "linear" and len(getattr(fitted, "classes_", "ab")) == 2)
    own = (getattr(type(fitted), name, None) for name in ("decision_function", "predict"))
    return isinstance(fitted, LinearClassifierMixin) and all(str(method.__module__).startswith("sklearn.") for method in own)


def _checked(found: LinearModel, fitted: BaseEstimator) -> LinearModel:
    targets = getattr(getattr(fitted, "_label_binarizer", None), "y_type_", "")
    if targets.startswith("multilabel") or getattr(fitted, "multilabel_", False):
        raise InputError(
            f"{type(fitted).__name__} was fitted on {targets or 'multilabel'} targets; expected one class for each row"
        )
    if len(found.weight) != len(found.classes) and not (len(found.weight) == 1 and len(found.classes) == 2):
        raise ShapeError(
            f"coef_ has {len(found.weight):,} rows for {len(found.classes):,} classes; expected one row per class"
        )
    chance = np.isfinite(found.offset)
    if not (np.isfinite(found.weight).all() and (chance | np.isneginf(found.offset)).all() and chance.any()):
        raise InputError(
            f"{type(fitted).__name__} has learned infinite or undefined numbers (a word that never occurs in a class, or has a "
            "sample_weight of 0?); fit it with smoothing: alpha above 0"
        )
    return found


def learned(fitted: BaseEstimator) -> Iterator[NDArray[Any]]:
    """The arrays that a fitted estimator holds, and those of the estimators in it."""
    for name, value in sorted(vars(fitted).items()):
        if isinstance(value, list) and name == "estimators_":
            for part in value:
                yield from learned(part)
        elif issparse(value) and name.endswith("_"):
            yield from (value.data, value.indices, value.indptr)
        elif isinstance(value, np.ndarray) and name.endswith("_") and not value.dtype.hasobject:
            yield value


def _of_coefficients(fitted: BaseEstimator) -> LinearModel:
    coefficients = fitted.coef_.toarray() if issparse(fitted.coef_) else fitted.coef_  # after sparsify()
    weight = np.atleast_2d(np.asarray(coefficients, np.float64))
    offset = np.broadcast_to(np.asarray(fitted.intercept_, np.float64).reshape(-1), len(weight)).copy()
    sigmoids = len(weight) > 1 and _one_against_rest(fitted)
    return LinearModel(weight, offset, np.asarray(fitted.classes_), sigmoids, own=sigmoids or _is_logistic(fitted))


def _is_logistic(fitted: BaseEstimator) -> bool:
    """Whether probabilities are the softmax of decision values, of two classes the sigmoid."""
    two = len(fitted.classes_) == 2 and isinstance(fitted, SGDClassifier) and fitted.loss == "log_loss"
    return two or isinstance(fitted, (LogisticRegression, LinearDiscriminantAnalysis))


def _one_against_rest(fitted: BaseEstimator) -> bool:
    """Whether each class has a sigmoid of its own: SGD's logistic loss, and logistic regression in older versions."""
    if isinstance(fitted, LogisticRegression):
        chosen = getattr(fitted, "multi_class", "auto")
        return chosen == "ovr" or (chosen in ("auto", "deprecated") and fitted.solver == "liblinear")
    return isinstance(fitted, SGDClassifier) and fitted.loss == "log_loss"


def _of_one_vs_rest(fitted: OneVsRestClassifier) -> LinearModel:
    rows: list[Doubles | None] = []
    offsets, sigmoids = [], True
    for part in fitted.estimators_:
        if type(part).__name__ == "_ConstantPredictor":  # a class that every row, or none, was of
            rows.append(None)
            offsets.append(float(np.ravel(part.y_)[0]))
            sigmoids = False
            continue
        own = _of_coefficients(part) if _decides_by_products(part) else None
        if own is None or len(own.weight) != 1:
            raise InputError(
                f"OneVsRestClassifier is over {type(part).__name__}; expected a linear classifier, which has coef_"
            )
        rows.append(own.weight[0])
        offsets.append(float(own.offset[0]))
        sigmoids &= own.own
    dim = next((len(row) for row in rows if row is not None), 0)
    if not dim:
        raise InputError("OneVsRestClassifier has learned constants only (of one class?); expected two or more in its rows")
    weight = np.stack([np.zeros(dim) if row is None else row for row in rows])
    return LinearModel(weight, np.array(offsets), np.asarray(fitted.classes_), sigmoids and len(weight) > 1, own=sigmoids)


def _of_counts(fitted: MultinomialNB) -> LinearModel:
    weight, prior = np.asarray(fitted.feature_log_prob_), np.asarray(fitted.class_log_prior_)
    return LinearModel(weight, prior, np.asarray(fitted.classes_), own=True)


def _of_complements(fitted: ComplementNB) -> LinearModel:
    alone = len(fitted.classes_) == 1
    offset = np.asarray(fitted.class_log_prior_) if alone else np.zeros(len(fitted.classes_))
    return LinearModel(np.asarray(fitted.feature_log_prob_), offset, np.asarray(fitted.classes_), own=True)


def _of_bernoulli(fitted: BernoulliNB) -> LinearModel:
    with np.errstate(divide="ignore", invalid="ignore"):  # refused below where it is infinite
        absent = np.log1p(-np.exp(fitted.feature_log_prob_))
        weight = fitted.feature_log_prob_ - absent
    offset = fitted.class_log_prior_ + absent.sum(axis=1)
    return LinearModel(weight, offset, np.asarray(fitted.classes_), above=fitted.binarize, own=True)


def _of_centroids(fitted: NearestCentroid) -> LinearModel:
    if fitted.metric != "euclidean":
        raise InputError(f"NearestCentroid has metric={fitted.metric!r}; only 'euclidean' is a product of rows")
    centroids, prior = np.asarray(fitted.centroids_, np.float64), np.asarray(fitted.class_prior_, np.float64)
    spread = np.asarray(fitted.within_class_std_dev_, np.float64)
    equal = bool(np.isclose(prior, 1 / len(prior)).all())
    if equal:  # its predict takes the nearest as they are: one spread for all keeps that order
        spread = np.full_like(spread, np.sqrt(2 * np.mean(spread**2)))
    spread = np.where(spread != 0, spread, 1.0)
    offset = (0.0 if equal else 2 * np.log(prior)) - ((centroids / spread) ** 2).sum(axis=1)
    return LinearModel(2 * centroids / spread**2, offset, np.asarray(fitted.classes_), own=not equal)


_READERS: dict[type, Callable[[Any], LinearModel]] = {
    OneVsRestClassifier: _of_one_vs_rest,
    MultinomialNB: _of_counts,
    ComplementNB: _of_complements,
    BernoulliNB: _of_bernoulli,
    NearestCentroid: _of_centroids,
}


def prepared(rows: NDArray[Any], above: float | None) -> Any:
    """``rows``, or whether each of their numbers is above a threshold."""
    return rows if above is None else binarize(rows, threshold=above)
