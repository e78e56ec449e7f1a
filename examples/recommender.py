"""Recommend items that a user has not seen: alternating least squares, and an exact ranking of all items.

python examples/recommender.py          (pip install implicit: its ALS is used instead of the few lines here)
"""

import importlib.util
from typing import Any

import numpy as np

import headlong as hl


def interactions(users: int, items: int, each: int, rng: np.random.Generator) -> Any:
    """``[users, each]`` items of tastes that users share, popular ones more often."""
    tastes = rng.dirichlet(np.full(8, 0.2), users)
    liked = rng.dirichlet(np.full(items, 0.05), 8)
    return np.stack([rng.choice(items, each, replace=False, p=0.99 * mix @ liked + 0.01 / items) for mix in tastes])


def factors(seen: Any, items: int, dim: int, rounds: int = 8, weight: float = 20.0, ridge: float = 0.1) -> tuple[Any, Any]:
    """Users and items ``[n, dim]`` that minimise sum over all pairs of c (p - <u, v>)^2, c = 1 + weight where p = 1."""
    if importlib.util.find_spec("implicit"):
        return _implicit(seen, items, dim)
    rng = np.random.default_rng(1)
    user, item = (0.1 * rng.standard_normal((n, dim)) for n in (len(seen), items))
    readers = [np.flatnonzero((seen == one).any(axis=1)) for one in range(items)]
    for _ in range(rounds):
        user = _solved(item, list(seen), weight, ridge)
        item = _solved(user, readers, weight, ridge)
    return user, item


def _solved(other: Any, pairs: Any, weight: float, ridge: float) -> Any:
    every = other.T @ other + ridge * np.eye(other.shape[1])
    rows = [other[ids] for ids in pairs]
    return np.stack([np.linalg.solve(every + weight * row.T @ row, (1 + weight) * row.sum(0)) for row in rows])


def _implicit(seen: Any, items: int, dim: int) -> tuple[Any, Any]:
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    rows = np.repeat(np.arange(len(seen)), seen.shape[1])
    model = AlternatingLeastSquares(factors=dim, random_state=0, num_threads=1)
    model.fit(csr_matrix((np.ones(seen.size), (rows, seen.ravel())), shape=(len(seen), items)), show_progress=False)
    return np.asarray(model.user_factors, np.float64), np.asarray(model.item_factors, np.float64)


def main(users: int = 1000, items: int = 20_000, each: int = 20, dim: int = 32, k: int = 10) -> float:
    """The share of held-back items among the k recommended; every ranking is compared with all products in float64."""
    rng = np.random.default_rng(0)
    chosen = interactions(users, items, each, rng)
    seen, held = chosen[:, 1:], chosen[:, 0]
    user, item = factors(seen, items, dim)
    layer = hl.Layer(item.astype(np.float32))  # one row an item; a bias per item would go in bias=
    engine = hl.compile(layer, delta=0.0, calibration=user[:512])
    top = engine.topk(user, k=k, eps=np.inf, exclude=seen)  # each user's own list is left out, before anything is ranked
    assert not (top.ids[:, :, None] == seen[:, None]).any() and top.proved.all()
    scores = user @ item.astype(np.float32).T.astype(np.float64)
    np.put_along_axis(scores, seen, -np.inf, axis=1)
    assert (top.ids == np.argsort(-scores, axis=1, kind="stable")[:, :k]).all()
    found = float((top.ids == held[:, None]).any(axis=1).mean())
    read = top.cost.bytes.mean()
    print(f"{users:,} users, {items:,} items: the {k} best unseen ones of each, proved; {read:,.0f} bytes read a user")
    print(f"the item held back is among them for {found:.1%} of users; by chance: {k / items:.2%}")
    return found


if __name__ == "__main__":
    main()
