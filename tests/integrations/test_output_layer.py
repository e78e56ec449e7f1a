"""An output layer for any torch model: nn.Linear to whoever trains it, an engine to whoever asks."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headlong
from children import in_processes
from headlong.errors import DtypeError, InputError, OptionError
from headlong.heads import HEADS, BandsHead, DenseHead, DifferentiatedHead, build_head
from headlong.torch import AdaptiveLogSoftmaxWithLoss, OutputLayer

DIM, VOCAB = 24, 900


def linear(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(DIM, VOCAB, bias)


def hidden(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(2)) * 4


@pytest.mark.parametrize("bias", [True, False])
def test_the_four_questions_are_those_of_the_dense_layer(bias: bool) -> None:
    plain, x = linear(bias), hidden()
    layer = OutputLayer.of(plain, delta=0.0)
    log_probs = plain(x).detach().double().log_softmax(-1)
    top = layer.topk(x, k=7)
    assert torch.equal(top.ids, log_probs.topk(7).indices) and top.proved.all()
    assert (top.log_probs - log_probs.gather(1, top.ids)).abs().max() < 0.0101
    assert (layer.lse(x).lse - plain(x).double().logsumexp(-1)).abs().max() < 0.0101
    ids = torch.arange(10).reshape(5, 2)
    assert (layer.log_prob(x, ids).log_probs - log_probs.gather(1, ids)).abs().max() < 0.0101
    assert torch.equal(layer.sample(x, 3, seed=4).ids, headlong.compile(plain, delta=0.0).sample(x, 3, seed=4).ids)


def test_it_is_an_nn_linear_in_training_and_in_files(tmp_path: Path) -> None:
    plain = linear()
    layer = OutputLayer.of(plain)
    assert layer.weight is plain.weight and torch.equal(layer(hidden()), plain(hidden()))
    layer.topk(hidden())
    assert set(layer.state_dict()) == set(plain.state_dict())
    nn.Linear(DIM, VOCAB).load_state_dict(layer.state_dict())
    other = OutputLayer(DIM, VOCAB)
    other.topk(hidden())
    other.load_state_dict(plain.state_dict())
    with pytest.raises(InputError, match=r"call refresh\(\)"):
        other.topk(hidden())
    assert torch.equal(other.refresh().topk(hidden()).ids, layer.topk(hidden()).ids)


@pytest.mark.parametrize("fused", [False, True])
def test_an_old_engine_is_never_asked(fused: bool) -> None:
    layer, x = OutputLayer.of(linear(), method="codes"), hidden()
    layer.eval().topk(x)
    layer.train()
    optimiser = torch.optim.AdamW(layer.parameters(), 0.1, fused=fused)
    nn.functional.cross_entropy(layer(x), torch.arange(5)).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    layer.eval()
    for _ in range(2):
        with pytest.raises(InputError, match="have changed since the engine was made"):
            layer.topk(x)
    assert torch.equal(layer.refresh().topk(x, k=3).ids, layer(x).topk(3).indices)


def test_copies_pickles_and_files_carry_no_engine() -> None:
    layer, x = OutputLayer.of(linear(), link=headlong.SoftCap(20.0), delta=0.0), hidden()
    expected = layer.topk(x)
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    for made in (copy.deepcopy(layer), torch.load(stored, weights_only=False)):
        assert "no engine yet" in repr(made)
        assert torch.equal(made.topk(x).ids, expected.ids) and torch.equal(made.topk(x).lse, expected.lse)
        assert made.weight.data_ptr() != layer.weight.data_ptr()


def test_compiled_it_is_one_graph_and_a_question_one_break() -> None:
    layer, x = OutputLayer.of(linear()), hidden()
    layer.topk(x)
    torch._dynamo.reset()
    found = torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found, layer(x))

    def ids(x: torch.Tensor) -> torch.Tensor:
        return torch.add(layer.topk(x * 2).ids, 1)

    assert torch._dynamo.explain(ids)(x).graph_break_count == 1


def _trained(rank: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    layer = OutputLayer.of(linear())
    spread = DistributedDataParallel(layer)
    optimiser = torch.optim.SGD(spread.parameters(), 0.5)
    x = torch.randn(6, DIM, generator=torch.Generator().manual_seed(rank))
    nn.functional.cross_entropy(spread(x), torch.arange(6)).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    top = layer.eval().refresh().topk(hidden())
    return top.ids.tolist(), layer(hidden()).topk(10).indices.tolist()


@pytest.mark.exhaustive
def test_it_lives_under_distributed_data_parallel() -> None:
    first, second = in_processes(_trained, 2)
    assert first[0] == first[1] == second[0] == second[1]


def _sharded(rank: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layer, plain = OutputLayer.of(linear()), linear()
    spread: Any = fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    x, target = hidden(6), torch.arange(6)
    for net in (spread, plain):
        optimiser = torch.optim.SGD(net.parameters(), 0.5)
        nn.functional.cross_entropy(net(x), target).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert spread.weight.to_local().shape[0] == VOCAB // 2
    top = spread.eval().topk(hidden())
    with torch.no_grad():
        spread.weight.mul_(2)
    with pytest.raises(InputError, match="call refresh"):
        spread.topk(hidden())
    twice, expected = spread.refresh().topk(hidden()), plain(hidden()).topk(10).indices
    return (
        torch.allclose(spread.weight.full_tensor(), 2 * plain.weight), torch.equal(top.ids, expected),
        torch.equal(twice.ids[:, 0], expected[:, 0]),
    )  # fmt: skip


def test_it_lives_where_parameters_are_spread_over_processes() -> None:
    assert in_processes(_sharded, 2) == [(True, True, True)] * 2


def test_a_linear_is_a_layer() -> None:
    plain, x = linear(), hidden()
    layer = headlong.Layer(plain)
    assert layer.vocab == VOCAB and layer.weight.ctypes.data == plain.weight.data_ptr()
    assert torch.equal(headlong.compile(plain).topk(x, k=4).ids, plain(x).topk(4).indices)
    assert torch.equal(headlong.compile(layer).topk(x, k=4).ids, plain(x).topk(4).indices)
    with pytest.raises(OptionError, match="has its own"):
        headlong.Layer(plain, plain.bias)
    with pytest.raises(InputError, match="expected torch.nn.Linear"):
        OutputLayer.of(nn.ReLU())  # type: ignore[arg-type]


class Normed(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return nn.functional.linear(input, nn.functional.normalize(self.weight), self.bias)


def test_a_linear_that_computes_something_else_is_refused() -> None:
    hooked = linear()
    hooked.register_forward_hook(lambda module, given, scores: 2 * scores)
    for one, said in ((Normed(DIM, VOCAB), "Normed has a forward of its own"), (hooked, "Linear has hooks")):
        for take in (headlong.Layer, headlong.compile, OutputLayer.of):
            with pytest.raises(InputError, match=said):
                take(one)
    normed = torch.nn.utils.parametrizations.weight_norm(linear())
    assert torch.equal(headlong.compile(normed).topk(hidden(), k=4).ids, normed(hidden()).topk(4).indices)
    with pytest.raises(InputError, match="its weight a parameter"):
        OutputLayer.of(normed)


@pytest.mark.parametrize("options", [{}, {"head_bias": True}, {"div_value": 2.0}])
def test_torchs_adaptive_softmax_is_the_same_model(options: Any) -> None:
    torch.manual_seed(1)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [50, 300], **options)
    ours = AdaptiveLogSoftmaxWithLoss.of(theirs)
    x, target = hidden(20), torch.randint(VOCAB, (20,))
    output, loss = ours(x, target)
    expected = theirs(x, target)
    torch.testing.assert_close(output, expected.output)
    torch.testing.assert_close(loss, expected.loss)
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x))
    assert torch.equal(ours.predict(x), theirs.predict(x))
    top = ours.topk(x, k=3)
    assert torch.equal(top.ids, theirs.log_prob(x).topk(3).indices) and top.proved.all()
    loss.backward()
    torch.optim.SGD(ours.parameters(), 1.0).step()
    with pytest.raises(InputError, match=r"call refresh\(\)"):
        ours.topk(x)
    assert torch.equal(ours.refresh().topk(x, k=3).ids, ours.log_prob(x).topk(3).indices)


def test_adaptive_softmax_is_made_as_torchs_is() -> None:
    ours, theirs = (
        kind(DIM, VOCAB, [50, 300], div_value=3.0, head_bias=True)
        for kind in (AdaptiveLogSoftmaxWithLoss, nn.AdaptiveLogSoftmaxWithLoss)
    )
    assert isinstance(ours, nn.AdaptiveLogSoftmaxWithLoss)
    assert {name: part.shape for name, part in ours.state_dict().items()} == {
        name: part.shape for name, part in theirs.state_dict().items()
    }
    ours.load_state_dict(theirs.state_dict())
    x = hidden(9)
    assert torch.equal(ours.log_prob(x), theirs.log_prob(x))
    for name in ("in_features", "n_classes", "cutoffs", "div_value", "head_bias", "shortlist_size", "n_clusters", "head_size"):
        assert getattr(ours, name) == getattr(theirs, name)
    one = ours(x[0], torch.tensor(7))
    assert one.output.shape == () and torch.equal(one.loss, theirs(x[0], torch.tensor(7)).loss)
    for other in (nn.Linear(DIM, VOCAB), Doubled(DIM, VOCAB, [50, 300])):
        with pytest.raises(InputError, match=r"expected torch.nn.AdaptiveLogSoftmaxWithLoss"):
            AdaptiveLogSoftmaxWithLoss.of(other)  # type: ignore[arg-type]


class Doubled(nn.AdaptiveLogSoftmaxWithLoss):
    def forward(self, input_: torch.Tensor, target_: torch.Tensor) -> Any:
        return super().forward(2 * input_, target_)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch's, of a band that reads nothing
def test_a_band_that_reads_nothing_is_uniform_as_torchs_is() -> None:
    theirs = nn.AdaptiveLogSoftmaxWithLoss(8, 60, [5, 10, 20])
    assert [len(project.weight) for project, _ in theirs.tail] == [2, 0, 0]
    ours, x = AdaptiveLogSoftmaxWithLoss.of(theirs), torch.randn(7, 8)
    assert torch.equal(ours.log_prob(x), theirs.log_prob(x))
    top = ours.topk(x, 60)
    expected = torch.sort(theirs.log_prob(x), descending=True, stable=True)
    torch.testing.assert_close(top.log_probs, expected.values, atol=0.011, rtol=0)
    assert torch.equal(top.ids, expected.indices)


@pytest.mark.parametrize("kind", [AdaptiveLogSoftmaxWithLoss, nn.AdaptiveLogSoftmaxWithLoss])
def test_adaptive_softmax_refuses_what_torchs_refuses(kind: Any) -> None:
    """As torch's own tests ask of it."""
    for cutoffs in ([5, 15, 15], [15, 5, 10], [5, 10, 25], [5, 10, 20], [-5, 10], [5.5, 10]):
        with pytest.raises(ValueError, match="cutoffs should be a sequence of unique"):
            kind(16, 20, cutoffs, div_value=2.0)
    with pytest.raises(ValueError, match="length larger than 0"):
        kind(16, 20, [])
    layer = kind(16, 20, [5, 10, 15], div_value=2.0)
    assert (layer.head.weight.shape, layer.tail[1][1].weight.shape) == ((8, 16), (5, 4))
    for x, target, said in (
        (torch.randn(3, 16), torch.tensor([0, 5]), "same size in the batch dimension"),
        (torch.randn(2, 2, 16), torch.tensor([0, 5]), "1D target tensor expects 2D input"),
        (torch.randn(2, 16), torch.tensor(1), "0D target tensor expects 1D input"),
        (torch.randn(2, 16), torch.zeros(2, 2).long(), "0D or 1D target tensor expected"),
        (torch.randn(2, 16), torch.tensor([0, 20]), "Target values should be in"),
    ):
        with pytest.raises(RuntimeError, match=said):
            layer(x, target)


@pytest.mark.parametrize("kind", [AdaptiveLogSoftmaxWithLoss, nn.AdaptiveLogSoftmaxWithLoss])
def test_adaptive_softmax_computes_what_torchs_tests_ask(kind: Any) -> None:
    torch.manual_seed(2)
    layer, x = kind(8, 10, [4, 8], div_value=2.0, head_bias=True, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    every = layer.log_prob(x)
    torch.testing.assert_close(every.exp().sum(1), torch.ones(6, dtype=torch.float64))
    for label in range(10):
        output, loss = layer(x, torch.full((6,), label))
        torch.testing.assert_close(output, every[:, label])
        torch.testing.assert_close(loss, -every[:, label].mean())
        torch.testing.assert_close(layer(x[2], torch.tensor(label)).output, every[2, label])
    target = torch.tensor([0, 9, 5, 3, 8, 4])
    of = (x.clone().requires_grad_(), *layer.parameters())
    assert torch.autograd.gradcheck(lambda given, *_: layer(given, target).loss, of)
    for pushed in (0.0, 9.0, -9.0):  # the likeliest is in a band for some rows, for all, for none
        with torch.no_grad():
            layer.head.bias[4:] = pushed
        assert torch.equal(layer.predict(x), layer.log_prob(x).argmax(1))
    again = pickle.loads(pickle.dumps(layer))  # noqa: S301
    assert torch.equal(again.log_prob(x), layer.log_prob(x))
    if kind is AdaptiveLogSoftmaxWithLoss:
        single, given = again.float(), x.float()
        assert torch.equal(single.topk(given, 10).ids, torch.sort(single.log_prob(given), descending=True).indices)


def test_adaptive_softmax_takes_other_integers_and_autocast() -> None:
    ours, x = AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [50, 300]), hidden(9)
    target = torch.arange(9) * 40
    expected = ours(x, target).loss
    assert torch.equal(ours(x, target.int()).loss, expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours(x, target).loss, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_of_16_bits_are_asked(dtype: torch.dtype) -> None:
    adaptive = AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [50, 300], dtype=dtype)
    x = hidden(9).to(dtype)
    wide = nn.AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [50, 300])
    wide.load_state_dict({name: part.float() for name, part in adaptive.state_dict().items()})
    assert torch.equal(adaptive.topk(x, 2).ids, wide.log_prob(x.float()).topk(2).indices)
    for head in (BandsHead(DIM, VOCAB), DifferentiatedHead(DIM, VOCAB, columns="project")):
        head = head.to(dtype)
        ids = headlong.compile(head.to_layer()).topk(x.float(), 1).ids[:, 0]
        assert torch.equal(ids, head.float().predict(x.float()))


def test_arrays_are_asked_and_never_a_foreign_traceback() -> None:
    layer, x = OutputLayer(DIM, VOCAB), hidden(3)
    for one in (layer, AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [50, 300])):
        found = one.topk(x.numpy(), 2)
        assert isinstance(found.ids, np.ndarray) and (found.ids == one.topk(x, 2).ids.numpy()).all()
    head = DenseHead(DIM, VOCAB)
    with pytest.raises(DtypeError, match=r"hidden is an ndarray; expected a torch tensor: pass torch.as_tensor\(hidden\)"):
        head(x.numpy())
    for wrong, said in (
        (x.numpy(), r"hidden is an ndarray; expected a dense torch tensor"),
        (x.to_sparse(), r"hidden is torch.sparse_coo; expected a dense torch tensor"),
        (x[0], rf"hidden has shape \[{DIM}\]; expected \[N, {DIM}\]"),
        (torch.zeros(3, DIM + 1), "hidden has shape"),
    ):
        for kind in HEADS:
            one = build_head(kind, DIM, VOCAB)
            for ask in (one.log_prob, one.predict):
                with pytest.raises(InputError, match=said):
                    ask(wrong)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="class_weight is a list; expected a torch tensor"):
        head(x, torch.tensor([1, 2, 3]), class_weight=[1.0])  # type: ignore[arg-type]
    for counts in (torch.zeros(VOCAB, device="meta"), ["a"] * VOCAB, [[1.0], [1.0, 2.0]]):
        with pytest.raises(InputError, match="counts"):
            BandsHead(DIM, VOCAB, counts=counts)
    with pytest.raises(DtypeError, match="target is a list; expected a torch tensor"):
        head(x, [1, 2, 3])
    with pytest.raises(DtypeError, match="the tied weight is an ndarray; expected the embedding's own nn.Parameter"):
        DenseHead(DIM, VOCAB, np.zeros((VOCAB, DIM), np.float32))
