"""Who reads the code follows a vector by "go to definition": no step from a public verb to the native call is ``Any``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAIN = '''
import numpy as np

import headlong as hl
from headlong.answers import Answer, TopK
from headlong.engines.contract import Verbs
from headlong.native import NativeReader, Reader
from headlong.question import Question


def follow(
    engine: hl.Engine, hidden: np.ndarray, native: NativeReader, reader: Reader, kind: Verbs, question: Question
) -> None:
    reveal_type(engine.topk(hidden))
    reveal_type(engine._shown(TopK, hidden, question))
    reveal_type(engine._takes_callers)
    reveal_type(native.show(hidden, question, TopK))
    reveal_type(engine._asked(hidden).hidden)
    reveal_type(engine.ask)
    reveal_type(kind.ask)
    reveal_type(engine.reader)
    reveal_type(reader.ask)
    reveal_type(native.ask)
    reveal_type(engine.lse(hidden))
    reveal_type(engine.sample(hidden))
    reveal_type(engine.without([1]).topk(hidden))
'''
SHAPES = re.compile(r"numpy\.ndarray\[(builtins\.)?tuple\[(typing\.)?Any, \.\.\.\], numpy\.dtype\[")


def revealed(program: str, folder: Path) -> list[str]:
    """What mypy says of every ``reveal_type`` of a program; a fault of it is one more line."""
    api = pytest.importorskip("mypy.api")
    file = folder / "chain.py"
    file.write_text(program, encoding="utf-8")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"), str(file)]
    said, trouble, _ = api.run(options)
    assert not trouble, trouble
    notes = re.findall(r"chain\.py:\d+: (?:note: Revealed type is|error:) (.*)", said)
    return [SHAPES.sub("an array of ", note) for note in notes]


def test_no_step_from_a_verb_to_the_native_call_is_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = revealed(CHAIN, tmp_path)
    assert len(found) == CHAIN.count("reveal_type(")
    assert "headlong.answers.TopK" in found[0] and "NativeReader" in found[2] and "Answer" in found[5]
    # What a caller hands over may be anything; what the library makes of it may not.
    assert not [note for note in found if re.search(r"\bAny\b", note)]


def test_a_step_that_is_any_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lost = "from typing import Any\n\n\ndef follow(engine: Any) -> None:\n    reveal_type(engine.topk(1))\n"
    assert any(re.search(r"\bAny\b", note) for note in revealed(lost, tmp_path))
