"""Where a contest runs, and how time is read there: a GPU by device events and CUDA graphs, or Triton's interpreter.

::

    seconds = event after call(block) - event before it          behind a read of four times the L2 cache

All that differs between the two is in :class:`Place`, so that a run without a GPU goes through the same lines as one with it;
what it times then is the interpreter, which says nothing about a GPU.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

from headlong.bench.measure import Clock, wall
from headlong.engines.device.memory import INTERPRETER, place_of
from headlong.errors import HeadlongError

Call = Callable[[Any], Any]
CEILING = 1 << 28
"""Bytes of a read that shows the bandwidth, where the layer has fewer."""


class Place(NamedTuple):
    """``clock(call, block)`` in seconds; ``captured`` and ``compiled`` make a call of a call; ``facts`` for the record."""

    name: str
    torch: Any
    device: Any
    clock: Clock
    captured: Callable[[Call], Call]
    compiled: Callable[[Call], Call]
    ceiling: int
    facts: dict[str, Any]


def place(name: str) -> Place:
    """``"cuda"``, ``"cuda:N"``, or ``"interpreter"``; where it is not there, an error that says what to do."""
    torch, device = place_of(name)
    if name == INTERPRETER:
        return Place(name, torch, device, wall, _same, _same, 1 << 16, {"gpu": "none: Triton's interpreter"})
    if device.index is not None:
        torch.cuda.set_device(device)
    about = torch.cuda.get_device_properties(device)
    facts = {
        "gpu": about.name, "gpu_memory": about.total_memory, "l2": about.L2_cache_size, "cuda": torch.version.cuda,
        "triton": importlib.metadata.version("triton"),
    }  # fmt: skip
    other = torch.zeros(about.L2_cache_size, dtype=torch.float32, device=device)
    return Place(
        name, torch, device, EventClock(torch, other), lambda call: Replayed(torch, call),
        lambda call: compiled(torch, call), CEILING, facts,
    )  # fmt: skip


def no_gpu() -> str:
    """Why nothing can be timed on a GPU here; empty where it can."""
    try:
        place_of("cuda")
    except HeadlongError as error:
        return str(error).partition(";")[0]
    return ""


def compiled(torch: Any, call: Call, backend: Any = "inductor") -> Call:
    """``torch.compile`` for every batch size anew, as often as there are sizes and layers: beyond eight kinds of input it would
    go on uncompiled without a word. What cannot be compiled whole is refused."""
    limits = torch._dynamo.config  # noqa: SLF001 - it has no public name
    limits.recompile_limit, limits.accumulated_recompile_limit = 1 << 10, 1 << 12
    made: Call = torch.compile(call, dynamic=False, fullgraph=True, backend=backend)
    return made


def _same(call: Call) -> Call:
    return call


class EventClock:
    """Device events around one call. ``other`` is read first: nothing of the call before stays in the L2 cache, and the GPU is
    busy while the host lines the call up, so that only what the host cannot keep up with is counted as waiting."""

    def __init__(self, torch: Any, other: Any) -> None:
        self.torch, self.other = torch, other

    def __call__(self, call: Call, block: Any) -> float:
        self.other.sum()
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(block)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class Replayed:
    """The call as one CUDA graph: the queries are copied in, the graph is replayed. Captured anew for another batch size."""

    def __init__(self, torch: Any, call: Call) -> None:
        self.torch, self.call = torch, call
        self.static: Any = None
        self.graph: Any = None

    def __call__(self, block: Any) -> Any:
        if self.static is None or self.static.shape != block.shape:
            self._capture(block)
        self.static.copy_(block)
        self.graph.replay()
        return self.answer

    def _capture(self, block: Any) -> None:
        """On a stream of its own, after calls that are not captured: what is made once (kernels, workspaces) is made there."""
        self.static = self.graph = self.answer = None  # the memory of the graph before
        cuda, static = self.torch.cuda, block.clone()
        beside = cuda.Stream()
        beside.wait_stream(cuda.current_stream())
        with cuda.stream(beside):
            for _ in range(3):
                self.call(static)
        cuda.current_stream().wait_stream(beside)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.answer = self.call(static)
        self.static = static
