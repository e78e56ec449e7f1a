"""A short run of fuzz_readers.py, and proof that it can fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fuzz_readers
from fuzz_readers import FaultError, Target, check_one, fuzz
from headlong.errors import MalformedFileError

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits are set on Linux")


@pytest.mark.parametrize("name", fuzz_readers.TARGETS)
def test_damaged_files_raise_only_our_exceptions(name: str, tmp_path: Path) -> None:
    outcomes = fuzz(name, inputs=1500, seed=20261121, keep=tmp_path)
    assert outcomes.total() == 1500
    assert outcomes["MalformedFileError"] > 300
    assert outcomes["accepted"] > 50  # the damage is fine enough to reach what lies behind the first check


def crash(path: Path) -> None:
    raise ZeroDivisionError("planted")


def refuse(path: Path) -> None:
    raise MalformedFileError("refused")


def accept(path: Path) -> None:
    path.read_bytes()


def hang(path: Path) -> None:
    while True:
        path.name.upper()


def swell(path: Path) -> None:
    np.ones(2**27)


PLANTED = [
    (crash, "ZeroDivisionError: planted"),
    (accept, "accepted here, refused by"),
    pytest.param(hang, "TimeoutError: more than", marks=LINUX),
    pytest.param(swell, "MemoryError", marks=LINUX),
]


@pytest.mark.parametrize(("read", "message"), PLANTED)
def test_the_fuzzer_finds_planted_faults(
    read: Callable[[Path], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_readers, "SECONDS", 0.2)
    with pytest.raises(FaultError, match=message):
        check_one(Target("planted", [], "x", read), tmp_path / "x", b"no tensors")
    assert check_one(Target("planted", [], "x", refuse), tmp_path / "x", b"") == "MalformedFileError"
