"""Fills the generated blocks of README.md and docs/ from results/ and from the program itself.

    python tools/tables.py            write them
    python tools/tables.py --check    exit 1 where one is stale

A block lies between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. No number in them is typed by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tools"), str(ROOT)]  # for those who load this file by its path
import tables_bench as bench  # noqa: E402
import tables_block_goals as block_goals  # noqa: E402
import tables_blocks as blocks  # noqa: E402
import tables_commands as commands  # noqa: E402
import tables_curves as curves  # noqa: E402
import tables_exact_search as exact_search  # noqa: E402
import tables_experts as experts  # noqa: E402
import tables_first_screen as first_screen  # noqa: E402
import tables_heads as heads  # noqa: E402
import tables_heads_said as heads_said  # noqa: E402
import tables_integrations as integrations  # noqa: E402
import tables_llama_cpp as llama_cpp  # noqa: E402
import tables_measured as measured  # noqa: E402
import tables_processors as processors  # noqa: E402
import tables_studies as studies  # noqa: E402
import tables_training as training  # noqa: E402

SUBJECTS = (
    bench, block_goals, blocks, commands, curves, exact_search, experts, first_screen, heads, heads_said, integrations,
    llama_cpp, measured, processors, studies, training,
)  # fmt: skip
HOMES = ("docs", "studies/pages")
PAGES = [
    file for home in HOMES for file in sorted((ROOT / home).rglob("*.md")) if "<!-- begin" in file.read_text(encoding="utf-8")
]
FILES = ("README.md", "results/README.md", *(file.relative_to(ROOT).as_posix() for file in PAGES))
BLOCKS: dict[str, Callable[[], str]] = {name: block for subject in SUBJECTS for name, block in subject.BLOCKS.items()}


def filled(text: str) -> str:
    """The text with every block made anew."""

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- begin {name} -->\n{BLOCKS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", fill, text, flags=re.DOTALL)


def made() -> Iterator[tuple[Path, str, str]]:
    """Every generated file: where it is, what it says, what it should say."""
    for name in FILES:
        old = (ROOT / name).read_text(encoding="utf-8")
        yield ROOT / name, old, filled(old)
    for name, picture in first_screen.PICTURES.items():
        file = ROOT / name
        yield file, file.read_text(encoding="utf-8") if file.is_file() else "", picture()


def main() -> int:
    stale = []
    for file, old, new in made():
        if new != old:
            stale.append(str(file.relative_to(ROOT)))
            if "--check" not in sys.argv:
                file.write_text(new, encoding="utf-8")
    if stale:
        sys.stdout.write(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale)}\n")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
