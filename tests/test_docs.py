"""The documentation: tutorials run as they are written, links lead somewhere, and the site builds without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_site_builds_offline(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "mkdocstrings", "mkdocstrings_handlers")):
        pytest.skip("mkdocs and mkdocstrings are not installed: pip install 'headlong[docs]'")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "-q", "-f", "mkdocs.yml", "-d", str(tmp_path)]
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}  # nobody listens there
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **proxy}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert "TopKClassifier" in api and "headlong_generate" in api
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in tmp_path.glob("*.html")}
