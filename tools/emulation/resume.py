"""A pytest plugin that writes down every test as it ends, and leaves out those that ended well before.

Emulated runs are cut short, and go on.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ENDED = Path(os.environ["HEADLONG_ENDED"])
"""One line for each test: its name, how it ended, how long it took."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = [json.loads(line) for line in ENDED.read_text().splitlines()] if ENDED.exists() else []
    before = {line["test"] for line in lines if line["ended"] != "failed"}
    left = [item for item in items if item.nodeid not in before]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in before])
    items[:] = left


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    outcomes: list[tuple[str, float]] = []
    item.config.stash[KEY] = outcomes
    yield
    words = [outcome for outcome, _ in outcomes]
    how = next((word for word in ("failed", "skipped") if word in words), "passed")
    line = {"test": item.nodeid, "ended": how, "seconds": round(sum(took for _, took in outcomes), 1)}
    with ENDED.open("a") as file:
        file.write(json.dumps(line) + "\n")


KEY = pytest.StashKey[list[tuple[str, float]]]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = (yield).get_result()
    item.config.stash[KEY].append((report.outcome, report.duration))
