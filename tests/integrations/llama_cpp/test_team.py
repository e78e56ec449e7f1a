"""Threads: engines work in the team of llama.cpp's layers where they find it, and it is dismissed where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_gguf

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where llama.cpp is built with GNU's OpenMP")

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


@pytest.mark.parametrize(("threads", "said"), [("2", "shared"), ("1", "apart")])
def test_where_engines_work(tmp_path: Path, threads: str, said: str) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", head="Q8_0")
    where = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", IN_ITS_TEAM, str(path)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == said
