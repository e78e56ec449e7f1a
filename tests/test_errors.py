"""The exception tree is as its docstring draws it."""

from __future__ import annotations

import inspect
import re

import pytest

import headlong
from headlong import errors
from headlong.errors import InputError, MissingTensorError, StoreError

CLASSES = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


def drawn() -> dict[str, int]:
    """The names in the docstring's tree and how deep each is drawn."""
    lines = [line for line in str(errors.__doc__).splitlines() if "Error" in line and not line.startswith("A message")]
    found = {}
    for line in lines[1:] if "HeadlongError" not in lines[0] else lines:
        match = re.match(r"([\s│├└─]*)(\w+Error)\b", line)
        assert match, line
        found[match[2]] = (len(match[1]) - 4) // 4
    return found


def test_the_drawing_is_the_tree() -> None:
    tree = drawn()
    assert set(tree) == set(CLASSES)
    for name, depth in tree.items():
        ours = [base for base in CLASSES[name].__mro__[1:] if base.__module__ == errors.__name__]
        assert len(ours) == depth, name


def test_the_drawing_names_the_builtin_parents() -> None:
    for name, cls in CLASSES.items():
        line = next(line for line in str(errors.__doc__).splitlines() if re.search(rf"\b{name}\b", line))
        also = re.search(r"\(also an? (\w+)\)", line)
        own = [base for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception]
        assert [base.__name__ for base in own] == ([also[1]] if also else []), name


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
