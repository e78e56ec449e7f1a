"""Methods beside each other: what each reads, and how often it is right, against a plain count."""

from __future__ import annotations

import numpy as np

from headlong import Layer
from studies.papers.large_heads import compared


def test_every_method_is_counted_on_the_same_queries(rng: np.random.Generator) -> None:
    layer = Layer(rng.standard_normal((1280, 64)).astype(np.float32))
    hidden = (3 * rng.standard_normal((20, 64))).astype(np.float32)
    found = {one["method"]: one for one in compared(layer, hidden, hidden)}
    assert list(found) == ["SVD-softmax", "ours"]
    assert (found["ours"]["top1"], found["ours"]["top10"]) == (1.0, 10.0), "what has a bound is right"
    assert 0 < found["ours"]["read"] < 1 and found["SVD-softmax"]["rows"] == 0.1
    # eight of 64 columns, a tenth of the rows whole, and what turns the query
    assert 1 / 8 + 1 / 10 <= found["SVD-softmax"]["read"] < 1 / 8 + 1 / 10 + 0.06
    assert found["SVD-softmax"]["top10"] < 10, "a layer without a spectrum is lost on it"
