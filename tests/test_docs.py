"""The documentation: pages run as they are written, the site builds strictly, and the public API is ``docs/api.txt``.

    python tests/test_docs.py      writes ``docs/api.txt`` anew: names, signatures and defaults, so that a change is reviewed

What is public is what ``docs/api.md`` names, and the names at the top of the package. They are read from the source, as when
the site is built: nothing optional has to be installed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
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
    from tiny_model import tiny_model

    tiny_model(tmp_path / "path/to/model")
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


def test_the_page_for_tables_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headlong[arrow]'")
    monkeypatch.chdir(tmp_path)
    from typer.testing import CliRunner

    from headlong.cli.main import app

    names: dict[str, Any] = {}
    page, told = (DOCS / "tables.md").read_text(encoding="utf-8").split("| in memory |")[1], []
    for block, command in re.findall(r"```python\n(.*?)```|^    headlong (.*?)$", page, re.DOTALL | re.MULTILINE):
        if "hnswlib" in block and importlib.util.find_spec("hnswlib") is None:
            np.save("found.npy", np.tile(np.arange(10), (500, 1)))
        elif block:
            exec(compile(block, "tables.md", "exec"), names)  # noqa: S102
        else:
            said = CliRunner().invoke(app, command.split())
            assert said.exit_code == 0, said.output
            told.append(said.stdout)
    assert names["layer"].vocab == 50_000 and Path("answers.parquet").exists()
    assert "the 100 nearest of 500 queries by l2, proved" in told[0] and "recall@10" in told[1]


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
ALONE = {"checkpoints.md", "sklearn.md", "search.md", "transformers.md", "distributed.md", "llama-cpp.md", "tables.md"}
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


NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a link that leads nowhere, or a page that is not in the navigation, ends the build."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install 'headlong[docs]'")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "-f", "mkdocs.yml", "-d", str(target)]
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}  # nobody listens there
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1", **proxy}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert pages <= {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].partition("\nmarkdown_extensions")[0]
    assert pages == set(re.findall(r"^  - ([\w/-]+)\.md$", nav, re.MULTILINE))  # no other title than the page's own


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?://', text), page.name


def test_the_reference_is_filled_in(site: Path) -> None:
    api = (site / "api.html").read_text(encoding="utf-8")
    for name in ("headlong.layers.matrix.Layer", "headlong.engines.base.Engine.topk", "TopKClassifier", "decoding.generate"):
        assert name in api


RECORD = ROOT / "docs/api.txt"
MOST_AT_THE_TOP = 18


@cache
def package() -> Any:
    griffe = pytest.importorskip("griffe", reason="griffe is not installed: pip install 'headlong[docs]'")
    return griffe.load("headlong", search_paths=[ROOT / "src"], allow_inspection=False)


def shown(thing: Any, name: str, shown_before: set[str]) -> Iterator[str]:
    """One line for a function or a value; for a class its own, and one for each documented method and each declared value,
    its parents' too where they are not on the page."""
    thing = thing.final_target if thing.is_alias else thing
    if thing.is_function:
        yield f"{name}{thing.signature().removeprefix(thing.name)}"
    elif thing.is_class:
        made = thing.members.get("__init__")
        yield f"class {name}{made.signature(return_type=False).removeprefix('__init__') if made is not None else ''}"
        for member, inner in sorted(thing.all_members.items()):
            seen = inner.parent is not thing and inner.final_target.parent.path in shown_before
            told = inner.docstring if inner.is_function else getattr(inner, "annotation", None) or passed_on(inner)
            if told and not seen and not member.startswith("_"):
                yield from shown(inner, f"    {member}", shown_before)
        shown_before.add(thing.path)
    else:
        yield f"{name}: {thing.annotation or passed_on(thing)}"


def passed_on(thing: Any) -> str:
    """``as Engine.save`` where a verb is another's: ``save = passing(Engine.save)``."""
    found = re.fullmatch(r"\w+\((\w+\.\w+)\)", str(getattr(thing, "value", None)))
    return f"as {found[1]}" if found else ""


def named(page: str) -> Iterator[tuple[str, Any]]:
    """What ``::: path`` and its members ask mkdocstrings for; a module without a list: all that it defines."""
    for path, members in re.findall(r"^::: ([\w.]+)(?:\n    options:\n      members: \[(.*)\])?", page, re.MULTILINE):
        found = package()[path.removeprefix("headlong.")]
        if not found.is_module:
            yield path, found
            continue
        asked = members.split(", ") if members else [
            name for name, one in found.members.items()
            if not (name.startswith("_") or one.is_alias) and (one.is_class or one.is_function)
        ]  # fmt: skip
        yield from ((f"{path}.{name}", found[name]) for name in asked)


def api() -> str:
    top = [f"headlong.{name}" for name in package()["__all__"].value.elements]
    page, before = (ROOT / "docs/api.md").read_text(encoding="utf-8"), set[str]()
    lines = [line for path, thing in named(page) for line in shown(thing, path, before)]
    return "\n".join([*(line.replace("'", "") for line in top), "", *lines, ""])


def test_the_public_api_is_the_one_that_was_reviewed() -> None:
    told = "another API than docs/api.txt: if it is meant, run python tests/test_docs.py and say so in CHANGELOG.md"
    assert api() == RECORD.read_text(encoding="utf-8"), told


def test_few_names_are_at_the_top() -> None:
    import headlong

    assert len(headlong.__all__) <= MOST_AT_THE_TOP


if __name__ == "__main__":
    RECORD.write_text(api(), encoding="utf-8")
    sys.stdout.write(f"{RECORD.relative_to(ROOT)}: {api().count(chr(10))} lines\n")
