"""A layer spread by classes over the processes of ``torch.distributed``: torchrun, gloo on CPUs, nccl beside GPUs.

::

    dist.init_process_group("gloo")
    mine   = slice_of(layer)                          # this process's rows of a layer that all can map
    engine = compile(mine, eps=0.01)                  # every process calls it, with its own rows
    top    = engine.topk(hidden, k=10)                # the same hidden vectors, the same answer, everywhere

One exchange answers a question: each process sends its candidates with their bounds, some hundred bytes a query, never
weights or scores of all classes. ``engine.traffic`` counts it. Engines read the CPU's memory, so the exchange is gloo's, over
a group of the engine's own, whatever the program's backend is: it meets no other collective of the program. A process that
died, hangs or sits elsewhere is a PeerError on every process that asks, within ``timeout`` seconds of its asking.
"""

from __future__ import annotations

import time
import zlib
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import headlong
from headlong.engines.base import Engine
from headlong.engines.parts import Part
from headlong.engines.shards import Said, Shards, facts
from headlong.errors import InputError, OptionError, PeerError, named
from headlong.links import Link
from headlong.number_checks import real

Arrays = tuple[Any, ...]
Group = dist.ProcessGroup | None

TIMEOUT = 60.0


class Traffic:
    """``exchanges`` so far, the ``sent`` bytes of this process in them, and the ``queries`` they were for."""

    def __init__(self) -> None:
        self.exchanges, self.sent, self.queries = 0, 0, 0

    @property
    def per_query(self) -> float:
        """Bytes that this process sent for one query, on average."""
        return self.sent / max(1, self.queries)


class Exchange(NamedTuple):
    """All-gathers arrays of equal shape over a group, bit by bit, and gives up after ``timeout`` seconds."""

    group: Group
    timeout: float
    traffic: Traffic

    def __call__(self, arrays: Arrays, question: Said = ()) -> list[Arrays]:
        """The arrays of every process, in the order of their ranks; PeerError where ``question`` is not theirs."""
        plain = [np.ascontiguousarray(array) for array in arrays]
        sent = np.frombuffer(b"".join(array.tobytes() for array in plain), np.uint8)
        shapes = repr([(array.dtype.str, array.shape) for array in plain]).encode()
        header = np.array([len(sent), zlib.crc32(shapes) << 32 | _digest(question)], np.uint64)
        self._same(header)
        parts = self._gather(sent)
        self.traffic.exchanges += 1
        self.traffic.sent += len(sent) + header.nbytes
        self.traffic.queries += max(map(len, plain))
        return [_unpacked(part.tobytes(), plain) for part in parts]

    def _same(self, header: Any) -> None:
        found = [part.view(np.uint64) for part in self._gather(header.view(np.uint8))]
        if any((part != header).any() for part in found):
            raise PeerError(
                "the processes made different calls (another method, other hidden vectors, k, seed or arguments); call "
                "every method in all of them with the same arguments; broadcast what each process would compute itself"
            )

    def _gather(self, sent: Any) -> list[Any]:
        mine = torch.from_numpy(sent.copy())
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        start = time.monotonic()
        try:
            work = dist.all_gather(parts, mine, group=self.group, async_op=True)
            work.wait(timedelta(seconds=self.timeout))
        except (RuntimeError, ValueError) as error:
            raise _no_answer(self.group, start, self.timeout, error) from error
        return [part.numpy() for part in parts]


def _no_answer(group: Group, start: float, timeout: float, error: Exception) -> PeerError:
    rank, size, waited = dist.get_rank(group), dist.get_world_size(group), time.monotonic() - start
    why = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
    return PeerError(
        f"rank {rank} of {size:,} got no answer from the others and waited {waited:.1f} s (timeout {timeout:g} s): "
        f"a process has died or hangs ({why}); restart the group"
    )


def _own(group: Group, timeout: float) -> Group:
    """A gloo group of the same processes: other collectives cannot be taken for its own, and its threads end in time."""
    start = time.monotonic()
    try:
        ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)  # torch 2.6 takes no None
        own: Group = dist.new_group(ranks, timedelta(seconds=timeout), "gloo", use_local_synchronization=True)
    except (RuntimeError, ValueError) as error:
        raise _no_answer(group, start, timeout, error) from error
    return own


def _digest(question: Said) -> int:
    """One number for the arrays and plain values of a question."""
    code = 0
    for part in question:
        code = zlib.crc32(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode(), code)
    return code


def _unpacked(data: bytes, like: list[Any]) -> Arrays:
    found, at = [], 0
    for array in like:
        part = np.frombuffer(data, array.dtype, count=array.size, offset=at) if array.size else np.empty(0, array.dtype)
        found.append(part.reshape(array.shape))
        at += array.nbytes
    return tuple(found)


class DistributedEngine(Shards):
    """The verbs of every engine, one shard in each process; ``engine`` is the one that lives here."""

    def __init__(self, engine: Engine, group: Group, timeout: float) -> None:
        self.engine, self.traffic, self.group = engine, Traffic(), _own(group, timeout)
        exchange = Exchange(self.group, timeout, self.traffic)
        layer = engine.layer
        alike = _digest((layer.link, engine.method, engine.promise))
        longest = float(engine.norms.max())
        shapes = exchange((np.array([[layer.vocab, layer.dim]]), np.array([alike]), np.array([longest])))
        sizes = [int(shape[0, 0]) for shape, *_ in shapes]
        if len({(int(shape[0, 1]), int(code[0])) for shape, code, _ in shapes}) > 1:
            raise InputError("the shards differ in dim, link, method or promise; expected rows of one layer, compiled alike")
        starts = tuple(int(stop) for stop in np.cumsum([0, *sizes]))
        part = Part(engine, first=starts[dist.get_rank(group)])
        longest = max(float(norm[0]) for *_, norm in shapes)
        super().__init__(lambda ask, said: exchange(ask(part), said), facts(engine, starts, longest))

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, here {self.engine.layer.vocab} classes)"


def compile(  # noqa: A001  # as headlong.compile
    layer: Any,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    link: Link | None = None,
    timeout: float = TIMEOUT,
    delta: float = 1e-6,
    **options: Any,
) -> DistributedEngine:
    """An engine over all processes of ``group`` (None: the default group); every one of them calls this.

    ``layer``    this process's classes as a ``Layer``, in the order of the ranks; or a ``DTensor`` weight with ``Shard(0)``,
                 whose group is taken, with its ``bias`` (a DTensor too) and ``link``
    ``timeout``  seconds after which a process that does not answer is an error
    ``delta``    holds for the merged answer: each shard is compiled with its part. ``options``: `headlong.compile`
    """
    timeout = real(timeout, "timeout", 1e-3, 1e6, "seconds")
    _check_group()
    if not isinstance(layer, headlong.Layer):
        layer, group = _of_dtensor(layer, bias, link, group)
    size = dist.get_world_size(group)
    engine = headlong.compile(layer, delta=delta / size, **options)
    return connect(engine, group, timeout=timeout)


def connect(engine: Engine, group: Group = None, *, timeout: float = TIMEOUT) -> DistributedEngine:
    """The same from engines that have been compiled (or loaded) in each process, with their part of any delta."""
    _check_group()
    return DistributedEngine(engine, group, real(timeout, "timeout", 1e-3, 1e6, "seconds"))


def share(vocab: int, rank: int, size: int) -> slice:
    """``[rank * vocab / size, (rank + 1) * vocab / size)``: the classes of a rank, as many as any other's or one fewer."""
    if vocab < size:  # said in every process: none is left waiting for one that stopped here
        raise OptionError(f"{vocab:,} classes are too few for {size:,} processes; use fewer processes")
    return slice(rank * vocab // size, (rank + 1) * vocab // size)


def _check_group() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("there is no process group; call torch.distributed.init_process_group first, under torchrun")


def slice_of(layer: headlong.Layer, group: Group = None) -> headlong.Layer:
    """This process's share of a layer that all can map, :func:`share`; nothing is copied."""
    _check_group()
    part = share(layer.vocab, dist.get_rank(group), dist.get_world_size(group))
    bias = None if layer.bias is None else layer.bias[part]
    return headlong.Layer(layer.weight[part], bias, layer.link, name=layer.name)


def _of_dtensor(weight: Any, bias: Any, link: Link | None, group: Group) -> tuple[headlong.Layer, Group]:
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(weight, DTensor):
        raise InputError(f"layer is {named(weight)}; expected a headlong.Layer or a DTensor weight")
    if tuple(weight.placements) != (Shard(0),) or (isinstance(bias, DTensor) and tuple(bias.placements) != (Shard(0),)):
        raise InputError(f"the weight is placed as {weight.placements}; expected (Shard(0),), classes spread over all")

    def local(part: Any) -> Any:
        return part.to_local().detach().cpu() if isinstance(part, DTensor) else part

    return headlong.Layer(local(weight), local(bias), link), weight.device_mesh.get_group() if group is None else group
