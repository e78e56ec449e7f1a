"""Learning from few queries, so that tests need not ask thousands."""

from __future__ import annotations

import pytest

from headlong.previews import kept_queries
from learning import DIM


@pytest.fixture
def few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_queries, "MOST_NUMBERS", 2 * DIM * DIM)
