"""Shards in one process and in several: the answers of one engine over all classes, to the bit."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import headlong as hl
from children import in_processes
from headlong.engines.shards import here
from headlong.errors import InputError, OptionError, PeerError, UnsupportedError
from headlong.integrations import distributed
from headlong.integrations.parallel_loss import ShardedHead
from kinds import parts
from oracle import check_topk, check_within, truth

VOCAB, DIM, BATCH = 2003, 24, 5


def layer(link: Any = None) -> hl.Layer:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((VOCAB, DIM)).astype(np.float32)
    weight[500:520] = weight[1500:1520]  # ties across shards: the smaller id first
    return hl.Layer(weight, rng.standard_normal(VOCAB).astype(np.float32).round(1), link)


def hidden() -> Any:
    rows = np.random.default_rng(2).standard_normal((BATCH, DIM)).astype(np.float32)
    rows[0] = layer().weight[1505]
    return rows


CUTS: list[tuple[int, ...]] = [(), (1001,), (3, 501, 1502)]
FILTERS: list[dict[str, Any]] = [
    {}, {"n": 3, "temperature": 0.5}, {"top_k": 7, "n": 2}, {"top_p": 0.8, "temperature": 0.7}, {"min_p": 0.1},
    {"top_k": 50, "top_p": 0.7, "min_p": 0.01, "temperature": 1.5}, {"top_p": 0.99},
]  # fmt: skip


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("link", [None, hl.SoftCap(4.0), hl.Affine(0.5, 1.0)])
@pytest.mark.parametrize("method", ["codes", "full", "blocks"])
def test_shards_answer_like_one_engine(cuts: tuple[int, ...], link: Any, method: str) -> None:
    whole, rows, more = layer(link), hidden(), {"blocks": True} if method == "blocks" else {}
    method = "codes" if more else method
    one = hl.compile(whole, method, eps=1e-6, delta=0.0)
    many = here([hl.compile(part, method, eps=1e-6, delta=0.0, **more) for part in parts(whole, *cuts)])
    for limits in ({}, {"exclude": np.arange(900)}, {"allowed": np.arange(400, 1600)}):
        for k, some in ((1, rows[:1]), (10, rows), (64, rows)):
            alone, other = (engine.topk(some, k, eps=math.inf, **limits) for engine in (many, one))
            assert (alone.ids == other.ids).all() and (alone.logits == other.logits).all()
    true = truth(whole, rows)
    expected, found = one.topk(rows, 30), many.topk(rows, 30)
    assert (found.ids == expected.ids).all() and (found.logits == expected.logits).all()
    assert found.proved.all()
    check_within(found.lse, true.lse, found.error, 0.0)
    for b in range(BATCH):
        check_topk(true.logits[b], found.ids[b], found.logits[b], float(true.rounding[b]))
    check_within(many.lse(rows).lse, true.lse, many.lse(rows).error, 0.0)
    ids = np.random.default_rng(3).integers(0, VOCAB, (BATCH, 9))
    answer = many.log_prob(rows, ids)
    assert (answer.logits == one.log_prob(rows, ids).logits).all()
    check_within(answer.log_probs[:, 0], true.log_probs[np.arange(BATCH), ids[:, 0]], answer.error, 1e-9)
    for filters in FILTERS:
        expected, found = (e.sample(rows, seed=5, position=3 + np.arange(len(rows)), **filters) for e in (one, many))
        assert (found.ids == expected.ids).all() and (found.logits == expected.logits).all(), filters
        np.testing.assert_allclose(found.score, expected.score, rtol=1e-12)
    assert found.cost.path == f"{len(cuts) + 1} shards/{method}"


def test_deltas_are_a_union_and_errors_no_more_than_the_largest() -> None:
    engines = [hl.compile(part, "codes", delta=1e-4) for part in parts(layer(), *CUTS[2])]
    assert here(engines).promise.delta == pytest.approx(4e-4)
    answer = here(engines).lse(hidden())
    errors = [one.lse(hidden()).error for one in engines]
    assert (answer.error <= np.max(errors, axis=0) + 1e-12).all()
    assert (answer.error >= np.min(errors, axis=0)).all()
    check_within(answer.lse, truth(layer(), hidden()).lse, answer.error, 0.0)
    assert "4 shards, vocab=2003" in repr(here(engines))


def _answers(rank: int) -> Any:
    whole, rows = layer(), torch.from_numpy(hidden())
    engine = distributed.compile(distributed.slice_of(whole), eps=1e-6, delta=0.0, method="codes", threads=1)
    ids = torch.randint(0, VOCAB, (BATCH, 4), generator=torch.Generator().manual_seed(0))
    before = engine.traffic.sent
    top = engine.topk(rows, 6)
    sent = (engine.traffic.sent - before) / BATCH
    draws = [engine.sample(rows, seed=5, **filters).ids.numpy() for filters in FILTERS]
    fresh = engine.sample(rows).ids.numpy()
    masked = engine.topk(rows, 2, allowed=[3, 1900]).ids.numpy()
    chosen = engine.log_prob(rows, ids).logits.numpy()
    blocks = distributed.compile(distributed.slice_of(whole), eps=math.inf, method="codes", blocks=True, threads=1)
    searched = blocks.topk(rows, 6).ids.numpy(), blocks.sample(rows, seed=5, **FILTERS[2]).ids.numpy()
    return top.ids.numpy(), top.logits.numpy(), top.lse.numpy(), draws, fresh, masked, chosen, sent, searched


def test_processes_answer_like_one_engine() -> None:
    found = in_processes(_answers, 3)
    one = hl.compile(layer(), "codes", eps=1e-6, delta=0.0)
    top = one.topk(hidden(), 6)
    for ids, logits, lse, draws, fresh, masked, chosen, sent, searched in found:
        assert (ids == top.ids).all() and (logits == top.logits).all()
        assert (searched[0] == top.ids).all() and (searched[1] == draws[2]).all()
        np.testing.assert_allclose(lse, top.lse, atol=3e-6)
        for filters, drawn in zip(FILTERS, draws, strict=True):
            assert (drawn == one.sample(hidden(), seed=5, **filters).ids).all()
        assert (fresh == found[0][4]).all(), "a fresh seed has to be the same everywhere"
        assert set(masked.reshape(-1)) == {3, 1900}
        assert (chosen == found[0][6]).all()
        assert sent < 400


def _dtensor(rank: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    whole = layer()
    weight = distribute_tensor(torch.from_numpy(whole.weight.copy()), mesh, [Shard(0)])
    bias = distribute_tensor(torch.from_numpy(whole.bias.copy()), mesh, [Shard(0)])
    engine = distributed.compile(weight, bias=bias, method="full")
    with pytest.raises(InputError, match=r"expected \(Shard\(0\),\)"):
        distributed.compile(distribute_tensor(torch.from_numpy(whole.weight.copy()), mesh, [Replicate()]))
    with pytest.raises(InputError, match="expected a headlong.Layer or a DTensor"):
        distributed.compile(whole.weight)
    with pytest.raises(OptionError, match="timeout is 0"):
        distributed.compile(whole, timeout=0)
    return engine.topk(hidden(), 6).ids


def test_a_dtensor_is_a_layer_in_shards() -> None:
    expected = hl.compile(layer(), "full").topk(hidden(), 6).ids
    assert all((ids == expected).all() for ids in in_processes(_dtensor, 2))


def _loss(rank: int) -> Any:
    head = ShardedHead(8, 37).double()
    torch.manual_seed(0)
    weight, bias = torch.randn(37, 8, dtype=torch.float64), torch.randn(37, dtype=torch.float64)
    part = slice(head.start, head.start + head.mine)
    with torch.no_grad():
        head.weight.copy_(weight[part])
        head.bias.copy_(bias[part])
    rows = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 37, (11,))
    out = head(rows, target)
    out.loss.backward()
    dense_rows = rows.detach().clone().requires_grad_()
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    logits = torch.nn.functional.linear(dense_rows, w, b)
    loss = torch.nn.functional.cross_entropy(logits, target)
    loss.backward()
    torch.testing.assert_close(out.loss, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(rows.grad, dense_rows.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(head.weight.grad, w.grad[part], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(head.bias.grad, b.grad[part], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(head.log_prob(rows.detach()), logits.detach().log_softmax(-1), rtol=1e-10, atol=1e-12)
    counts = torch.rand(37, dtype=torch.float64) + 0.5
    for smoothing, counted in ((0.3, None), (0.0, counts), (0.2, counts)):
        shared = {"label_smoothing": smoothing}
        mine = torch.autograd.grad(head(rows, target, class_weight=counted, **shared).loss, [rows, head.weight, head.bias])
        dense = torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(dense_rows, w, b), target, weight=counted, **shared
        )
        of_rows, of_weight, of_bias = torch.autograd.grad(dense, [dense_rows, w, b])
        for found, expected in zip(mine, (of_rows, of_weight[part], of_bias[part]), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(UnsupportedError, match="asked for with create_graph=True; they are not differentiated again"):
        torch.autograd.grad(head(rows, target).loss, rows, create_graph=True)
    engine = distributed.compile(head.float().to_layer())
    return engine.topk(rows.detach(), 1).ids[:, 0].tolist() == logits.argmax(1).tolist()


def test_the_sharded_loss_and_its_gradients_are_the_dense_ones() -> None:
    assert in_processes(_loss, 3) == [True] * 3


def _ask_until_it_shows(engine: Any) -> None:
    for _ in range(3):
        engine.topk(hidden(), 3)


HALF_AN_HOUR = 1800  # seconds: what the program's own group would have waited for


def _killed(rank: int) -> Any:
    engine = distributed.compile(distributed.slice_of(layer()), method="codes", timeout=5)
    engine.topk(hidden(), 3)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(PeerError, match=r"a process has died or hangs .*; restart the group"):
        _ask_until_it_shows(engine)
    return time.monotonic() - start


def test_a_killed_process_is_an_error_on_the_others() -> None:
    found = in_processes(_killed, 3)
    assert found[1] is None
    assert all(seconds < HALF_AN_HOUR / 20 for seconds in (found[0], found[2]))


def _hangs(rank: int) -> Any:
    engine = distributed.compile(distributed.slice_of(layer()), method="codes", timeout=2)
    if rank == 1:
        time.sleep(4)
        return None
    start = time.monotonic()
    with pytest.raises(PeerError, match="timeout 2 s"):
        engine.topk(hidden(), 3)
    return time.monotonic() - start


def test_a_hanging_process_is_an_error_after_the_timeout() -> None:
    found = in_processes(_hangs, 2)
    assert 1.5 < found[0] < HALF_AN_HOUR / 20


def _refused(work: Callable[[], Any], seconds: int) -> float:
    """Seconds until the PeerError."""
    start = time.monotonic()
    with pytest.raises(PeerError, match=rf"timeout {seconds} s.*a process has died or hangs"):
        work()
    return time.monotonic() - start


def _sits(rank: int, connected: bool) -> Any:
    """Rank 1 waits in a collective of the program's own, before the engine is there or after."""
    engine = hl.compile(distributed.slice_of(layer()), "codes")
    many = distributed.connect(engine, timeout=6) if connected else None  # long enough to meet on a busy machine
    waited = None
    if rank == 0 and many is None:
        waited = _refused(lambda: distributed.connect(engine, timeout=1), 1)
    elif rank == 0 and many is not None:
        waited = _refused(lambda: many.topk(hidden(), 3), 6)
    dist.barrier()  # the program's own group is as good as before
    return waited


@pytest.mark.parametrize("connected", [False, True])
def test_the_timeout_holds_while_a_process_sits_in_another_collective(connected: bool) -> None:
    waited = in_processes(_sits, 2, connected)[0]
    assert 0.5 < waited < HALF_AN_HOUR / 20


LEAVES = """
import sys, time
import numpy as np, torch.distributed as dist, headlong as hl
from headlong.integrations import distributed
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
engine = distributed.compile(distributed.slice_of(hl.Layer(np.eye(8, dtype=np.float32))), timeout=1)
if rank == 1:
    time.sleep(300)
engine.topk(np.ones((1, 8)), 3)
"""


def test_a_process_that_raised_can_end(tmp_path: Path) -> None:
    """No thread of the engine's group keeps the interpreter waiting for a process that hangs."""
    command = [sys.executable, "-W", "ignore", "-c", LEAVES]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        _, said = ranks[0].communicate(timeout=240)
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert ranks[0].returncode == 1 and "PeerError: rank 0 of 2 got no answer" in said


def _different(rank: int) -> Any:
    engine = distributed.compile(distributed.slice_of(layer()), method="codes", timeout=60)
    rows = hidden()
    asked: list[Callable[[], Any]] = [
        lambda: engine.topk(rows, 3 + rank),
        lambda: engine.topk(rows, 3) if rank else engine.lse(rows),
        lambda: engine.topk(rows + np.float32(rank * 1e-3), 3),
        lambda: engine.topk(rows, 3, eps=0.1 + rank),
        lambda: engine.topk(rows, 3, allowed=[1, 2, 3 + rank]),
        lambda: engine.log_prob(rows, np.full((BATCH, 1), rank)),
        lambda: engine.sample(rows, seed=rank),
        lambda: engine.sample(rows, seed=rank, top_p=0.9),
        lambda: engine.sample(rows, seed=1, top_k=2 + rank),
        lambda: engine.sample(rows, seed=1, temperature=1 + rank),
    ]
    for ask in asked:
        with pytest.raises(PeerError, match="made different calls"):
            ask()
    return engine.topk(rows, 3).ids[0, 0]


def test_different_questions_are_noticed() -> None:
    assert len(set(in_processes(_different, 2))) == 1


def _few(rank: int) -> Any:
    whole = hl.Layer(np.eye(4, 8, dtype=np.float32))
    with pytest.raises(OptionError, match="2 classes are too few for 3 processes"):
        distributed.slice_of(hl.Layer(np.eye(2, 8, dtype=np.float32)))
    with pytest.raises(OptionError, match="2 classes are too few for 3 processes"):
        ShardedHead(8, 2)
    engine = distributed.compile(distributed.slice_of(whole), timeout=60)
    ids = engine.topk(np.eye(4, 8), 1).ids[:, 0].tolist()
    with pytest.raises(InputError, match="differ in dim, link, method or promise"):
        distributed.compile(distributed.slice_of(whole), timeout=60, eps=0.01 * (rank + 1))
    return ids


def test_few_classes_go_round_or_are_refused_everywhere() -> None:
    assert in_processes(_few, 3) == [[0, 1, 2, 3]] * 3


def test_a_group_comes_first() -> None:
    for call in (distributed.slice_of, distributed.compile):
        with pytest.raises(InputError, match=r"call torch.distributed.init_process_group first"):
            call(layer())
