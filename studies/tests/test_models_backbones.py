"""The backbones: what they may look at, what they carry on, and their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headlong.heads import DenseHead
from studies.models.backbones.base import Backbone, Batch, Model
from studies.models.backbones.lstm import Lstm, LstmOptions
from studies.models.backbones.seq2seq import Seq2Seq, Seq2SeqOptions

VOCAB = 23


def language_models() -> dict[str, Backbone]:
    torch.manual_seed(1)
    return {"lstm": Lstm(LstmOptions(8, 2, 0.3), VOCAB), "lstm, one layer": Lstm(LstmOptions(8, 1, 0.3, tied=False), VOCAB)}


NAMES = sorted(language_models())


def words(time: int, batch: int = 3) -> Tensor:
    return torch.randint(VOCAB, (time, batch), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_for_each_word_in_the_order_of_the_targets(name: str) -> None:
    backbone, ids = language_models()[name].eval(), words(10)
    hidden = backbone((ids,)).hidden
    assert hidden.shape == (30, 8) == (30, backbone.dim)
    alone = backbone((ids[:, 1:2],)).hidden
    torch.testing.assert_close(hidden.view(10, 3, 8)[:, 1], alone)


@pytest.mark.parametrize("name", NAMES)
def test_two_windows_are_one_long_one(name: str) -> None:
    backbone, ids = language_models()[name].eval(), words(10)
    whole = backbone((ids,)).hidden
    first = backbone((ids[:4],))
    second = backbone((ids[4:],), first.state)
    torch.testing.assert_close(torch.cat([first.hidden, second.hidden]), whole)


@pytest.mark.parametrize("name", NAMES)
def test_tied_or_not_every_parameter_learns(name: str) -> None:
    backbone = language_models()[name].train()
    model = Model(backbone, DenseHead(8, VOCAB, backbone.tied()))
    loss, _, state = model(Batch((words(10),), words(10).flatten()))
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
    assert not any(part.requires_grad for part in state)
    assert (backbone.tied() is None) == (name == "lstm, one layer")


def translator() -> Seq2Seq:
    torch.manual_seed(1)
    return Seq2Seq(Seq2SeqOptions(8, 2, 0.0), VOCAB, VOCAB).eval()


def test_translation_word_by_word_is_what_training_sees() -> None:
    model, source = translator(), words(6)
    head = DenseHead(8, VOCAB, model.tied())
    found = model.translate(source, head.predict, 1, 2, 7)
    for column, ids in enumerate(found):
        before = torch.tensor([1, *ids])[:, None]
        hidden = model((source[:, column : column + 1], before, torch.ones_like(before, dtype=torch.bool))).hidden
        assert head.predict(hidden)[: len(ids)].tolist() == ids
        assert 2 not in ids and len(ids) <= 7


def test_padding_of_the_target_never_reaches_the_head() -> None:
    model, source, before = translator(), words(6), words(5)
    real = torch.ones(5, 3, dtype=torch.bool)
    real[3:, 1] = False
    hidden = model((source, before, real)).hidden
    assert hidden.shape == (13, 8)
    changed = before.clone()
    changed[3:, 1] = 0
    torch.testing.assert_close(model((source, changed, real)).hidden, hidden)
