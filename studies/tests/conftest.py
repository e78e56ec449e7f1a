"""Fixtures of the studies' tests. Data that the project does not ship is found through ``HEADLONG_DATA``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of data sets; tests that need it are skipped where there is none."""
    folder = os.environ.get("HEADLONG_DATA")
    if not folder:
        pytest.skip("HEADLONG_DATA is not set: it names the folder of data sets, which the project does not ship")
    return Path(folder)
