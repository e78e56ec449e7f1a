"""Pages in headless Chromium, where that is installed; nothing is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image, ImageStat  # matplotlib brings it

HEIGHT = 1400
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


DARK = "--force-dark-mode"
"""The reader's system is dark."""


class Picture(NamedTuple):
    """``size`` in bytes; ``light``: the mean of its pixels, 0 (black) to 1."""

    size: int
    light: float


def photograph(page: Path, name: str, width: int, *flags: str, url: str = "") -> Picture:
    """``NAME.png``, a screenshot, in the folder ``HEADLONG_ARTEFACTS`` or beside the page; ``url``: where it is served."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium); no screenshots")
    folder = Path(os.environ.get("HEADLONG_ARTEFACTS") or page.parent)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name}.png"
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--virtual-time-budget=4000", f"--user-data-dir={page.parent / f'profile-{name}'}",  # a new reader each time
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", f"--window-size={width},{HEIGHT}", *flags,
        f"--screenshot={picture}", url or page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=240, check=True)
    with Image.open(picture) as shot:
        light = ImageStat.Stat(shot.convert("L")).mean[0] / 255
    return Picture(picture.stat().st_size, light)
