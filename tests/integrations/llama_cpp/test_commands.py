"""``headlong chat`` and ``headlong bench --gguf`` on a tiny model, and the team of threads that engines work in."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiny_gguf
from children import said as python_said
from headlong.cli.main import app

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    return tiny_gguf.write(tmp_path / "model.gguf", head="Q8_0")


def call(*words: Any, typed: str = "") -> Any:
    done = CliRunner().invoke(app, [*map(str, words), "--threads", "1"], input=typed)
    assert done.exit_code == 0, done.output
    return done


def test_chat_answers_each_line(path: Path) -> None:
    done = call("chat", path, "--max-tokens", 5, "--temperature", 0, "--context", 256, "--stats", typed="Hello\nAgain\n")
    assert len(done.stdout.splitlines()) >= 2 and "Model('model.gguf', sequences=1, n_ctx=256" in done.stderr
    stats = [line for line in done.stderr.splitlines() if line.startswith("[5 tokens, prompt ")]
    assert len(stats) == 2 and all("of 1,000 rows scored" in line for line in stats)
    again = call("chat", path, "--max-tokens", 5, "--temperature", 0, "--context", 256, typed="Hello\nAgain\n")
    assert again.stdout == done.stdout and "[5 tokens" not in again.stderr
    other = call("chat", path, "--max-tokens", 5, "--temperature", 0, "--context", 256, "--system", "x", typed="Hello\n")
    assert other.stdout not in done.stdout


def test_bench_takes_turns(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    done = call("bench", "--gguf", path, "--rounds", 1, "--out", out)
    record = json.loads(out.read_text())
    assert [(one["sequences"], len(one["seconds"]["llama.cpp"])) for one in record["runs"]] == [(1, 1)] * 4 + [(4, 1)] * 4
    greedy = [one for one in record["runs"] if one["sampler"] == "greedy"]
    assert all(0 < one["same"] <= record["tokens"] for one in greedy) and len(re.findall(r"greedy +\d", done.stdout)) == 2
    refused = CliRunner().invoke(app, ["bench", "layer.safetensors", "--gguf", str(path)])
    assert refused.exit_code == 2 and "got a layer and --gguf" in refused.stderr


IN_ITS_TEAM = """
import sys, threading
import numpy as np
import headlong as hl
from headlong import native
from headlong.integrations.llama_cpp import Model
from pathlib import Path

path, module = Path(sys.argv[1]), native.loaded()
layer = hl.Layer(np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32))
engine = hl.compile(layer, "codes", threads=2)
row = np.ones((1, 64), np.float32)
expected = engine.topk(row, 3).ids
with Model(path, cache=path.parent, n_ctx=64, n_threads=1) as one, Model(path, cache=path.parent, n_ctx=64, n_threads=2) as two:
    team, dismissed = two._body.team, []
    assert one.generate([5, 6], 12, temperature=0).ids == two.generate([5, 6], 12, temperature=0).ids
    if team._shared:
        before = module.team_rounds()
        with team:
            assert all((engine.topk(row, 3).ids == expected).all() for _ in range(130))  # now and then it is looked for
        assert module.team_rounds() > before
    team._dismiss = lambda how: dismissed.append(how)
    two.generate([5, 6], 3, temperature=0)
    here = len(dismissed)
    thread = threading.Thread(target=lambda: two.generate([5, 6], 3, temperature=0))
    thread.start()
    thread.join()
    assert (here, len(dismissed)) == ((0, 3) if team._shared else (3, 6)), dismissed
    print("shared" if team._shared else "apart")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where llama.cpp is built with GNU's OpenMP")
@pytest.mark.parametrize(("threads", "said"), [("2", "shared"), ("1", "apart")])
def test_where_engines_work(tmp_path: Path, threads: str, said: str) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", head="Q8_0")
    where = {"OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert python_said(IN_ITS_TEAM, path, **where).split()[-1] == said
