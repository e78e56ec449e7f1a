"""A hook of mkdocs: names of the library in code lead to their place in the reference.

``<code>hl.compile(layer)</code>`` on any page becomes a link to the heading of ``headlong.compile`` in ``docs/api.md``,
``<code>Engine.topk</code>`` and ``<code>engine.topk(hidden, k=10)</code>`` to that of ``Engine.topk``. Only the first place of
a name in each section (between two headings) is linked; code blocks are left as they are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify

API = "api"
HEADING = re.compile(r"^(#{3,4}) `([\w.]+)(.*)`$", re.MULTILINE)
CODE = re.compile(r"(<a\b.*?</a>|<pre\b.*?</pre>|<h\d\b.*?</h\d>)|<code>([\w.]+)((?:\([^<]*\))?)</code>", re.DOTALL)
INSTANCES = {"engine": "Engine", "layer": "Layer", "head": "Head"}
"""Names that pages give to instances."""


def anchors(text: str) -> dict[str, str]:
    """By every name a page may use: the anchor of its heading, as Python-Markdown makes it."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for match in re.finditer(r"^#{1,6} (.*)$", text, re.MULTILINE):
        slug = anchor = slugify(match[1].replace("`", ""), "-")
        count = 0
        while anchor in taken:
            count += 1
            anchor = f"{slug}_{count}"
        taken.add(anchor)
        heading = HEADING.match(match[0])
        if heading is None:
            continue
        for name in names(heading[2]):
            found.setdefault(name, anchor)
    return found


def names(full: str) -> list[str]:
    """``"headlong.heads.TreeHead" -> that, "hl.heads.TreeHead", "TreeHead"``; a method also by its instance."""
    short = full.removeprefix("headlong.")
    every = [full, f"hl.{short}", f"headlong.{short}"]
    last = short.rsplit(".", 1)[-1]
    if last[:1].isupper():
        every.append(last)
    owner, _, verb = short.rpartition(".")
    every += [f"{instance}.{verb}" for instance, kind in INSTANCES.items() if owner == kind]
    if owner[:1].isupper():
        every.append(f"{owner}.{verb}")
    return every


def linked(html: str, places: dict[str, str], target: str) -> str:
    """The page with its names linked; what is a link, a block of code or a heading already is left alone."""
    said: set[str] = set()

    def link(match: re.Match[str]) -> str:
        if match[1]:
            if match[1].startswith("<h"):
                said.clear()
            return match[1]
        anchor = places.get(match[2])
        if anchor is None or anchor in said:
            return match[0]
        said.add(anchor)
        return f'<a class="reference" href="{target}#{anchor}">{match[0]}</a>'

    return CODE.sub(link, html)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """What mkdocs calls for every page."""
    text = Path(config["docs_dir"], f"{API}.md").read_text(encoding="utf-8")
    here = posixpath.dirname(page.url)
    target = posixpath.relpath(f"{API}.html", here) if here else f"{API}.html"
    own = page.file.src_uri == f"{API}.md"
    return linked(html, anchors(text), "" if own else target)
