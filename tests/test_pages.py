"""Every block of README and of the pages runs as it is printed, from the top of its page to the bottom.

A block gets what the blocks above it made and nothing else, unless its first line says what it needs: ``# needs `hidden```
names what the reader has to bring, and gets it here. Files that a block needs lie in the folder in which the page is run.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headlong
from headlong.cli.main import app
from page_figures import figures
from studies import __main__ as studies

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "studies/pages").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PACKAGES = {
    "hnswlib": "hnswlib", "implicit": "implicit", "somebody": "nobody", "llama-cpp-python": "llama_cpp",
    "optimum-intel": "optimum",
}  # fmt: skip
"""What a first line may need that is not brought: where it is not installed, the block is left out."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def needs(block: str) -> str:
    """What its first line asks for."""
    first = block.split("\n")[0]
    return first.removeprefix("# needs ") if first.startswith("# needs ") else ""


def brought(folder: Path) -> dict[str, Any]:
    """What a reader has: a layer and vectors for it, in memory and in files."""
    rng = np.random.default_rng(0)
    layer = headlong.Layer(rng.standard_normal((400, 16), np.float32))
    hidden = rng.standard_normal((300, 16), np.float32)
    layer.save(folder / "model.safetensors")
    headlong.compile(layer).save(folder / "head.safetensors")
    for name, rows in (("hidden", hidden), ("items", np.asarray(layer.weight)), ("queries", hidden[:5])):
        np.save(folder / f"{name}.npy", rows)
    (folder / "titles.txt").write_text("".join(f"title {i}\n" for i in range(400)))
    (folder / "text.txt").write_text("Once upon a time\n" * 40)
    return {"layer": layer, "hidden": hidden, "vectors": hidden[5:]}


def models(folder: Path) -> dict[str, Any]:
    """A folder of transformers and a GGUF file; the model itself, its tokenizer and some texts."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[test-all]'")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import tiny_gguf
    from tiny_model import tiny_model

    for name in ("path/to/model", "path/to/folder"):
        tiny_model(folder / name)
    tiny_gguf.write(folder / "model.gguf")
    tiny_gguf.write(folder / "other.gguf", head="Q8_0")
    model, tokenizer = (kind.from_pretrained(folder / "path/to/model") for kind in (AutoModelForCausalLM, AutoTokenizer))
    return {"model": model, "tokenizer": tokenizer, "texts": ["Once upon a time"] * 3}


def training(folder: Path) -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-all]'")
    torch.manual_seed(0)
    hidden, target = torch.randn(20, 16), torch.randint(400, (20,))
    body = torch.nn.Linear(16, 16)
    return {"dim": 16, "vocab": 400, "counts": np.arange(400, 0, -1), "body": body, "batches": [(hidden, target)],
            "hidden": hidden, "target": target}  # fmt: skip


def on_a_device(folder: Path) -> dict[str, Any]:
    """A model whose weights lie where the tests' kernels run."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-all]'")
    from devices import PLACE

    hidden = torch.randn(1, 16, device="cuda" if PLACE == "cuda" else "cpu")
    head = SimpleNamespace(weight=torch.randn(50, 16, device=hidden.device))
    return {"model": SimpleNamespace(lm_head=head), "hidden": hidden}


def ratings(folder: Path) -> dict[str, Any]:
    scipy = pytest.importorskip("scipy.sparse")
    given = scipy.random(60, 40, 0.2, "csr", np.float32, np.random.default_rng(0))
    return {"user_items": given, "users": np.arange(5)}


BRING: dict[str, Callable[[Path], dict[str, Any]]] = {
    "README.md": models, "checkpoints.md": models, "transformers.md": models, "llama-cpp.md": models, "training.md": training,
    "processors.md": on_a_device, "search.md": ratings,
}  # fmt: skip
ELSEWHERE = {"distributed.md": "needs two processes, and is run in test_docs.py"}


def left_out(asked: str) -> str:
    """The package that a block needs and that is not here."""
    return next((there for word, there in PACKAGES.items() if word in asked and importlib.util.find_spec(there) is None), "")


def commands(block: str) -> Iterator[list[str]]:
    for line in block.splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def installs(words: list[str]) -> None:
    """``pip install '.[extra]'`` of extras that there are. Runs of the studies take long: their parser reads them."""
    if words[:3] == ["python", "-m", "studies"]:
        assert studies.parser().parse_args(words[3:])
        return
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert words[:2] == ["pip", "install"], words
    for asked in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
        assert set(asked.split(",")) <= set(extras), words


def test_every_block_is_python_shell_or_what_was_printed() -> None:
    kinds = {kind for page in PAGES for kind, _ in blocks(page)}
    assert kinds <= {"python", "sh", "text"}
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        assert not re.findall(r"^    (?:pip|headlong|python|just|torchrun) ", text, re.MULTILINE), f"{page.name}: no fence"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in ELSEWHERE:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    there = brought(tmp_path)
    names: dict[str, Any] = {"__name__": page.name}
    shown = [(kind, block) for kind, block in blocks(page) if kind != "text"]
    if page.name in BRING:
        there |= BRING[page.name](tmp_path)
    for number, (kind, block) in enumerate(shown, 1):
        asked = needs(block)
        if left_out(asked):
            if page.name == "tables.md":
                np.save("found.npy", np.tile(np.arange(10), (500, 1)))
            continue
        names |= {name: value for name, value in there.items() if f"`{name}`" in asked}
        if kind == "python":
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)  # noqa: S102
            continue
        for words in commands(block):
            if words[0] != "headlong":
                installs(words)
                continue
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, f"{page.name}, block {number}: {' '.join(words)}: {done.output}"


def test_a_block_that_needs_what_it_does_not_say_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# needs `hidden`\nhidden.shape\n```\n\n```python\nlayer.vocab\n```\n")
    with pytest.raises(NameError, match="layer"):
        test_the_blocks_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch)
    page.write_text("```sh\nheadlong topk nowhere.npy queries.npy\n```\n")
    with pytest.raises(AssertionError, match=r"nowhere\.npy cannot be read"):
        test_the_blocks_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch)
    with pytest.raises(AssertionError):
        installs(["pip", "install", ".[no-such-extra]"])


BACKED = {
    "0.01 nats": "src/headlong/compile.py", "1 GiB": "src/headlong/integrations/sklearn/linear.py", "1×": "tools/tables.py",
    "2.5 times": "benchmarks/dense_products.py", "2.0 times": "results/serving.log",
    "2.2 times": "tests/layers/test_packed_rows.py", "2.3 times": "tests/layers/test_packed_rows.py",
}  # fmt: skip
"""Figures that no table of a page has, and what says them: a default, a test, a run. All others are made by tools/tables.py."""


def test_a_sentence_has_no_figure_that_nothing_backs() -> None:
    def said(text: str) -> set[str]:
        return {written for written, _, _ in figures(text)}

    found = {page.name: said(page.read_text(encoding="utf-8")) for page in PAGES if page.parent.name != "pages"}
    assert {name: unbacked for name, one in found.items() if (unbacked := one - BACKED.keys())} == {}
    assert set().union(*found.values()) == BACKED.keys() and all((ROOT / file).is_file() for file in BACKED.values())
    block = "<!-- begin x -->\n3 ms\n<!-- end x -->\n```text\n5 ms\n```\n"
    assert said(f"{block}It takes 79.0 ms, 8.35× as fast, 10 % wrong") == {"79.0 ms", "8.35×", "10 %"}
