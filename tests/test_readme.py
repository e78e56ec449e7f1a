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
    text = README.replace("<!-- begin whole-steps -->", "<!-- begin whole-steps -->\n| a row by hand |")
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


def planted(tables: ModuleType, without: str = "", **environment: Any) -> dict[str, Any]:
    """A run of one query in which one dense product did not take part; the fastest, twice ours, is torch fp32."""
    names = [*(name for name in tables.DENSE if name != without), "headlong", tables.OURS, tables.IDS]
    model = next(row for row in RECORD["rows"] if row["batch"] == 1)
    rows = []
    for name in names:
        us = 500.0 if name.startswith("headlong") else 1000.0 if name == "torch fp32" else 2000.0
        ways = {way: {**model[way], "us": us, "x": 1000.0 / us, "over": "torch fp32", "calls": 30} for way in ("cold", "loop")}
        rows.append({**model, "contestant": name, **ways})
    made = {**RECORD["environment"], "cpus": 2, "load": 1.0, "commit": None, **environment}
    return {**RECORD, "environment": made, "rows": rows}


def refusal(tables: ModuleType, record: dict[str, Any]) -> str:
    with pytest.raises(tables.RefusedRunError) as refused:
        tables.complete(record)
    return str(refused.value)


def test_a_run_without_a_dense_product_fills_no_table(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    for without in ("", "torch int8 dynamic"):
        record = planted(tables, without)
        keep(tmp_path / "results/beside.json", "dense products", record, tables.LANGUAGE_MODEL, "python it.py")
        for block in ("factor", "which", "dense-products"):
            if not without:
                assert "2.00×" in tables.BLOCKS[block]()
                continue
            with pytest.raises(tables.RefusedRunError, match="made at 1 has no torch int8 dynamic: run it again"):
                tables.BLOCKS[block]()


def test_a_run_of_a_language_models_head_needs_the_products_of_few_bits_too(tables: ModuleType) -> None:
    record = planted(tables)
    record["layer"] = {**record["layer"], "name": tables.HEADS[0]}
    assert f"has no {', '.join(tables.FEW_BITS)}: run it again" in refusal(tables, record)
    one = next(row for row in record["rows"] if row["contestant"] == "numpy fp32")
    record["rows"] += [{**one, "contestant": name} for name in tables.FEW_BITS]
    assert tables.complete(record)["rows"]
    record["rows"][-1]["loop"] = {**one["loop"], "us": 400.0}
    assert refusal(tables, record).endswith(f"{tables.FEW_BITS[-1]} is faster")


def test_a_factor_that_is_not_over_the_fastest_rival_of_its_table_is_refused(tables: ModuleType) -> None:
    record = planted(tables)
    fast = next(row for row in record["rows"] if row["contestant"] == "numpy fp32")
    fast["cold"]["us"] = 400.0
    assert refusal(tables, record) == "the run of made at 1, cold, is over torch fp32; numpy fp32 is faster"


@pytest.mark.parametrize("busy", [{"others": 0.2}, {"load": 18.45}])
def test_a_run_of_a_busy_machine_is_refused(busy: dict[str, float], tables: ModuleType) -> None:
    assert "is of a busy machine" in refusal(tables, planted(tables, **busy))
    tables.complete(planted(tables))


def test_no_factor_is_made_of_a_median_of_few_short_calls(tables: ModuleType) -> None:
    """Fewer than fifteen, or than five that took a second together."""
    record = planted(tables)
    ours = next(row for row in record["rows"] if row["contestant"] == "headlong")
    ours["cold"]["calls"] = 14
    rows = {row["contestant"]: row for row in tables.complete(record)["rows"]}
    assert rows["headlong"]["cold"]["x"] is None and rows["headlong"]["loop"]["x"] == 2.0
    assert tables.expected(rows["headlong"]) == "1: 2.00× in a loop"
    for calls, enough in ((5, True), (4, False)):
        assert tables.enough({"batch": 512, "cold": {"calls": calls, "us": 500.0}}, "cold") is enough
    next(row for row in record["rows"] if row["contestant"] == "torch fp32")["loop"]["calls"] = 3  # the rival's own median
    assert all(row["loop"]["x"] is None for row in tables.complete(record)["rows"])


def test_a_run_of_a_commit_that_is_not_in_the_history_is_refused(tables: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: there is no history to look at")
    if not tables.in_history("HEAD") or tables.in_history("0" * 40):
        pytest.skip("a part of the history is here: nothing can be said of commits before it")
    with pytest.raises(tables.RefusedRunError, match="commit 000000000000, which is not in the history: run it again"):
        tables.machine({**RECORD["environment"], "commit": "0" * 12})


def test_whole_steps_are_beside_the_fastest_form_of_the_model(tables: ModuleType) -> None:
    """The first page shows also the one of PyTorch's forms that takes least, and the factor may be below one."""
    shown = tables.whole_steps()
    for name, run in tables.runs("transformers", "decode step").items():
        if not name.startswith(tables.FIRST_MODELS):
            continue
        steps = {row["what"].removesuffix(", greedy"): row for row in run["rows"] if row["what"].endswith(", greedy")}
        forms = (form for form in steps if re.fullmatch(r"transformers, (?!headlong)[^,]*", form))
        fastest = min(forms, key=lambda form: float(steps[form]["ms"]))
        theirs, ours = steps[fastest], steps[f"{fastest}, headlong"]
        faster = tables.times(ours["times"] / theirs["times"])  # a median of ratios, as on its page
        assert f"{theirs['ms']:.1f} ms | {ours['ms']:.1f} ms | {faster}" in shown


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
