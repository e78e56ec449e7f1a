"""``implicit``'s recommenders with an engine: the items of largest product, exactly, without all the others.

::

    model = HeadlongModel(AlternatingLeastSquares(factors=64))
    model.fit(user_items)
    ids, scores = model.recommend(users, user_items[users], N=10)        as implicit's, ties by the smaller id

Of items that a user may not have, implicit fills up with filtered ones at a score of -3.4e38; here their id is -1.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from implicit.cpu.matrix_factorization_base import MatrixFactorizationBase
from implicit.recommender_base import RecommenderBase
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, issparse

import headlong
from headlong.arrays import as_numpy, checked_ids
from headlong.errors import DtypeError, IdError, InputError, OptionError, an, named
from headlong.layers.written_to import digest
from headlong.number_checks import flag, whole

LEAST = -float(np.finfo(np.float32).max)
"""The score of what is left out, as implicit has it."""


class HeadlongModel(RecommenderBase):  # type: ignore[misc]  # implicit ships no types
    """``model``, one of implicit's matrix factorizations on the CPU, asked through an engine over its items.

    ``options``  go to :func:`headlong.compile`; without a ``delta`` of yours ids are proved
    """

    def __init__(self, model: MatrixFactorizationBase, **options: Any) -> None:
        if not isinstance(model, MatrixFactorizationBase):
            kind = f"{type(model).__module__}.{type(model).__name__}"
            raise InputError(f"model is {an(kind)}; expected implicit's matrix factorization on the CPU: model.to_cpu()")
        self.model, self.options = model, options
        self._engine: Any = None
        self._of: Any = None

    def fit(self, user_items: csr_matrix, show_progress: bool = True, callback: Any = None) -> Self:
        """Learn the factors, and compile the items' at the next question."""
        self.model.fit(user_items, show_progress=show_progress, callback=callback)
        self._engine = None
        return self

    @property
    def engine(self) -> Any:
        """Over the item factors as they are: made at the first question, and again when others were learned, be it in the same
        array, as implicit's own ``fit`` and ``partial_fit_items`` do. Every question reads them once to see."""
        items, users = self._factors("item"), self.model.user_factors
        now = digest(items)
        if self._engine is None or self._of[0] != now:
            self._of = now, items  # kept: another array could come to lie where this one was
            calibration = {} if users is None or not len(users) else {"calibration": users[:: max(1, len(users) // 512)]}
            shared = {"eps": np.inf, "delta": 0.0, **calibration, **self.options}
            self._engine = headlong.compile(headlong.Layer(items, copy=True), **shared)
        return self._engine

    def _factors(self, of: str) -> NDArray[np.float32]:
        """``user_factors`` or ``item_factors``; InputError where nothing has been learned."""
        found: NDArray[np.float32] | None = getattr(self.model, f"{of}_factors")
        if found is None:
            raise InputError(f"the model has no {of} factors; call fit(user_items) first")
        return found

    def _known(self, ids: ArrayLike, of: str) -> None:
        """IdError or DtypeError for what are no users, or no items, of the model; -1 is none."""
        array, count = as_numpy(ids, f"{of}id"), len(self._factors(of))
        if array.size and array.dtype.kind not in "iu":
            raise DtypeError(f"{of}id is {array.dtype}; expected {an(of)}'s number, or an array of them")
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < count:
            wrong = int(array.min()) if array.min() < 0 else int(array.max())
            raise IdError(f"{of}id holds {wrong}; the model's {of}s are 0 to {count - 1}")

    def recommend(
        self,
        userid: ArrayLike,
        user_items: csr_matrix,
        N: int = 10,  # noqa: N803  # implicit's name
        filter_already_liked_items: bool = True,
        filter_items: ArrayLike | None = None,
        recalculate_user: bool = False,
        items: ArrayLike | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """``ids, scores [N]`` of one user, ``[users, N]`` of several; ``user_items`` has a row for each of them."""
        seen, again = flag(filter_already_liked_items, "filter_already_liked_items"), flag(recalculate_user, "recalculate_user")
        users = as_numpy(userid, "userid")
        if users.ndim > 1 or users.dtype.kind not in "iu":
            raise InputError(f"userid is {named(userid)}; expected a user's number, or an array of them")
        one, users = users.ndim == 0, np.atleast_1d(users)
        engine = self.engine
        if not again:
            self._known(users, "user")
        if seen or again:
            _check_rows(user_items, len(users))
        if filter_items is not None and not as_numpy(filter_items, "filter_items").size:  # of none
            filter_items = None
        if items is not None and filter_items is not None:
            raise OptionError("items and filter_items were given; expected one of them")
        hidden = np.atleast_2d(self.model._user_factor(userid, user_items, again))  # noqa: SLF001
        if filter_items is not None:
            filter_items = ids_of(filter_items, "filter_items", engine.layer.vocab)
        left_out = _seen(user_items, filter_items, engine.layer.vocab) if seen else filter_items
        allowed = None if items is None else ids_of(items, "items", engine.layer.vocab)
        most = engine.layer.vocab if allowed is None else len(allowed)
        many = min(whole(N, "N", 1, 2**40), most)
        top = engine.topk(np.ascontiguousarray(hidden), many, allowed=allowed, exclude=left_out)
        ids = top.ids.astype(np.int32)
        scores = np.where(ids < 0, LEAST, top.logits).astype(np.float32)
        return (ids[0], scores[0]) if one else (ids, scores)

    def similar_items(self, itemid: ArrayLike, N: int = 10, *given: Any, **options: Any) -> Any:  # noqa: N803
        """As the model's."""
        self._known(itemid, "item")
        return self.model.similar_items(itemid, N, *given, **options)

    def similar_users(self, userid: ArrayLike, N: int = 10, *given: Any, **options: Any) -> Any:  # noqa: N803
        """As the model's."""
        self._known(userid, "user")
        return self.model.similar_users(userid, N, *given, **options)

    def save(self, file: Any) -> None:
        """The model inside; ``HeadlongModel(type(model).load(file))`` is this one again."""
        self.model.save(file)


def _check_rows(user_items: csr_matrix, users: int) -> None:
    if not issparse(user_items) or user_items.format != "csr":
        raise InputError(f"user_items is {named(user_items)}; expected CSR rows, user_items[users]")
    if user_items.shape[0] != users:
        raise InputError(
            f"user_items has {user_items.shape[0]} rows for {users} users; expected one for each: user_items[users]"
        )


def ids_of(items: ArrayLike, name: str, count: int) -> NDArray[np.int64]:
    """Sorted, each once."""
    array = as_numpy(items, name)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise InputError(f"{name} is {named(items)}; expected items from 0 to {count - 1}, one after the other")
    return np.unique(checked_ids(array, count, name))


def _seen(user_items: csr_matrix, more: Any, count: int) -> Any:
    """What each user has, and what nobody is to get; rows of fewer items are from before others came."""
    if user_items.shape[1] < count:
        user_items = user_items.copy()
        user_items.resize(user_items.shape[0], count)
    if more is None or not len(more):
        return user_items
    rows = np.split(user_items.indices, user_items.indptr[1:-1])
    return [np.concatenate([row, more]) for row in rows]
