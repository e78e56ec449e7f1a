"""What the tests need, and which of them are quick.

A package that an extra brings may be missing: ``pip install '.[test]'`` has none of them, ``'.[test-all]'`` has all. What
cannot be imported is skipped, with the line that installs it; a package that is there and fails is a failure.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent
EXTRAS = {"gguf", "griffe", "llama_cpp", "matplotlib", "mkdocs", "peft", "PIL", "pyarrow", "sacrebleu", "scipy", "sklearn",
          "tokenizers", "torch", "transformers", "triton"}  # fmt: skip
QUICK = ("tests/codes", "tests/kernels", "tests/layers", "tests/report", "tests/cli/test_cli.py", "tests/test_arrays.py",
         "tests/test_links.py", "tests/test_loaders.py", "tests/test_store.py", "tests/engines/test_engines.py")  # fmt: skip
"""``pytest -m quick``: kernels, codes, files, the engines and the command line. Nothing else is even imported."""


def missing(error: BaseException | None) -> str | None:
    """The package of an extra whose absence is behind an error: itself, or what it came from."""
    while error is not None:
        name = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            return name
        error = error.__cause__ or error.__context__
    return None


def told(name: str) -> str:
    return f"{name} is not installed: pip install '.[test-all]'"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and (name := missing(report.call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {told(name)}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _skipped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _skipped())


def _skipped() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        if name := missing(error):
            pytest.skip(told(name))
        raise


def quick(path: Path) -> bool:
    place = path.relative_to(ROOT).as_posix()
    return any(place == one or place.startswith(f"{one}/") for one in QUICK)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("-m") == "quick" and collection_path.suffix == ".py" and not quick(collection_path):
        return True
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    if quick(item.path):
        item.add_marker("quick")
