"""The documentation: tutorials run as they are written, and links lead somewhere."""

from __future__ import annotations

import json
import math
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
    assert names["engine"].layer.vocab == 100_500
    run_in_order("search.md", more[1:])


def run_in_order(page: str, blocks: list[str]) -> None:
    """The step-by-step part of a page, as it is written."""
    names: dict[str, Any] = {"__name__": page}
    assert len(blocks) >= 4
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, step {number + 1}", "exec"), names)  # noqa: S102


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
    block, *steps = _blocks("transformers.md")
    exec(compile(block, "transformers.md", "exec"), names)  # noqa: S102
    assert type(names["model"].lm_head).__name__ == "Linear" and names["head"].paths
    run_in_order("transformers.md", steps)


def test_the_page_for_gguf_models_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")
    import tiny_gguf

    tiny_gguf.write(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    (block,) = _blocks("llama-cpp.md")
    exec(compile(block, "llama-cpp.md", "exec"), names)  # noqa: S102
    assert names["out"]["choices"][0]["message"]["role"] == "assistant"


def test_the_page_for_many_machines_runs_as_it_is_written(tmp_path: Path) -> None:
    layer = headlong.Layer(np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32))
    layer.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "hidden.npy", np.random.default_rng(1).standard_normal((5, 8)))
    headlong.compile(layer).save(tmp_path / "head.safetensors")
    spread, offline = _blocks("distributed.md")
    report = """
import json, os, pathlib
found = [top.ids.tolist(), bool(engine.traffic.per_query > 0)]
pathlib.Path(os.environ["RANK"] + ".json").write_text(json.dumps(found))
"""  # a file each: what two processes print may be mixed
    (tmp_path / "page.py").write_text(spread + report, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "page.py"]
    here = str(Path(headlong.__file__).resolve().parents[1])  # the library that is tested, installed or not
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = headlong.compile(layer).topk(np.load(tmp_path / "hidden.npy"), k=10).ids.tolist()
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [[expected, True]] * 2

    class NoFields:
        """A ``StructType`` of nothing."""

        fields: tuple[Any, ...] = ()

        def jsonValue(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
            return {"fields": []}

        fromJson = staticmethod(lambda given: given)  # noqa: N815

    asked: list[dict[str, Any]] = []  # the examples run it under Ray and Spark; here is that its arguments fit
    both = SimpleNamespace(
        schema=NoFields(),
        map_batches=lambda scorer, **given: asked.append({"scorer": scorer, **given}),
        mapInPandas=lambda function, **given: asked.append({"function": function, **given}),
    )
    exec(compile(offline, "distributed.md", "exec"), {"dataset": both, "frame": both})  # noqa: S102
    options = asked[0]["fn_constructor_kwargs"] | {"engine": str(tmp_path / "head.safetensors")}
    found = asked[0]["scorer"](**options)({"hidden": np.load(tmp_path / "hidden.npy")})
    assert found["ids"].tolist() == expected
    assert [field["name"] for field in asked[1]["schema"]["fields"]] == ["ids", "log_probs", "error", "proved"]


def _texts(vocab: int = 400, dim: int = 16) -> dict[str, Any]:
    """Sizes, vectors and targets for the pages that speak of "your" layer: as large as their own numbers ask for."""
    rng = np.random.default_rng(0)
    layer = headlong.Layer(rng.standard_normal((vocab, dim)).astype(np.float32))
    hidden = rng.standard_normal((300, dim)).astype(np.float32)
    names = {"hl": headlong, "np": np, "math": math, "vocab": vocab, "dim": dim}
    return names | {"layer": layer, "hidden": hidden, "queries": hidden[:5], "vectors": hidden[5:]}


def _training(dim: int = 16, vocab: int = 400) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"dim": dim, "vocab": vocab, "counts": np.arange(vocab, 0, -1)}
    torch.manual_seed(0)
    contexts = np.random.default_rng(1).standard_normal((vocab, 8)).astype(np.float32)
    hidden, target = torch.randn(20, dim), torch.randint(vocab, (20,))
    names |= {"body": torch.nn.Linear(dim, dim), "batches": [(hidden, target)], "hidden": hidden, "target": target}
    return names | {"contexts": contexts, "vectors": hidden[:3].numpy()}


def _on_a_device() -> dict[str, Any]:
    """A model whose weights lie where the tests' kernels run."""
    torch = pytest.importorskip("torch")
    from devices import PLACE

    hidden = torch.randn(1, 16, device="cuda" if PLACE == "cuda" else "cpu")
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=torch.randn(50, 16, device=hidden.device)))
    return {"hl": headlong, "model": model, "hidden": hidden}


SETTINGS: dict[str, Any] = {
    "processors.md": _on_a_device,
    "index.md": _texts,
    "promises.md": _texts,
    "training.md": lambda: _texts() | _training(),
}
"""What the examples of a page take for granted."""
ELSEWHERE = {"../studies/pages/adaptive-softmax.md": _texts}
"""Pages with examples of the package that are not in the site."""
ALONE = {"checkpoints.md", "sklearn.md", "search.md", "transformers.md", "distributed.md", "llama-cpp.md"}
"""Pages with a test of their own, here or with the recipes."""


def test_every_page_with_an_example_is_run() -> None:
    pages = {page.name for page in DOCS.glob("*.md") if _blocks(page.name)}
    assert pages == set(SETTINGS) | ALONE


@pytest.mark.parametrize("page", [*SETTINGS, *ELSEWHERE])
def test_examples_run_as_they_are_written(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = (SETTINGS | ELSEWHERE)[page]()
    _texts()["layer"].save("model.safetensors")
    for number, block in enumerate(_blocks(page)):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)  # noqa: S102
    assert any(names.get(name) is not None for name in ("engine", "loss", "out", "won"))


def test_commands_in_the_pages_are_commands() -> None:
    """Every ``headlong COMMAND --option`` in a page has a command and options that ``--help`` knows."""
    known = (DOCS / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", known, re.DOTALL | re.MULTILINE))
    assert {"compile", "topk", "bench"} <= set(sections)
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        fences = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        lines = re.findall(r"^headlong (.*)", fences, re.MULTILINE) + re.findall(r"^    headlong (.*)", text, re.MULTILINE)
        for line in lines:
            command, *words = line.split("#")[0].split()
            assert command in sections, f"{page.name}: headlong {line}"
            for option in (word for word in words if re.fullmatch(r"--?[a-z][\w-]*", word)):
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", sections[command]), f"{page.name}: headlong {line}"


def test_every_public_name_is_in_the_reference() -> None:
    """``api.md`` names modules and members; mkdocstrings fills in the rest when the site is built."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    members = {name.strip() for found in re.findall(r"members: \[(.*)\]", text) for name in found.split(",")}
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)} | members
    assert set(headlong.__all__) - {"errors", "HeadlongError"} - shown == set()
