"""Pages in headless Chromium, where that is installed; nothing is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def photograph(page: Path, name: str, width: int, height: int = 1400, *flags: str) -> int:
    """The bytes of ``NAME.png``, a screenshot to look at, in the folder ``HEADLONG_ARTEFACTS`` or beside the page."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium); no screenshots")
    folder = Path(os.environ.get("HEADLONG_ARTEFACTS") or page.parent)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name}.png"
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--virtual-time-budget=4000",
        f"--user-data-dir={page.parent / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--window-size={width},{height}", *flags, f"--screenshot={picture}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=240, check=True)
    return picture.stat().st_size
