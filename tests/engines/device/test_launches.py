"""What device engines launch: kernels that compile for a GPU, nothing that waits for one, and graphs where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import headlong as hl
from compiled import variant
from devices import GPU, PLACE, recorded, tensor, torch
from headlong.engines.device import reader as device_reader
from structured_layers import made

DIM, VOCAB, WIDE = 16, 67, 80
ENGINES = ("full", "cascade", "blocks", "wide blocks", "svd", "experts", "moc", "mos", "tree", "two-level")
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "topk": lambda engine, hidden: engine.topk(hidden, 3),
    "topk of many": lambda engine, hidden: engine.topk(hidden, 40),
    "one draw": lambda engine, hidden: engine.sample(hidden, seed=3),
    "log_prob": lambda engine, hidden: engine.log_prob(hidden, torch.zeros(len(hidden), 2, dtype=torch.int64)),
    "lse": lambda engine, hidden: engine.lse(hidden),
    "sample": lambda engine, hidden: engine.sample(hidden, 2, seed=3),
    "top-k sampling": lambda engine, hidden: engine.sample(hidden, 2, 0.8, top_k=5, seed=3),
}


def engine_of(name: str, place: str = PLACE) -> Any:
    rng = np.random.default_rng(2)
    if name not in ("full", "cascade", "blocks", "wide blocks", "svd"):
        return hl.compile(made(name, DIM, VOCAB).layer, device=place)
    dim = WIDE if name == "wide blocks" else DIM
    layer = hl.Layer(rng.standard_normal((VOCAB, dim)).astype(np.float16), np.zeros(VOCAB, np.float32))
    vectors = (rng.standard_normal((64, dim)) * np.arange(1, dim + 1) ** -1.0).astype(np.float32)
    coded = {"calibration": vectors, "width": 8, "eps": np.inf}
    options = {"cascade": coded, "svd": {"width": 4}}.get(name, coded | {"blocks": True})
    options = {} if name == "full" else options
    return hl.compile(layer, "cascade" if "blocks" in name else name, device=place, **options)


ONE_QUERY, SEVERAL = ("topk", "topk of many", "one draw", "sample", "top-k sampling"), ("topk", "one draw", "sample")
LAUNCHES = {"full": 3, "cascade": 5, "blocks": 6, "wide blocks": 8, "svd": 82}
LAUNCHES |= {"experts": 93, "moc": 251, "mos": 276, "tree": 477, "two-level": 166}
"""Of every engine above: kernels and torch's operations of one ``topk`` of one query, at most."""


class Counted(TorchDispatchMode):
    """Counts torch's operations that launch something: all but those that make room, or look at it in another way."""

    FREE = ("empty", "new_empty", "view", "_unsafe_view", "_reshape_alias", "alias", "detach", "slice", "select", "split")
    FREE += ("squeeze", "unsqueeze", "expand", "as_strided", "t.", "transpose", "permute", "unbind", "lift_fresh")
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not str(func).removeprefix("aten.").startswith(self.FREE)
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(GPU, reason="launches are recorded in the interpreter")
@pytest.mark.parametrize("name", ENGINES)
def test_how_many_launches_an_answer_takes(name: str) -> None:
    engine = engine_of(name)
    hidden = torch.zeros(1, engine.layer.dim, dtype=torch.float16)
    with recorded(run=False) as launches, Counted() as operations:
        engine.topk(hidden, 3)
    assert len(launches) + operations.count <= LAUNCHES[name]


@pytest.mark.skipif(GPU, reason="launches are recorded in the interpreter")
@pytest.mark.parametrize("verb", ["topk", "topk of many", "lse", "one draw"])
@pytest.mark.parametrize("batch", [1, 17])
@pytest.mark.parametrize("name", ["full", "cascade"])
def test_answers_in_three_launches_and_in_five(name: str, verb: str, batch: int) -> None:
    engine, hidden = engine_of(name), torch.zeros(batch, DIM)
    with recorded(run=False) as launches, Counted() as operations:
        VERBS[verb](engine, hidden)
    scan = "scan_codes" if batch > 4 else "scan_codes_of_one"
    expected = {"full": ["look", "settle", "dense"], "cascade": ["rotate", "prepare", scan, "settle_codes", "dense"]}
    assert [kernel.__name__ for kernel, *_ in launches] == expected[name] and operations.count == 0


class HostLooks(TorchDispatchMode):
    """Refuses what would wait for a GPU: numbers read by the host, and shapes that follow from numbers."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave.Tensor", "bincount")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        flags = name.startswith("index") and any(getattr(one, "dtype", None) == torch.bool for one in args[1] or ())
        if name.startswith(self.REFUSED) or flags:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(GPU, reason="launches are recorded in the interpreter")
@pytest.mark.parametrize("name", ENGINES)
def test_nothing_on_the_way_waits_for_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(name)
    hidden = torch.zeros(3, engine.layer.dim)
    monkeypatch.setattr(type(engine), "_ids", lambda self, ids, batch: ids)  # ids that are there already
    monkeypatch.setattr(device_reader.DeviceReader, "tensor", lambda self, array: pytest.fail("copied from the host"))
    with recorded(run=False) as launches, HostLooks():
        for call in VERBS.values():
            call(engine, hidden)
    assert launches


def test_a_look_at_a_number_is_seen() -> None:
    with HostLooks():
        for look in (lambda x: bool(x.any()), lambda x: x[x > 0], lambda x: x.nonzero()):
            with pytest.raises(AssertionError, match="waits for the device"):
                look(torch.ones(3))


FORMS = ("SAMPLE", "BLOCK_B") if os.environ.get("HEADLONG_TEST_ALL") else ("BLOCK_B",)
"""Constants for each value of which a kernel is compiled."""


@pytest.fixture(scope="module")
def machine_code() -> list[dict[str, Any]]:
    """Every kernel in the blocks of a GPU, for compute capability 9.0, by a process without the interpreter."""
    if GPU:
        pytest.skip("launches are recorded in the interpreter")
    variants: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_reader, "INTERPRETED", device_reader.TILE_SIZES)
        for name in ENGINES:
            with recorded(run=False) as launches:
                engine = engine_of(name)
                for batch in (1, 5, 17):
                    for verb in ONE_QUERY if batch == 1 else SEVERAL:
                        VERBS[verb](engine, torch.zeros(batch, engine.layer.dim, dtype=torch.float16))
            for launch in launches:
                form = [launch[2].get(key) for key in FORMS]
                variants.setdefault(f"{launch[0].__name__} {form}", variant(*launch))
    plain = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    script, text = Path(__file__).resolve().parents[2] / "helpers" / "compiled.py", json.dumps(list(variants.values()))
    done = subprocess.run([sys.executable, script, "90"], input=text, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(variants)
    return found


@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_a_gpu_and_its_registers_suffice(machine_code: list[dict[str, Any]]) -> None:
    folder = Path(device_reader.__file__).parent / "kernels"
    kernels = {name for file in folder.glob("*.py") for name, line in _kernels(file.read_text()) if line}
    assert kernels == {code["kernel"] for code in machine_code}, "a kernel that no engine launches"
    assert [code for code in machine_code if code["stack"]] == []


def test_codes_are_multiplied_by_the_instructions_for_them(machine_code: list[dict[str, Any]]) -> None:
    uses = {(code["kernel"], code.get("BLOCK_B")): code["uses"] for code in machine_code}
    assert "dp4a" in uses["scan_codes_of_one", None] and "dp4a" in uses["refine", None]
    assert all("int8 matrix" in uses["scan_codes", block] for block in (16, 32))
    assert all("float matrix" in uses["look", block] for block in (16, 32)) and "float matrix" not in uses["look", 1]
    wide = (("look", 1), ("scan_codes_of_one", None), ("scan_codes", 16), ("scan_codes", 32))
    assert all("16 bytes" in uses[form] for form in wide)


CALLED = ("finish_tile", "sum_tiles", "keep", "close", "order", "pick", "halves_of")
"""What kernels call and what returns nothing."""


def _kernels(source: str) -> list[tuple[str, bool]]:
    """Every Triton function of a file, and whether it is a kernel: others are called, and return something."""
    import ast

    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    returns = {one.name for one in functions if any(isinstance(node, ast.Return) and node.value for node in ast.walk(one))}
    return [(one.name, one.name not in returns and one.name not in CALLED) for one in functions]


@pytest.mark.skipif(not GPU, reason="a CUDA graph takes a GPU: run this file where there is one")
@pytest.mark.parametrize("name", ENGINES)
def test_a_captured_graph_answers_new_vectors(name: str) -> None:
    engine, rng = engine_of(name), np.random.default_rng(5)
    static = tensor(rng.standard_normal((2, engine.layer.dim)).astype(np.float32))
    engine.topk(static, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = engine.topk(static, 3)
    static.copy_(tensor(rng.standard_normal((2, engine.layer.dim)).astype(np.float32)))
    graph.replay()
    assert answer.ids.equal(engine.topk(static, 3).ids)
