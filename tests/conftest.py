"""Fixtures that every test may use. Data that the project does not ship is found through ``HEADLONG_DATA``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from headlong import native
from headlong.layers.matrix import Layer
from headlong.store import open_file

SEED = 20261121
if not any(Path("/dev").glob("nvidia*")):  # before anything imports triton: kernels for a GPU run in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["HEADLONG_PLAN"] = "first"  # plans are the same on every machine, and no test times anything
os.environ.setdefault("HEADLONG_THREADS", "2")  # OMP_NUM_THREADS is for NumPy and PyTorch here
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that pytest starts: it starts one for each processor
TRAINED = "heads/wikitext2-gpt512"

EXAMPLES = 100 if os.environ.get("HEADLONG_TEST_ALL") else 50
settings.register_profile("headlong", deadline=None, derandomize=True, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("headlong")


def pytest_report_header() -> str:
    isa, data = os.environ.get("HEADLONG_ISA", "best"), os.environ.get("HEADLONG_DATA", "not set")
    return f"headlong: seed {SEED}, HEADLONG_ISA {isa}, HEADLONG_DATA {data}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """HEADLONG_TEST_ALL=1 runs everything; without it what only repeats is left out, so that someone can wait for the rest.

    Engines are then tested with the reference and the best instruction set; kernels and encoders are always compared with
    float64 on every level, so a fault in one of them shows in either case. ``one_of("dtype")``: for each combination of the
    test's other parameters one of these takes its turn, which holds for the levels in between always. ``exhaustive``: not at
    all.
    """
    between, turns = set(native.levels()[1:-1]), _Turns(items)
    if os.environ.get("HEADLONG_TEST_ALL"):
        gone = {id(item) for item in items if _levels(item) & between and not turns.has(item)}
    else:
        gone = {id(item) for item in items if _repeats(item, between) or not turns.has(item)}
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in gone])
        items[:] = [item for item in items if id(item) not in gone]


def _repeats(item: pytest.Item, between: set[str]) -> bool:
    one_level_of_many = "kernels" not in item.path.parts and bool(_levels(item) & between)
    return one_level_of_many or item.get_closest_marker("exhaustive") is not None


class _Turns:
    """Which values of the parameters of ``one_of`` are run beside which of the others."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self.groups: dict[Any, dict[str, None]] = {}
        for item in items:
            rest, own = self._split(item)
            self.groups.setdefault(rest, {})[own] = None
        self.chosen = {rest: list(values)[number % len(values)] for number, (rest, values) in enumerate(self.groups.items())}

    def has(self, item: pytest.Item) -> bool:
        rest, own = self._split(item)
        return self.chosen[rest] == own

    @staticmethod
    def _split(item: pytest.Item) -> tuple[Any, str]:
        """The test with its other parameters, and those of ``one_of``."""
        marker, call = item.get_closest_marker("one_of"), getattr(item, "callspec", None)
        if marker is None or call is None:
            return item.nodeid, ""
        values = {name: str(value) for name, value in sorted(call.params.items())}
        own = [values.pop(name) for name in marker.args]
        return (item.path, item.name.partition("[")[0], *values.items()), str(own)


def _levels(item: pytest.Item) -> set[str]:
    """The instruction set that a test is run for, where it is run for one."""
    call = getattr(item, "callspec", None)
    return {str(value) for name, value in (call.params if call else {}).items() if name in ("level", "isa")}


@pytest.fixture(params=native.levels())
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The instruction set of engines that a test makes: each one, or those that its marks say (``thinned.NATIVE``)."""
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of data sets; tests that need it are skipped where there is none."""
    folder = os.environ.get("HEADLONG_DATA")
    if not folder:
        pytest.skip("HEADLONG_DATA is not set: it names the folder of data sets, which the project does not ship")
    return Path(folder)


@pytest.fixture(scope="session")
def trained(data: Path) -> Layer:
    """A trained language model's output layer: V = 33,278, D = 512, float16."""
    return Layer.load(_present(data / f"{TRAINED}.safetensors"), weight="weight")


@pytest.fixture(scope="session")
def trained_hidden(data: Path) -> NDArray[np.float16]:
    """Its hidden vectors on the validation text, ``[8192, 512]`` float16."""
    return open_file(_present(data / f"{TRAINED}.hidden.safetensors")).read("valid_hidden")


def _present(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"HEADLONG_DATA has no {path.name}")
    return path


@pytest.fixture(scope="module")
def plain_interpreter() -> Iterator[None]:
    """Triton's interpreter without its check of each sum for overflow, half of its time: Philox wraps around on purpose."""
    pytest.importorskip("torch")
    pytest.importorskip("triton", minversion="3.6", reason="no triton 3.6: kernels run on Linux on x86-64")
    from triton.runtime import interpreter

    if not os.environ.get("TRITON_INTERPRET"):
        yield
        return
    kept = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    yield
    interpreter.interpreter_builder.options = kept


@pytest.fixture(scope="module")
def interpreter(plain_interpreter: None) -> str:
    """Triton's interpreter as a device."""
    if not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("there is a GPU here: the interpreter is for machines without one")
    return "interpreter"
