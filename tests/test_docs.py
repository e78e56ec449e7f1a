"""The documentation: tutorials run as they are written, and links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headlong

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_run_as_they_are_written(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {"__name__": page.stem}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), names)  # noqa: S102


def _blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_for_scikit_learn_and_faiss_run_as_they_are_written() -> None:
    for page in ("sklearn.md", "search.md"):
        first, *more = _blocks(page)
        names: dict[str, Any] = {}
        exec(compile(first, page, "exec"), names)  # noqa: S102
    assert (names["I"][:, 0] == (names["queries"] @ names["rows"].T).argmax(1)).all()
    names = {}
    exec(compile(more[0], page, "exec"), names)  # noqa: S102
    assert (names["engine"].layer.vocab, len(more)) == (100_500, 1)


def test_the_page_for_transformers_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = str(tmp_path / "path/to/model")
    sizes = {"vocab_size": 300, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 1}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)).save_pretrained(folder)
    words = Tokenizer(WordLevel({"?": 0, "<end>": 1, "Once upon a time": 2}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    (block,) = _blocks("transformers.md")
    exec(compile(block, "transformers.md", "exec"), names)  # noqa: S102
    assert type(names["model"].lm_head).__name__ == "Linear" and names["head"].paths


def test_the_page_for_many_machines_runs_as_it_is_written(tmp_path: Path) -> None:
    layer = headlong.Layer(np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32))
    layer.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "hidden.npy", np.random.default_rng(1).standard_normal((5, 8)))
    headlong.compile(layer).save(tmp_path / "head.safetensors")
    spread, offline = _blocks("distributed.md")
    told = """
import json, os, pathlib
found = [top.ids.tolist(), bool(engine.traffic.per_query > 0)]
pathlib.Path(os.environ["RANK"] + ".json").write_text(json.dumps(found))
"""  # a file each: what two processes print may be mixed
    (tmp_path / "page.py").write_text(spread + told, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "page.py"]
    here = str(Path(headlong.__file__).resolve().parents[1])  # the library that is tested, installed or not
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = headlong.compile(layer).topk(np.load(tmp_path / "hidden.npy"), k=10).ids.tolist()
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [[expected, True]] * 2
    asked: list[dict[str, Any]] = []  # the examples run it under Ray and Spark; here is that its arguments fit
    both = SimpleNamespace(
        schema=SimpleNamespace(fields=[]),
        map_batches=lambda scorer, **given: asked.append({"scorer": scorer, **given}),
        mapInPandas=lambda function, **given: asked.append({"function": function, **given}),
    )
    exec(compile(offline, "distributed.md", "exec"), {"dataset": both, "frame": both})  # noqa: S102
    options = asked[0]["fn_constructor_kwargs"] | {"engine": str(tmp_path / "head.safetensors")}
    found = asked[0]["scorer"](**options)({"hidden": np.load(tmp_path / "hidden.npy")})
    assert found["ids"].tolist() == expected
    assert "ids array<bigint>" in asked[1]["schema"]


def test_three_tutorials() -> None:
    assert [page.stem for page in TUTORIALS] == ["doubly-sparse", "generate", "search"]


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken
