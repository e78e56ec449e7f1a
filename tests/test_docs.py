"""The documentation: the site builds strictly, programs of many processes run, and the public API is ``docs/api.txt``.

    python tests/test_docs.py      writes ``docs/api.txt`` anew: names, signatures and defaults, so that a change is reviewed

What is public is what ``docs/api.md`` names, and the names at the top of the package. They are read from the source, as when
the site is built: nothing optional has to be installed.
"""

from __future__ import annotations

import importlib.util
import json
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


def test_the_page_for_many_machines_runs_as_it_is_written(tmp_path: Path) -> None:
    layer = headlong.Layer(np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32))
    layer.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "hidden.npy", np.random.default_rng(1).standard_normal((5, 8)))
    headlong.compile(layer).save(tmp_path / "head.safetensors")
    spread, offline = _blocks("distributed.md")
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-all]'")
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
