"""A classifier that is an output layer of :mod:`headlong.heads`, trained on features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.sparsefuncs import mean_variance_axis
from sklearn.utils.validation import _check_sample_weight, validate_data

from headlong.dtypes import Doubles
from headlong.errors import InputError, MissingPackageError, NonFiniteError
from headlong.integrations.sklearn.ranking import Ranking, host_array, written_out
from headlong.layers.matrix import Layer
from headlong.links import Affine
from headlong.number_checks import real, whole


class HeadClassifier(Ranking):
    """An output layer of :mod:`headlong.heads` trained on features, by Adam.

    ``head, options``   the head's name and its options
    ``epochs, batch_size, rate``   passes over the rows, rows of a step, Adam's learning rate
    ``random_state``    an int makes a fit repeatable

    Features are standardised first; sparse ones are scaled and not centred, so that they stay sparse. Training computes in
    the type of ``X``: float32 is about twice as fast.
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
        delta: float = 1e-6,
        memory_limit: int = 2**30,
    ) -> None:
        self.head, self.options, self.epochs, self.batch_size, self.rate = head, options, epochs, batch_size, rate
        self.random_state, self.memory_limit = random_state, memory_limit
        self.method, self.eps, self.delta = method, eps, delta

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> HeadClassifier:  # noqa: N803
        """Standardise the features, train, finish, compile."""
        rows, labels, weight = self._checked(X, y, sample_weight, reset=True)
        self._begin(rows, np.unique(labels), weight)
        self._train(self.epochs, rows, labels, weight)
        self.training_.restart()  # a later partial_fit goes on from these weights
        return self

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None  # noqa: N803
    ) -> HeadClassifier:
        """One epoch over more rows. The first call needs ``classes``, the labels of all later calls.

        The first call's rows decide how features are standardised from then on.
        """
        first = not hasattr(self, "training_")
        rows, labels, weight = self._checked(X, y, sample_weight, reset=first)
        if first and classes is None:
            raise InputError("the first partial_fit has no classes; expected classes= with the labels of all calls")
        known = np.unique(classes) if classes is not None else self.classes_
        if not first and not np.array_equal(known, self.classes_):
            raise InputError(f"classes has {len(known)} labels, other than the first call's {len(self.classes_)}; pass those")
        unknown = np.setdiff1d(labels, known)
        if len(unknown):
            raise InputError(f"y holds {str(unknown[0])!r}, which is not among the {len(known):,} classes of the first call")
        if first:
            self._begin(rows, known, weight)
        self._train(1, rows, labels, weight)
        return self

    @property
    def engine_(self) -> Any:
        """The engine over the layer learned so far; compiled at the first use."""
        if not self._engine:
            self._engine.append(self._compiled(self.layer_))
        return self._engine[0]

    @property
    def coef_(self) -> Doubles:
        """``[vocab, dim]`` in the units of ``X``, and ``[1, dim]`` for two classes; of a head that is one matrix."""
        weight = self._plain("coef_").weight.astype(np.float64) * self._plain("coef_").link.scale / self.scale_
        return np.asarray(weight[1:] - weight[:1] if len(weight) == 2 else weight)

    @property
    def intercept_(self) -> Doubles:
        """``[vocab]``, and ``[1]`` for two classes."""
        layer = self._plain("intercept_")
        offset = np.zeros(layer.vocab) if layer.bias is None else layer.bias.astype(np.float64)
        moved = layer.weight.astype(np.float64) @ (self.centre_ / self.scale_)
        offset = (offset - moved) * layer.link.scale + layer.link.shift
        return np.asarray(offset[1:] - offset[:1] if len(offset) == 2 else offset)

    def _plain(self, name: str) -> Any:
        layer = self.__dict__.get("layer_")
        one = isinstance(layer, Layer) and isinstance(layer.link, Affine)
        if not one:
            raise AttributeError(f"{name} is of a fitted head that is one matrix without a curve; head={self.head!r}")
        return layer

    def _checked(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool) -> tuple[Any, Any, Any]:  # noqa: N803
        """Rows, labels, and weights (None: all equal)."""
        X, y = validate_data(self, host_array(X), y, dtype=[np.float64, np.float32], accept_sparse="csr", reset=reset)  # noqa: N806
        check_classification_targets(y)
        whole(self.epochs, "epochs", 1, 2**31)
        whole(self.batch_size, "batch_size", 1, 2**31)
        real(self.rate, "rate", 1e-12, 1e6)
        if sample_weight is None:
            return X, y, None
        return X, y, _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _begin(self, X: NDArray[Any], classes: NDArray[Any], weight: Doubles | None) -> None:  # noqa: N803
        try:
            from headlong.integrations.sklearn.training import HeadTraining
        except ImportError as error:
            raise MissingPackageError(f"HeadClassifier trains with PyTorch ({error}): pip install 'headlong[torch]'") from error

        if len(classes) < 2:
            raise InputError(f"y holds one class, {classes[0]!r}; expected two or more classes")
        self.classes_ = classes
        with np.errstate(over="ignore", invalid="ignore"):
            if issparse(X):
                _, variance = mean_variance_axis(X, axis=0, weights=weight)
                self.centre_: Doubles = np.zeros(X.shape[1])
            else:
                self.centre_ = np.average(X, axis=0, weights=weight)
                variance = np.average((X - self.centre_) ** 2, axis=0, weights=weight)
        if not np.isfinite(variance).all():
            raise NonFiniteError(f"X reaches {abs(X).max():.3g}, whose squares overflow; rescale the features")
        self.scale_ = np.where(variance > 0, np.sqrt(variance), 1.0)
        self.training_ = HeadTraining(X.shape[1], len(classes), X.dtype, self.get_params())

    def _train(self, count: int, X: NDArray[Any], y: NDArray[Any], weight: Doubles | None) -> None:  # noqa: N803
        if weight is not None:  # a row of weight 0 is no row
            X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]  # noqa: N806
        rows = X if issparse(X) else X - self.centre_
        target = np.searchsorted(self.classes_, y).astype(np.int64)
        self.training_.passes(count, rows, 1 / self.scale_, target, weight)
        self.layer_ = self.training_.layer()
        self._engine: list[Any] = []  # of one: a call that only reads leaves the attributes as they are

    def _some(self, rows: NDArray[Any], k: int, eps: float | None) -> tuple[Doubles, NDArray[np.int64]]:
        top = self.engine_.topk(self._standardised(rows), k=k, eps=eps)
        return top.log_probs, top.ids

    def _scores(self, rows: NDArray[Any]) -> Doubles:
        """Decision values: what the softmax is taken of."""
        dense = np.empty((rows.shape[0], len(self.classes_)))
        start = 0
        for piece in written_out(rows):
            top = self.engine_.topk(self._standardised(piece), k=len(self.classes_), eps=np.inf)
            np.put_along_axis(dense[start : start + len(piece)], top.ids, top.logits, axis=1)
            start += len(piece)
        link = getattr(self.layer_, "link", None)
        return dense if link is None else np.asarray(link(dense))

    def _standardised(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray((rows - self.centre_) / self.scale_, np.float32)

    def __getstate__(self) -> dict[str, Any]:
        """An engine is made again from the layer rather than stored."""
        state = dict(super().__getstate__())
        return state | {"_engine": []} if "_engine" in state else state
