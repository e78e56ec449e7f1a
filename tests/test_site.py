"""The documentation as a site: it builds strictly and without a network, and says nothing that is elsewhere."""

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
    for name in ("headlong.layers.matrix.Layer", "headlong.engines.base.Engine.topk", "TopKClassifier", "headlong_generate"):
        assert name in api
