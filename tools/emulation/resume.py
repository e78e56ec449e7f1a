"""A pytest plugin that writes down every test as it ends, and leaves out those that ended well before.

Emulated runs are cut short, and go on. One thing is smaller than elsewhere: directions that classes share are fitted in one
round of k-means. NumPy's products for it took nearly all of an emulated compile, and no bound depends on which they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headlong.previews.blocks import rays

FOLDER, LEVEL = Path(os.environ["HEADLONG_ENDED"]), os.environ["HEADLONG_ENDED_LEVEL"]
LEFT_OUT = {
    "store": ("killed",), "saved": ("process", "killed"), "damage": ("killed",),
    "promise": ("true_mean", "another_mean", "wealth", "binomial", "read_less[numpy]"),
}  # fmt: skip
"""Of suites, tests that start another program, which an emulated one cannot; of promises, those that run NumPy alone."""

rays.ROUNDS = 1


def file_of(suite: str) -> Path:
    """One line for each test: its name, how it ended, how long it took."""
    return FOLDER / f"{suite}-{LEVEL}.jsonl"


def suite_of(item: pytest.Item) -> str:
    return item.path.stem.removeprefix("test_")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(word in item.name for word in LEFT_OUT.get(suite_of(item), ())):
            asked.setdefault(suite_of(item), []).append(item)
    left: list[pytest.Item] = []
    for suite, mine in asked.items():
        ended = file_of(suite)
        lines = [json.loads(line) for line in ended.read_text().splitlines()] if ended.exists() else []
        before = {line["test"] for line in lines if line["ended"] != "failed"}
        left += [item for item in mine if item.nodeid not in before]
        ended.with_suffix(".tests").write_text(str(len(mine)))
    kept = set(map(id, left))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = left


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    outcomes: list[tuple[str, float]] = []
    item.config.stash[KEY] = outcomes
    yield
    words = [outcome for outcome, _ in outcomes]
    how = next((word for word in ("failed", "skipped") if word in words), "passed")
    line = {"test": item.nodeid, "ended": how, "seconds": round(sum(took for _, took in outcomes), 1)}
    with file_of(suite_of(item)).open("a") as file:
        file.write(json.dumps(line) + "\n")


KEY = pytest.StashKey[list[tuple[str, float]]]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = (yield).get_result()
    item.config.stash[KEY].append((report.outcome, report.duration))
