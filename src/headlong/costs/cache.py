"""The costs of the machine at hand: measured on first use and kept in one small file per user.

``HEADLONG_COSTS``   unset: measured until two measurements agree, mostly at once, and kept in the user's cache folder, by
                     processor, instruction set, threads, build
                     "default": those that are built in, nothing is measured
                     a file: its terms, ``{"memory": 0.02, ...}`` in nanoseconds, as ``headlong inspect --json`` says them, and
                     the others as built in

A file of the cache that cannot be read is measured anew, and one that cannot be written is done without.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import headlong
from headlong import native
from headlong.costs.built_in import BUILT_IN, HALF, TERMS, Costs, settled
from headlong.costs.measured import terms_of, trials
from headlong.costs.repeated import kept_of, measured_again
from headlong.errors import OptionError

VARIABLE, DEFAULT = "HEADLONG_COSTS", "default"
FILE = "costs.json"


def here() -> Costs:
    """What this machine costs, with as many threads as calls take that name none."""
    level = native.isa()
    if level == native.REFERENCE:
        return BUILT_IN._replace(source="built in: the reference is there to be read, not to be fast")
    return _found(os.environ.get(VARIABLE, ""), level, native.threads(None))


@functools.cache
def _found(asked: str, level: str, threads: int) -> Costs:
    if asked == DEFAULT:
        return BUILT_IN
    if asked:
        return pinned(asked)
    key = f"{processor()}, {level}, {threads} threads, headlong {headlong.__version__}, built {built()}"
    path = folder() / FILE
    kept = kept_of(read(path).get(key))
    if kept is None or not kept.done:
        kept = measured_again(kept, lambda: trials(threads))
        write(path, {**read(path), key: kept._asdict()})
    return settled(terms_of(kept.times), kept.said(), threads, 1.0 if kept.settled else HALF)


def pinned(path: str) -> Costs:
    """The costs that a file names."""
    try:
        terms = json.loads(Path(path).read_text(encoding="utf-8"))
        if isinstance(terms, dict):
            terms.pop("source", None)
        right = isinstance(terms, dict) and set(terms) <= set(TERMS)
        right = right and all(type(value) in (int, float) and 0 < value < 1e12 for value in terms.values())
    except (OSError, ValueError):
        right = False
    if not right:
        raise OptionError(
            f"{VARIABLE} is {path!r}; expected {DEFAULT!r}, or a JSON file of positive nanoseconds by name, some of "
            f"{', '.join(TERMS)}"
        )
    return BUILT_IN._replace(**terms, source=f"from {Path(path).name}")


def folder() -> Path:
    """Where this user's programs keep what they can make again."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "headlong"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "headlong"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "headlong"


def built() -> str:
    """When the native module was, to the second: what another build measured says little of this one."""
    file = native.loaded().__file__
    return "" if file is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(os.stat(file).st_mtime))


def processor() -> str:
    """Its name, as the system says it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def read(path: Path) -> dict[str, Any]:
    """What the cache holds; nothing, where it is not there or damaged."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def write(path: Path, known: dict[str, Any]) -> None:
    """All of it at once or nothing, whoever writes beside."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as part:
            json.dump(known, part, indent=1)
        try:
            os.replace(part.name, path)
        except OSError:
            os.unlink(part.name)
