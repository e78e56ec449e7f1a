"""The documentation as a site: it builds strictly and without a network, in six sections, and is found by looking at it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chromium import DARK, photograph

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
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\nmarkdown_extensions")[0]
    assert pages == set(re.findall(r": ([\w/-]+)\.md$", nav, re.MULTILINE))
    assert len(pages) <= 16


def test_code_is_highlighted_and_copied_search_and_both_schemes_are_there(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'class="kn">import' in page and "content.code.copy" in page
    assert 'data-md-color-scheme="slate"' in page or 'data-md-color-scheme="default"' in page
    assert page.count("prefers-color-scheme") >= 2 and 'data-md-component="search"' in page
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("calibration" in entry["text"] for entry in index["docs"])


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?://', text), page.name


def test_the_reference_is_filled_in(site: Path) -> None:
    api = (site / "api.html").read_text(encoding="utf-8")
    for name in ("headlong.layers.matrix.Layer", "headlong.engines.base.Engine.topk", "TopKClassifier", "headlong_generate"):
        assert name in api


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """Where a browser finds the site: its search is not there for files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.exhaustive
def test_pictures_of_the_site(site: Path, served: str) -> None:
    shots = [("index", "phone", True), ("index", "desk", False), ("how", "phone", False), ("how", "desk", True)]
    for page, word, dark in shots:
        name, flags = f"site-{page}-{word}{'-dark' if dark else ''}", (DARK,) if dark else ()
        shot = photograph(site / f"{page}.html", name, {"phone": 500, "desk": 1280}[word], *flags, url=f"{served}/{page}.html")
        assert shot.size > 20_000, "a blank page"
        assert shot.light < 0.4 if dark else shot.light > 0.7, f"{name}: {shot.light}"
