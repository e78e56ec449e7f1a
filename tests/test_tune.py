"""Tuning: what is held out stays held out, the choice is the fastest that keeps its promise, and the reasons survive a save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headlong as hl
from headlong.cli.main import app
from headlong.engines import contest
from headlong.errors import OptionError, ShapeError
from made_layers import decaying
from oracle import truth


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks decide nothing here: three short turns."""
    monkeypatch.setattr(contest, "TURNS", 3)


def test_the_choice_is_what_was_measured() -> None:
    layer, hidden = decaying(3000, 96, 2.0)
    seen: list[tuple[int, int]] = []
    engine, report = hl.tune(layer, hidden, k=5, eps=0.05, threads=1, progress=lambda *at: seen.append(at))
    names = [trial.name for trial in report.trials]
    assert "full" in names and "rotated codes of 4.5 bits" in names
    chosen = next(trial for trial in report.trials if trial.name == report.chosen)
    assert chosen.seconds <= min(trial.seconds for trial in report.trials) / contest.SOONER
    assert all(trial.kept and trial.wrong == 0 and trial.error <= 0.05 for trial in report.trials)
    assert seen[-1][0] == seen[-1][1] and report.held == len(hidden) // 4
    exact = truth(layer, hidden[:20])
    assert (engine.topk(hidden[:20], 5).ids == np.argsort(-exact.logits, axis=1, kind="stable")[:, :5]).all()


def test_plans_never_see_what_is_asked_and_reasons_survive_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(2000, 64, 2.0)
    given: list[np.ndarray] = []
    compiled = hl.compile

    def spy(layer: Any, method: str, **options: Any) -> Any:
        if options.get("calibration") is not None:
            given.append(options["calibration"])
        return compiled(layer, method, **options)

    monkeypatch.setattr(hl, "compile", spy)
    engine, report = hl.tune(layer, hidden, k=3, threads=1)
    held = {row.tobytes() for row in hidden[len(hidden) - len(hidden) // 4 :].astype(np.float64)}
    assert given and not any(row.tobytes() in held for vectors in given for row in vectors)
    engine.save(tmp_path / "tuned.safetensors")
    loaded = hl.load(tmp_path / "tuned.safetensors")
    assert loaded.reason == engine.reason
    assert loaded.reason.startswith(f"tuned: {report.chosen}, the fastest of {len(report.trials)} plans")
    assert all(f"\n{trial.name}: " in loaded.reason for trial in report.trials)
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "tuned.safetensors")])
    assert shown.exit_code == 0 and f"tuned: {report.chosen}" in shown.stdout


def test_faults() -> None:
    layer, hidden = decaying(200, 16)
    with pytest.raises(ShapeError, match="hidden has 7 rows; tuning sets some aside and needs 16 or more"):
        hl.tune(layer, hidden[:7])
    with pytest.raises(OptionError, match="k is 0"):
        hl.tune(layer, hidden, k=0)


def test_a_small_layer_is_tuned_too() -> None:
    layer, hidden = decaying(40, 8)
    engine, report = hl.tune(layer, hidden, k=40, threads=1)
    assert {trial.name for trial in report.trials} == {"full"}
    assert engine.topk(hidden[:2], 40).proved.all()


def test_the_command(tmp_path: Path) -> None:
    layer, hidden = decaying(400, 48, 2.0)
    layer.save(tmp_path / "layer.safetensors")
    np.save(tmp_path / "hidden.npy", hidden)
    out = tmp_path / "engine.safetensors"
    files = [str(tmp_path / "layer.safetensors"), str(tmp_path / "hidden.npy")]
    found = CliRunner().invoke(app, ["tune", *files, "-k", "3"])
    assert found.exit_code == 0, found.output
    assert "(chosen)" in found.stdout and "Engine(" in found.stdout
    record = json.loads(CliRunner().invoke(app, ["tune", *files, "-k", "3", "-o", str(out), "--json"]).stdout)
    assert record["chosen"] in {trial["name"] for trial in record["trials"]} and hl.load(out).reason.startswith("tuned:")
