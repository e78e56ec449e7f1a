"""The README's example runs as printed, its generated blocks are fresh, and its first screen is one."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench_record import RECORD
from children import script
from headlong.bench.measure import keep
from tiny_model import tiny_model

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return script("tools/tables.py")


@pytest.fixture(scope="module")
def made(tables: ModuleType) -> list[tuple[Path, str, str]]:
    return list(tables.made())


def test_generated_blocks_are_fresh(made: list[tuple[Path, str, str]]) -> None:
    assert len(made) >= 8
    for file, old, new in made:
        assert old == new, f"{file.name} is stale: run python tools/tables.py"


def test_a_stale_block_is_noticed(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.replace("<!-- begin first-screen -->", "<!-- begin first-screen -->\n| a row by hand |")
    assert tables.filled(text) != text
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert tables.main() == 1
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    assert tables.main() == 0
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert tables.main() == 0


def test_the_example_prints_what_the_readme_shows() -> None:
    code, shown = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - the README's own code

    def machine_independent(text: str) -> str:
        return re.sub(r"kernel \w+", "kernel X", text).strip()

    assert machine_independent(printed.getvalue()) == machine_independent(shown)


def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: ModuleType, without: str) -> None:
    """Runs of every table with factors, in which one dense product did not take part."""
    rows = [row for row in RECORD["rows"] if row["batch"] == 1]
    dense = [{**rows[0], "contestant": name} for name in tables.DENSE if name != without]
    ours = [{**rows[2], "contestant": name} for name in ("headlong", tables.OURS, tables.IDS)]
    record = {**RECORD, "rows": dense + ours}
    for row in record["rows"]:
        row["cold"], row["loop"] = ({**row[way], "over": "torch fp32"} for way in ("cold", "loop"))
    for page, table in (("beside", "dense products"), ("beside", "indexes"), ("search", "recommender")):
        keep(tmp_path / f"results/{page}.json", table, record, tables.LANGUAGE_MODEL, "python it.py")
    monkeypatch.setattr(tables, "ROOT", tmp_path)


@pytest.mark.parametrize("block", ["first-screen", "factor", "which", "dense-products", "indexes", "recommender"])
def test_a_run_without_a_dense_product_fills_no_table(
    block: str, tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(tmp_path, monkeypatch, tables, "")
    assert "| headlong" in tables.BLOCKS[block]() or "×" in tables.BLOCKS[block]()
    planted(tmp_path, monkeypatch, tables, "torch int8 dynamic")
    with pytest.raises(tables.IncompleteRunError, match="made at 1 has no torch int8 dynamic: run it again"):
        tables.BLOCKS[block]()


def test_the_hugging_face_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is an extra")
    tiny_model(tmp_path / "path/to/model")
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "accelerate" in block)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - the README's own code
    assert names["out"].shape[1] > 1


def test_links_lead_somewhere() -> None:
    for file in ("README.md", "docs/cli.md", "results/README.md"):
        text = (ROOT / file).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (ROOT / file).parent.joinpath(target).exists(), f"{file}: {target}"


def test_results_are_what_pages_quote() -> None:
    described = re.findall(r"`([\w*-]+\.json)`", (ROOT / "results" / "README.md").read_text(encoding="utf-8"))
    files = [file for file in (ROOT / "results").iterdir() if file.suffix == ".json"]
    assert all(any(fnmatch(file.name, name) for name in described) for file in files)
    assert sum(file.stat().st_size for file in files) <= 1_000_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|tmp|work|Users)/", text), f"{file.name} names a folder of the machine it was made on"


LEAST_PYTHON = "3.11.0"  # of `requires-python`; what CI runs may be newer, as may be the machine that froze the constraints


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_constraints_are_for_every_python_that_is_promised() -> None:
    """One release that wants 3.11.5 made the README's test command fail on Debian, which has 3.11.2."""
    specifiers = pytest.importorskip("packaging.specifiers")
    least = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert specifiers.SpecifierSet(least).contains(LEAST_PYTHON)
    seen, wrong = 0, []
    for name, version in pinned().items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.distribution(name)
            wanted = found.metadata.get("Requires-Python")
            seen += found.version == version
            if found.version == version and wanted and not specifiers.SpecifierSet(wanted).contains(LEAST_PYTHON):
                wrong.append(f"{name}=={version} wants Python {wanted}")
    assert not wrong
    assert seen >= 10
