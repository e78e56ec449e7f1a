"""scikit-learn's own checks, and its own classifiers as the dense answer."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import headlong as hl
from headlong.errors import DtypeError, InputError, MissingPackageError, NonFiniteError, OptionError, ShapeError
from headlong.integrations.sklearn import HeadClassifier, TopKClassifier

QUICK = {"epochs": 30, "random_state": 0}


INSIDE = [
    LinearDiscriminantAnalysis(), NearestCentroid(), RidgeClassifier(), LinearSVC(), SGDClassifier(random_state=0),
    Perceptron(), OneVsRestClassifier(LogisticRegression()), MultinomialNB(), ComplementNB(), BernoulliNB(),
]  # fmt: skip


def not_for(estimator: Any) -> dict[str, str]:
    """Checks that ask what the classifier inside does not do, either."""
    inside = getattr(estimator, "estimator", None)
    found = {}
    if isinstance(inside, (MultinomialNB, ComplementNB)):
        found["check_decision_proba_consistency"] = "it passes negative numbers, which these do not take"
    if isinstance(inside, (LinearSVC, SGDClassifier, Perceptron)):
        for rows in ("dense", "sparse"):
            found[f"check_sample_weight_equivalence_on_{rows}_data"] = "its solver does not end where repeated rows take it"
    return found


@parametrize_with_checks(
    [
        TopKClassifier(), *map(TopKClassifier, INSIDE), HeadClassifier(epochs=50, random_state=0),
        OneVsRestClassifier(TopKClassifier(NearestCentroid())), OneVsRestClassifier(TopKClassifier()),
    ],
    expected_failed_checks=not_for,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # some checks mean to provoke warnings of the estimators inside
def test_scikit_learns_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def data(classes: int, rows: int = 1200, dim: int = 12) -> tuple[Any, Any]:
    rng = np.random.default_rng(4)
    labels = np.array([f"item {index:04d}" for index in range(classes)])
    centres = rng.standard_normal((classes, dim)) * 2
    chosen = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    return centres[chosen] + rng.standard_normal((rows, dim)), labels[chosen]


@pytest.mark.parametrize(
    "inside", [LogisticRegression(max_iter=300), SGDClassifier(loss="log_loss", random_state=0), RidgeClassifier()]
)
@pytest.mark.parametrize("classes", [2, 3, 60])
@pytest.mark.filterwarnings("ignore:RidgeClassifier has no probabilities")
def test_the_same_classes_as_the_estimator_inside(inside: Any, classes: int) -> None:
    x, y = data(classes)
    model = TopKClassifier(inside).fit(x, y)
    dense = model.estimator_.decision_function(x)
    dense = np.stack([np.zeros(len(dense)), dense], axis=1) if dense.ndim == 1 else dense
    k = min(5, classes)
    expected = np.argsort(-dense, axis=1, kind="stable")[:, :k]
    proba, labels = model.predict_topk(x, k)
    assert (labels == model.classes_[expected]).all()
    assert (model.predict(x) == model.estimator_.predict(x)).all()
    own = hasattr(model.estimator_, "predict_proba")  # RidgeClassifier has scores alone: their softmax
    every = model.estimator_.predict_proba(x) if own else softmax(dense, axis=1)
    true = np.take_along_axis(every, expected, 1)
    np.testing.assert_allclose(proba, true, rtol=0.0101, atol=1e-15)
    np.testing.assert_allclose(model.predict_proba(x), every, rtol=1e-6, atol=1e-15)
    assert (np.diff(proba, axis=1) <= 0).all()


def test_probabilities_are_those_of_logistic_regression() -> None:
    x, y = data(40)
    inside = LogisticRegression(max_iter=300).fit(x, y)
    model = TopKClassifier.of(inside)
    np.testing.assert_allclose(model.predict_proba(x), inside.predict_proba(x), rtol=1e-9, atol=1e-12)
    proba, labels = model.predict_topk(x, 3, eps=1e-9)
    at = np.searchsorted(inside.classes_, labels)
    np.testing.assert_allclose(proba, np.take_along_axis(inside.predict_proba(x), at, 1), rtol=1e-5)


def test_given_coefficients_with_near_ties_are_ranked_in_float64() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((1, 16))
    inside = LogisticRegression()
    inside.coef_ = np.repeat(base, 4000, 0) + 1e-9 * rng.standard_normal((4000, 16))  # equal once rounded to float32
    inside.intercept_, inside.classes_, inside.n_features_in_ = np.zeros(4000), np.arange(4000) * 3, 16
    x = rng.standard_normal((5, 16))
    _, labels = TopKClassifier.of(inside, method="codes").predict_topk(x, 4)
    dense = (inside.coef_[None] * x[:, None]).sum(-1)
    best = np.take_along_axis(dense, labels // 3, 1)
    assert (np.sort(dense, 1)[:, ::-1][:, :4] - best <= 1e-13).all()


def test_dense_probabilities_are_refused_beyond_the_limit() -> None:
    x, y = data(50)
    model = TopKClassifier(memory_limit=8 * 50 * 10).fit(x, y)
    assert model.predict_proba(x[:10]).shape == (10, 50)
    with pytest.raises(OptionError, match=r"11 rows and 50 classes .* use predict_topk"):
        model.predict_proba(x[:11])
    head = HeadClassifier(memory_limit=10, **QUICK).fit(x, y)
    with pytest.raises(OptionError, match="use predict_topk"):
        head.predict_proba(x)


def test_a_trained_head_learns_and_its_engine_agrees() -> None:
    x, y = data(30)
    model = HeadClassifier(**QUICK).fit(x, y)
    assert model.score(x, y) > 0.9
    proba = model.predict_proba(x)
    np.testing.assert_allclose(proba.sum(1), 1)
    best, labels = model.predict_topk(x, 4)
    order = np.argsort(-proba, 1, kind="stable")[:, :4]
    assert (labels[:, 0] == model.classes_[order[:, 0]]).all()
    np.testing.assert_allclose(best, np.take_along_axis(proba, order, 1), rtol=0.02)
    with pytest.raises(InputError, match="no head is called"):
        HeadClassifier(head="thick").fit(x, y)


def test_pipelines_pickles_and_faults() -> None:
    x, y = data(20)
    model = make_pipeline(StandardScaler(), TopKClassifier()).fit(x, y)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  # scikit-learn's own way, on our own bytes
    assert (again.predict(x) == model.predict(x)).all()
    assert isinstance(again[-1].engine_.layer, hl.Layer)
    with pytest.raises(ShapeError, match="k is 21; expected 1 to 20"):
        model[-1].predict_topk(x, 21)
    for odd in ("5", 2.0, None):
        with pytest.raises(ShapeError, match=f"k is {odd!r}; expected 1 to 20"):
            model[-1].predict_topk(x, odd)
    with pytest.raises(InputError, match="LogisticRegression is not fitted"):
        TopKClassifier.of(LogisticRegression())


@pytest.mark.parametrize("shift", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("eps", [None, 1e-6])
def test_large_features_keep_the_promise(shift: float, eps: float | None) -> None:
    x, y = data(40)
    model = TopKClassifier.of(LinearDiscriminantAnalysis().fit(x + shift, y))
    best, labels = model.predict_topk(x + shift, 5, eps=eps)
    scores = (x + shift).astype(np.float64) @ model._weight.T + model._offset
    places = np.searchsorted(model.classes_, labels)
    expected = np.take_along_axis(scores - logsumexp(scores, axis=1)[:, None], places, axis=1)
    assert np.abs(np.log(best) - expected).max() <= (0.01 if eps is None else eps)
    assert best.max() <= 1 + 1e-6


def test_names_of_features_are_the_fitted_ones() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; only frames have names of features")
    x, y = data(5)
    frame = pandas.DataFrame(x, columns=[f"feature {index}" for index in range(12)])
    inside = LogisticRegression(max_iter=300).fit(frame, y)
    model = TopKClassifier.of(inside)
    assert (model.predict(frame) == inside.predict(frame)).all()  # no warning
    assert (TopKClassifier(inside).fit(frame, y).feature_names_in_ == frame.columns).all()
    for one in (model, TopKClassifier(inside).fit(frame, y)):
        with pytest.raises(ValueError, match="feature names should match"):
            one.predict(frame[frame.columns[::-1]])


def test_sparse_coefficients_are_read() -> None:
    x, y = data(7)
    inside = LogisticRegression(max_iter=300).fit(x, y)
    expected = inside.predict(x)
    assert (TopKClassifier.of(inside.sparsify()).predict(x) == expected).all()


def test_tensors_are_read_as_arrays_are() -> None:
    x, y = data(6)
    model = TopKClassifier().fit(torch.from_numpy(x).requires_grad_(), y)
    rows = torch.from_numpy(x[:9])
    for given in (rows, rows.clone().requires_grad_(), rows.bfloat16(), rows.half()):
        assert (model.predict(given) == model.predict(given.detach().double().numpy())).all()
    for wrong in (rows.to_sparse(), rows.to("meta"), rows.to(torch.float8_e4m3fn)):
        with pytest.raises(DtypeError):
            model.predict(wrong)


def test_bad_settings_are_named() -> None:
    x, y = data(6)
    with pytest.raises(InputError, match="RidgeClassifier was fitted on multilabel-indicator targets"):
        TopKClassifier.of(RidgeClassifier().fit(x, y[:, None] == np.unique(y)))
    for setting, value in [("epochs", 0), ("epochs", -1), ("batch_size", 0), ("rate", float("nan")), ("rate", -1.0)]:
        with pytest.raises(OptionError, match=f"{setting} is {value}"):
            HeadClassifier(**{setting: value}).fit(x, y)
    with pytest.raises(NonFiniteError, match="rescale the features"):
        HeadClassifier().fit(x * 1e200, y)
    with pytest.raises(ShapeError, match="k is True"):
        TopKClassifier().fit(x, y).predict_topk(x, True)


def test_an_older_scikit_learn_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn

    monkeypatch.setattr(sklearn, "__version__", "1.5.2")
    monkeypatch.delitem(sys.modules, "headlong.integrations.sklearn")
    with pytest.raises(MissingPackageError, match=r"scikit-learn is 1.5.2; headlong.integrations.sklearn needs 1.6 or newer"):
        __import__("headlong.integrations.sklearn")


def test_what_is_missing_for_training_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = np.eye(6), np.arange(6)
    monkeypatch.setitem(sys.modules, "headlong.integrations.sklearn.training", None)  # as without PyTorch
    with pytest.raises(MissingPackageError, match=r"HeadClassifier trains with PyTorch .*pip install 'headlong\[torch\]'"):
        HeadClassifier(epochs=1).fit(X, y)
