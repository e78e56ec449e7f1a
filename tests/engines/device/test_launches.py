"""What device engines launch: kernels that compile for a GPU, one question to it, and graphs where there is one."""

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
from headlong.engines.device import matrix as device_matrix
from headlong.engines.device.build import METHODS
from headlong.engines.device.calls import call_of
from headlong.engines.device.engine import DeviceEngine
from headlong.question import Filters

DIM, VOCAB = 16, 67
PLAIN = Filters(1, 1.0, 0, 1.0, 0.0, 3, 0)
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "topk": lambda engine, hidden: engine.topk(hidden, 3, eps=np.inf),
    "log_prob": lambda engine, hidden: engine.log_prob(hidden, engine.topk(hidden, 2).ids),
    "lse": lambda engine, hidden: engine.lse(hidden),
    "sample": lambda engine, hidden: engine.sample(hidden, 2, seed=3),
    "nucleus": lambda engine, hidden: engine.sample(hidden, 2, 0.8, top_p=0.9, seed=3),
    "filtered": lambda engine, hidden: engine.sample(hidden, 2, 0.8, top_k=5, top_p=0.9, seed=3),
}


def engine_of(name: str) -> Any:
    rng = np.random.default_rng(2)
    weight, bias = rng.standard_normal((VOCAB, DIM)).astype(np.float16), np.zeros(VOCAB, np.float32)
    return hl.compile(hl.Layer(weight, bias), name, device=PLACE)


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
@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("name", METHODS)
def test_nothing_waits_for_the_device_while_a_graph_is_captured(name: str, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(name)
    monkeypatch.setattr(type(engine), "_capturing", lambda self: True)
    monkeypatch.setattr("headlong.engines.device.engine.NUCLEUS", 4)
    monkeypatch.setattr("headlong.engines.device.engine.ids_of", lambda matrix, ids, batch: ids)  # these are there already
    monkeypatch.setattr(device_matrix.DeviceMatrix, "tensor", lambda self, array: pytest.fail("copied from the host"))
    with recorded() as launches, HostLooks():
        VERBS[verb](engine, torch.zeros(3, DIM))
    assert launches


def test_a_look_at_a_number_is_noticed() -> None:
    for look in (lambda x: bool(x.any()), lambda x: x[x > 0], lambda x: x.nonzero()):
        with HostLooks(), pytest.raises(AssertionError, match="waits for the device"):
            look(torch.ones(3))


@pytest.mark.timeout(600)
@pytest.mark.skipif(GPU, reason="launches are recorded in the interpreter")
def test_every_kernel_compiles_for_a_gpu_and_its_registers_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the blocks of a GPU, for compute capability 9.0, by a process without the interpreter."""
    monkeypatch.setattr(device_matrix, "INTERPRETED", device_matrix.Tiles())
    monkeypatch.setattr(DeviceEngine, "_capturing", lambda self: True)  # what has not run is not asked
    variants: dict[str, str] = {}
    engine = engine_of("full")
    for kind in (torch.float16, torch.float32):
        for batch in (1, 2, 17):
            with recorded(run=False) as launches:
                engine.topk(torch.zeros(batch, DIM, dtype=kind), 3, eps=np.inf)
                call, _ = call_of(engine.matrix, torch.zeros(batch, DIM, dtype=kind), wish=PLAIN)
                for top_p in (1.0, 0.9):
                    engine._winners(call, PLAIN._replace(top_p=top_p))
                engine.matrix.exact(call, given=torch.zeros(batch, VOCAB, dtype=torch.float64), sample=True)
            for kernel, given, fixed in launches:
                form = [fixed.get(key) for key in ("WIDEN", "QUERIES", "EXACT", "COLUMNS")]
                for record in ("rows", "call", "read"):
                    form += [part is not None for part in given.get(record, ())]
                variants.setdefault(f"{kernel.__name__} {form} {given.get('keys') is None}", variant(kernel, given, fixed))
    plain = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    script, text = Path(__file__).resolve().parents[2] / "helpers" / "compiled.py", json.dumps(list(variants.values()))
    done = subprocess.run([sys.executable, script, "90"], input=text, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    made = {"prepare", "scan", "merge", "exact", "order", "weigh", "pick", "said"}
    assert {code["kernel"] for code in found} >= made and len(found) == len(variants)
    assert [code for code in found if code["stack"] > 16] == []  # releases of the compiler differ by a spilled register or two
    products = [code for code in found if code["kernel"] == "scan" and code["QUERIES"] > 1 and not code["WIDEN"]]
    assert products and all("float matrix" in code["uses"] for code in products)
    scans = [code for code in found if code["kernel"] == "scan"]
    assert scans and all("16 bytes" in code["uses"] for code in scans)


@pytest.mark.skipif(not GPU, reason="a CUDA graph takes a GPU: run this file where there is one")
@pytest.mark.parametrize("name", METHODS)
def test_a_captured_graph_answers_new_vectors(name: str) -> None:
    engine, rng = engine_of(name), np.random.default_rng(5)
    static = tensor(rng.standard_normal((2, DIM)).astype(np.float32))
    engine.topk(static, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = engine.topk(static, 3)
    static.copy_(tensor(rng.standard_normal((2, DIM)).astype(np.float32)))
    graph.replay()
    assert answer.ids.equal(engine.topk(static, 3).ids)
