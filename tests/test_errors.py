"""The exception tree is as its docstring draws it."""

from __future__ import annotations

import pytest

import headlong
from headlong.errors import InputError, MissingTensorError, StoreError


def test_callers_may_catch_by_the_builtin_name() -> None:
    with pytest.raises(ValueError, match="k is 9"):
        raise InputError("k is 9")
    with pytest.raises(KeyError):
        raise MissingTensorError("gone")
    assert issubclass(MissingTensorError, StoreError)


def test_types_are_named_with_their_articles() -> None:
    with pytest.raises(InputError, match=r"^layer is an int; expected"):
        headlong.compile(3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match=r"^layer is a str; expected"):
        headlong.compile("head")  # type: ignore[call-overload]
