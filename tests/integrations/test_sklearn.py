"""scikit-learn's own checks, and its answers beside ours: sparse rows, weights, other classifiers, pipelines, rows later."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

import headlong as hl
from headlong.errors import DtypeError, HeadlongError, InputError, MissingPackageError, NonFiniteError, OptionError, ShapeError
from headlong.integrations.sklearn import HeadClassifier, TopKClassifier, predict_topk

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


def counts(classes: int, density: float, rows: int = 400, dim: int = 60) -> tuple[Any, Any]:
    """Sparse rows of small counts, each class with words of its own."""
    rng = np.random.default_rng(classes)
    chosen = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    means = rng.gamma(0.3, 1.0, (classes, dim)) * density
    return scipy.sparse.csr_array(rng.poisson(means[chosen] + 0.01).astype(float)), np.array([f"c{i:03d}" for i in chosen])


SOURCES = [
    LogisticRegression(max_iter=300), OneVsRestClassifier(LogisticRegression()),
    OneVsRestClassifier(LinearSVC(random_state=0)), SGDClassifier(loss="log_loss", random_state=0), MultinomialNB(),
    ComplementNB(norm=True), BernoulliNB(binarize=0.5), NearestCentroid(), NearestCentroid(priors="empirical"),
    RidgeClassifier(),
]  # fmt: skip


def own_scores(fitted: Any, x: Any) -> Any:
    """``[n, vocab]``, in whose order the classifier predicts."""
    if isinstance(fitted, NearestCentroid) and fitted.priors == "uniform":
        variance = np.mean(fitted.within_class_std_dev_**2) or 0.5
        squares = ((x.toarray()[:, None] - fitted.centroids_[None]) ** 2).sum(-1)
        return -squares / (2 * variance)  # in the order of its predict, not of its decision_function
    scores = fitted.predict_joint_log_proba(x) if hasattr(fitted, "predict_joint_log_proba") else fitted.decision_function(x)
    return np.stack([np.zeros(len(scores)), scores], axis=1) if scores.ndim == 1 else scores


@pytest.mark.parametrize("classes", [2, 3, 40])
@pytest.mark.parametrize("density", [0.05, 3.0])  # few columns named, and most of them
@pytest.mark.filterwarnings("ignore:self.within_class_std_dev_")  # NearestCentroid's, of words that always come equally often
@pytest.mark.filterwarnings("ignore:.*those here are the softmax:UserWarning")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: repr(source)[:40])
def test_sources_answer_as_scikit_learn_does(source: Any, density: float, classes: int) -> None:
    x, y = counts(classes, density)
    model = TopKClassifier(source).fit(x, y)
    inside = model.estimator_
    scores = own_scores(inside, x)
    ours = model.decision_function(x)
    ours = np.stack([np.zeros(len(ours)), ours], axis=1) if ours.ndim == 1 else ours
    apart = (ours - ours[:, :1]) - (scores - scores[:, :1])  # what a row adds to all classes alike is no matter
    assert np.abs(apart).max() < 1e-9 * max(1.0, np.abs(scores).max())
    k = min(5, classes)
    for rows in (x, x.toarray()):
        proba, labels = model.predict_topk(rows, k)
        at = np.searchsorted(model.classes_, labels)
        chosen = np.take_along_axis(scores, at, axis=1)
        best = -np.sort(-scores, axis=1)[:, :k]  # classes may tie: the scores have to be the best ones
        np.testing.assert_allclose(chosen, best, rtol=1e-9, atol=1e-9)
        sure = best[:, 0] - best[:, min(1, k - 1)] > 1e-9
        assert (model.predict(rows) == inside.predict(rows))[sure].all() and sure.mean() > 0.5
        assert (np.diff(proba, axis=1) <= 0).all()
        own = hasattr(inside, "predict_proba") and "uniform" not in repr(getattr(inside, "priors", ""))
        every = inside.predict_proba(rows) if own else softmax(scores, axis=1)
        np.testing.assert_allclose(proba, np.take_along_axis(every, at, axis=1), rtol=0.0101, atol=1e-12)
        np.testing.assert_allclose(model.predict_proba(rows), every, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(np.exp(model.predict_log_proba(rows)), every, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kind", [SVC, NuSVC])
def test_rows_that_are_pairs_of_classes_are_not_taken_for_classes(kind: Any) -> None:
    """Three classes have three pairs: the shapes fit, and 28 of 100 answers were right."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 4)), rng.integers(0, 3, 300)
    fitted = kind(kernel="linear").fit(x, y)
    assert fitted.coef_.shape == (3, 4)
    with pytest.raises(InputError, match="is none of the classifiers that take the largest of one product for each class"):
        TopKClassifier.of(fitted)
    two = kind(kernel="linear").fit(x, y > 0)
    assert (TopKClassifier.of(two).predict(x) == two.predict(x)).all()


def steps(inside: Any, how: str, x: Any, y: Any) -> None:
    """Learn more, each in its own way: most of these write to the arrays that are there."""
    last = inside[-1] if hasattr(inside, "steps") else inside
    if how == "written to":
        last.coef_[3] += 1.0
    elif how == "sparse":
        last.coef_ *= -1
        last.sparsify()
    elif how == "fitted again":
        inside.fit(x, y)
    elif how == "rows in other places":
        last.coef_[[2, 5]] = last.coef_[[5, 2]]
    else:
        last.partial_fit(x if last is inside else inside[:-1].transform(x), y)


LEARNERS: dict[str, tuple[Any, str]] = {
    "SGD": (SGDClassifier(random_state=0), "partial_fit"),
    "SGD, averaged": (SGDClassifier(loss="log_loss", average=True, random_state=0), "partial_fit"),
    "perceptron": (Perceptron(random_state=0), "partial_fit"),
    "warm": (LogisticRegression(warm_start=True, max_iter=3), "fitted again"),
    "multinomial": (MultinomialNB(), "partial_fit"),
    "Bernoulli": (BernoulliNB(), "partial_fit"),
    "one against rest": (OneVsRestClassifier(SGDClassifier(random_state=0)), "partial_fit"),
    "in a pipeline": (make_pipeline(MaxAbsScaler(), SGDClassifier(random_state=0)), "partial_fit"),
    "by hand": (LogisticRegression(), "written to"),
    "rows": (LogisticRegression(), "rows in other places"),
    "sparse": (LogisticRegression(), "sparse"),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*probabilities:UserWarning")
@pytest.mark.parametrize("fitted_here", [False, True])
@pytest.mark.parametrize("name", LEARNERS)
def test_what_an_estimator_has_learned_since_is_what_is_answered(name: str, fitted_here: bool) -> None:
    """Not the old model, and no mixture of its rounded rows with the new ones."""
    inside, how = LEARNERS[name]
    x, y = counts(12, 2.0)
    rng = np.random.default_rng(1)
    model = TopKClassifier(clone(inside), method="codes").fit(x, y) if fitted_here else None
    model = model or TopKClassifier.of(clone(inside).fit(x, y), method="codes")
    within, before = model.estimator_, model._scores(model._rows(x))
    engine = model.engine_
    assert (model.predict(x) == within.predict(x)).all() and model.engine_ is engine
    order = rng.permutation(len(y))
    for _ in range(3):
        steps(within, how, x[order], np.roll(y, 7)[order] if how == "fitted again" else rng.permutation(y))
    assert (model.predict(x) == within.predict(x)).all() and np.abs(model._scores(model._rows(x)) - before).max() > 0.01
    _, labels = model.predict_topk(x, 3)
    last = within[-1] if hasattr(within, "steps") else within
    if hasattr(within, "decision_function"):
        order = np.argsort(-within.decision_function(x), axis=1, kind="stable")
        assert (labels == within.classes_[order[:, :3]]).all()
    if hasattr(last, "coef_") and not scipy.sparse.issparse(last.coef_):
        np.testing.assert_array_equal(model.coef_, last.coef_)
    assert (pickle.loads(pickle.dumps(model)).predict(x) == within.predict(x)).all()  # noqa: S301


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # scikit-learn's own log of no row
@pytest.mark.parametrize("kind", [MultinomialNB, BernoulliNB, ComplementNB])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_class_that_a_naive_bayes_has_not_seen_has_no_chance_until_it_has(kind: Any, sparse: bool) -> None:
    x, y = counts(9, 2.0)
    names, seen = np.unique(y), ~np.isin(y, np.unique(y)[[0, 4, 8]])
    inside = kind().partial_fit(x[seen], y[seen], classes=names)
    model, rows = TopKClassifier.of(inside), x if sparse else x.toarray()
    for _ in range(2):
        expected = inside.predict_joint_log_proba(rows)
        theirs = expected - logsumexp(expected, axis=1, keepdims=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            proba, labels = model.predict_topk(rows, 9, eps=1e-9)
            assert (model.predict(rows) == inside.predict(rows)).all()
            np.testing.assert_allclose(model.predict_log_proba(rows), theirs, rtol=1e-9, atol=1e-9)
        order = np.argsort(-expected, axis=1, kind="stable")
        assert (labels == names[order]).all()
        np.testing.assert_allclose(proba, np.exp(np.take_along_axis(theirs, order, axis=1)), rtol=1e-6, atol=1e-300)
        assert (pickle.loads(pickle.dumps(model)).predict_topk(rows, 7)[1] == labels[:, :7]).all()  # noqa: S301
        inside.partial_fit(x[~seen], y[~seen])


class Contrary(LogisticRegression):
    """A classifier of somebody's own that has the attributes, and decides otherwise."""

    def predict(self, X: Any) -> Any:  # noqa: N803
        return self.classes_[np.argmin(self.decision_function(X), axis=1)]


def test_a_class_that_decides_in_its_own_way_is_refused() -> None:
    x, y = counts(5, 1.0)
    with pytest.raises(InputError, match="Contrary is none of the classifiers"):
        TopKClassifier.of(Contrary().fit(x, y))


def test_calibration_hands_weights_through() -> None:
    x, y = counts(3, 1.0)
    weight = np.random.default_rng(0).random(len(y))
    ours, theirs = (
        CalibratedClassifierCV(one, cv=2).fit(x, y, sample_weight=weight).predict_proba(x)
        for one in (TopKClassifier(LogisticRegression()), LogisticRegression())
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("inside", [BaggingClassifier(), CalibratedClassifierCV(), make_pipeline(GaussianNB())])
def test_it_is_refused_before_it_is_fitted(inside: Any) -> None:
    with pytest.raises(InputError, match="is none of the classifiers"):
        TopKClassifier(inside).fit(None, None)


@pytest.mark.parametrize("classes", [2, 6])
def test_probabilities_are_the_models_own_or_said_not_to_be(classes: int) -> None:
    x, y = counts(classes, 1.0)
    rows = x.toarray()
    for inside in (LogisticRegression(), LinearDiscriminantAnalysis(), OneVsRestClassifier(LinearDiscriminantAnalysis())):
        model = TopKClassifier.of(inside.fit(rows, y))
        every = inside.predict_proba(rows)
        np.testing.assert_allclose(model.predict_proba(rows), every, rtol=1e-6, atol=1e-12)
        proba, labels = model.predict_topk(rows, 2, eps=1e-9)
        at = np.searchsorted(inside.classes_, labels)
        np.testing.assert_allclose(proba, np.take_along_axis(every, at, axis=1), rtol=1e-5, atol=1e-12)
    for inside, said in (
        (SGDClassifier(loss="modified_huber", random_state=0), "SGDClassifier computes its probabilities in another way"),
        (OneVsRestClassifier(SGDClassifier(loss="modified_huber", random_state=0)), "OneVsRestClassifier computes its"),
        (NearestCentroid(), "NearestCentroid computes its probabilities in another way"),
        (RidgeClassifier(), "RidgeClassifier has no probabilities of its own; those here are the softmax"),
    ):
        model = TopKClassifier.of(inside.fit(rows, y))
        assert (model.predict(rows) == inside.predict(rows)).all()  # which says nothing
        for ask in (model.predict_proba, model.predict_log_proba, model.predict_topk):
            with pytest.warns(UserWarning, match=said):
                ask(rows) if ask != model.predict_topk else ask(rows, 2)


def test_sample_weight_and_sparse_rows_are_offered_where_the_estimator_has_them() -> None:
    assert not has_fit_parameter(TopKClassifier(LinearDiscriminantAnalysis()), "sample_weight")
    for weighed in (None, LogisticRegression(), make_pipeline(LogisticRegression())):
        assert has_fit_parameter(TopKClassifier(weighed), "sample_weight")
    for inside, sparse in ((LinearDiscriminantAnalysis(), False), (LogisticRegression(), True), (None, True)):
        assert get_tags(TopKClassifier(inside)).input_tags.sparse is sparse
    x, y = counts(4, 1.0)
    bagged = BaggingClassifier(TopKClassifier(LinearDiscriminantAnalysis()), n_estimators=3, random_state=0).fit(x.toarray(), y)
    assert bagged.score(x.toarray(), y) > 0.5
    with pytest.raises(InputError, match="fit takes sample_weight=, and no weights"):
        TopKClassifier().fit(x, y, weights=[1.0])


def test_what_is_no_product_of_rows_is_refused() -> None:
    x, y = counts(4, 2.0)
    dense = x.toarray()
    for wrong, said in [
        (GaussianNB().fit(dense, y), "GaussianNB is none of the classifiers that take the largest of one product"),
        (NearestCentroid(metric="manhattan").fit(dense, y), "metric='manhattan'"),
        (OneVsRestClassifier(KNeighborsClassifier()).fit(dense, y), "over KNeighborsClassifier; expected a linear"),
        (MultinomialNB(), "MultinomialNB is not fitted"),
        (OneVsRestClassifier(LogisticRegression()).fit(x, np.eye(4)[np.searchsorted(np.unique(y), y)] > 0), "multilabel"),
    ]:
        with pytest.raises(InputError, match=said):
            TopKClassifier.of(wrong)


@pytest.mark.parametrize("density", [0.04, 0.3])
def test_sparse_rows_are_not_written_out_at_once(density: float) -> None:
    rng = np.random.default_rng(0)
    x = scipy.sparse.random_array((12_000, 4_000), density=density, format="csr", rng=rng)
    inside = LogisticRegression()
    inside.coef_, inside.intercept_ = rng.standard_normal((50, 4_000)), rng.standard_normal(50)
    inside.classes_, inside.n_features_in_ = np.arange(50), 4_000
    model = TopKClassifier.of(inside)
    tracemalloc.start()
    labels = model.predict_topk(x, 3)[1]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 150e6 < 12_000 * 4_000 * 8 / 2, most
    expected = np.argsort(-inside.decision_function(x), axis=1)[:, :3]
    assert (labels == expected).all()


def test_a_weight_is_a_number_of_rows() -> None:
    x, y = counts(6, 1.0)
    weight = np.random.default_rng(0).integers(0, 4, x.shape[0]).astype(float)
    inside = LogisticRegression().fit(x, y, sample_weight=weight)
    model = TopKClassifier(LogisticRegression()).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, inside.coef_)
    np.testing.assert_allclose(model.intercept_, inside.intercept_)
    through = make_pipeline(StandardScaler(with_mean=False), LogisticRegression())
    again = TopKClassifier(through).fit(x, y, sample_weight=weight).estimator_
    expected = through.fit(x, y, logisticregression__sample_weight=weight)
    np.testing.assert_allclose(again[-1].coef_, expected[-1].coef_)
    with pytest.raises(InputError, match=r"LinearDiscriminantAnalysis.fit takes no sample_weight"):
        TopKClassifier(LinearDiscriminantAnalysis()).fit(x.toarray(), y, sample_weight=weight)
    unweighted = HeadClassifier(epochs=5, random_state=0).fit(x, y)
    weighted = HeadClassifier(epochs=5, random_state=0).fit(x, y, sample_weight=np.where(y == "c000", 50.0, 1.0))
    assert (weighted.predict(x) == "c000").sum() > (unweighted.predict(x) == "c000").sum()


@pytest.mark.parametrize("classes", [2, 30])
@pytest.mark.parametrize("dense", [True, False])
def test_coefficients_are_those_of_the_decision_values(classes: int, dense: bool) -> None:
    x, y = counts(classes, 1.0)
    rows = x.toarray() if dense else x
    for model in (HeadClassifier(epochs=3, random_state=0).fit(rows, y), TopKClassifier().fit(rows, y)):
        expected = np.asarray(rows @ model.coef_.T + model.intercept_)
        assert model.coef_.shape == (1 if classes == 2 else classes, 60)
        np.testing.assert_allclose(model.decision_function(rows), expected[:, 0] if classes == 2 else expected, atol=2e-5)
    with pytest.raises(AttributeError, match="coef_ is of a fitted head that is one matrix"):
        _ = HeadClassifier("mos", {}, epochs=1, random_state=0).fit(rows, y).coef_
    assert not hasattr(HeadClassifier(), "coef_") and not hasattr(TopKClassifier(), "intercept_")


def test_dense_answers_are_refused_beyond_the_limit() -> None:
    x, y = counts(20, 1.0)
    limit = {"memory_limit": 8 * 20 * 10}
    for model in (TopKClassifier(**limit).fit(x, y), HeadClassifier(epochs=1, random_state=0, **limit).fit(x, y)):
        for verb in (model.decision_function, model.predict_log_proba, model.predict_proba):
            assert verb(x[:10]).shape == (10, 20)
            with pytest.raises(OptionError, match="11 rows and 20 classes .* use predict_topk"):
                verb(x[:11])


def test_more_rows_later() -> None:
    x, y = counts(10, 2.0, rows=1200)
    classes = np.unique(y)
    model = HeadClassifier(random_state=0)
    with pytest.raises(InputError, match="the first partial_fit has no classes"):
        model.partial_fit(x, y)
    model.partial_fit(x[:300], y[:300], classes=classes)
    early = model.score(x, y)
    for _ in range(10):
        for start in range(0, 1200, 300):
            model.partial_fit(x[start : start + 300], y[start : start + 300])
    assert model.score(x, y) > max(0.9, early)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  # scikit-learn's own way, on our own bytes
    for one in (model, again):  # a copy goes on as the first does: the same shuffles, the same state of Adam
        one.partial_fit(x[:300], y[:300])
    np.testing.assert_array_equal(again.coef_, model.coef_)
    with pytest.raises(InputError, match="y holds 'other', which is not among the 10 classes"):
        model.partial_fit(x[:1], ["other"])
    with pytest.raises(InputError, match="classes has 2 labels"):
        model.partial_fit(x[:1], y[:1], classes=classes[:2])
    fitted = HeadClassifier(epochs=5, random_state=0).fit(x, y)
    before = fitted.score(x, y)
    assert fitted.partial_fit(x, y).score(x, y) > before - 0.05  # from what it had learned, not from the start


def test_the_likeliest_labels_of_texts_through_a_pipeline() -> None:
    texts = [f"word{i % 12} of topic{i % 12} and filler{i % 5}" for i in range(240)]
    y = np.array([f"label {i % 12}" for i in range(240)])
    whole = make_pipeline(TfidfVectorizer(), TopKClassifier(LogisticRegression())).fit(texts, y)
    proba, labels = predict_topk(whole, texts, 3)
    order = np.argsort(-whole[-1].estimator_.predict_proba(whole[0].transform(texts)), axis=1)
    assert (labels[:, 0] == whole.classes_[order[:, 0]]).all() and (labels[:, 0] == y).all()
    plain = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
    over = TopKClassifier.of(plain)  # a fitted pipeline as it is: reads texts
    np.testing.assert_array_equal(over.predict_topk(texts, 3)[1][:, 0], labels[:, 0])
    np.testing.assert_allclose(over.predict_proba(texts), plain.predict_proba(texts), rtol=1e-9)
    assert (pickle.loads(pickle.dumps(over)).predict(texts) == y).all()  # noqa: S301
    search = GridSearchCV(whole, {"topkclassifier__estimator__C": [0.5, 2.0]}, cv=2).fit(texts, y)
    assert (predict_topk(search, texts, 2)[1][:, 0] == y).all()
    assert proba.shape == (240, 3)
    for one, two in zip(predict_topk(plain, texts, 3), over.predict_topk(texts, 3), strict=True):
        np.testing.assert_array_equal(one, two)  # a classifier without the verb is read as `of` reads it
    with pytest.raises(HeadlongError, match="GaussianNB"):
        predict_topk(GaussianNB().fit(np.eye(12), np.arange(12)), np.eye(12))
