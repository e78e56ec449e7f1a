"""The tests without the extras: what is missing is skipped by name, what is broken is not; and which of them are quick."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from children import script
from headlong.errors import MissingPackageError


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return script("conftest.py")


def raised(name: str) -> Exception:
    try:
        try:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        except ImportError as cause:
            raise MissingPackageError("this needs a package") from cause
    except MissingPackageError as error:
        return error


def test_a_package_of_an_extra_that_is_missing_is_skipped_with_the_line_that_installs_it(
    rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rules.missing(raised("torch.nn")) == "torch"
    assert rules.told("torch") == "torch is not installed: pip install '.[test-all]'"


def test_what_is_installed_and_fails_and_what_no_extra_brings_is_a_failure(
    rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert rules.missing(raised("torch.no_such_part")) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rules.missing(raised("headlong_typo")) is None
    assert rules.missing(ValueError("torch")) is None


def test_every_quick_file_is_there(rules: ModuleType) -> None:
    assert all((rules.ROOT / place).exists() for place in rules.QUICK)
    assert rules.quick(rules.ROOT / "tests/codes/test_codes.py") and not rules.quick(rules.ROOT / "tests/codesmith.py")
