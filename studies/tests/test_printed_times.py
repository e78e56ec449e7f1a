"""The layers that are timed have the printed sizes, and every method answers for its own layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headlong.structured import ExpertsLayer
from studies.papers.cells import account
from studies.papers.doubly_sparse import times
from studies.papers.doubly_sparse.printed import NAMES

pytest.importorskip("torch")


def by_expert(layer: ExpertsLayer, hidden: np.ndarray) -> np.ndarray:
    """``[batch, vocab]``: the logits of the expert whose gate is the largest, -inf for the classes that it does not have."""
    gates = hidden @ layer.gate.astype(np.float64).T
    share = np.exp(gates - gates.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    found = np.full((len(hidden), layer.vocab), -np.inf)
    for row, expert in enumerate(gates.argmax(1)):
        part = layer.part(int(expert))
        found[row, layer.ids[part]] = share[row, expert] * (layer.weight[part].astype(np.float64) @ hidden[row])
    return found


def test_every_method_answers_for_its_layer(rng: np.random.Generator) -> None:
    made = times.Shape(96, 32, 12)
    hidden = rng.standard_normal((8, made.dim)).astype(np.float32)
    again = np.random.default_rng(0)
    layer = times.flat(made, again)
    weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
    cut = weight.copy()
    cut[24:48, 16:] = 0
    cut[48:, 8:] = 0
    wanted = {
        "full": hidden @ weight.T + bias,
        "full, here": hidden @ weight.T + bias,
        "d-softmax": hidden @ cut.T + bias,
        "ds-64": by_expert(times.experts(made, again), hidden.astype(np.float64)),
    }
    found = {one.name: one for one in times.contestants(made, 1)}
    assert set(found) == {"svd-10", *wanted}
    for name, z in wanted.items():
        one = found[name]
        answer = one.answer(one.call(one.prepare(hidden)))
        np.testing.assert_array_equal(answer.ids, np.argsort(-z, axis=1, kind="stable")[:, : times.K], err_msg=name)


def test_a_cell_compares_ratios(tmp_path: Path) -> None:
    quartiles = {
        "full": [1, 2, 3], "full, here": [0, 1, 2], "svd-10": [0.4, 0.5, 9], "d-softmax": [1, 1, 1], "ds-64": [0, 0.1, 1]
    }  # fmt: skip
    run = {"task": "ptb", "milliseconds": quartiles}
    (tmp_path / "liao2019.times.json").write_text(json.dumps({"runs": [run]}))
    cells = {cell.what.split(" (")[0]: cell for cell in account("liao2019", tmp_path)}
    assert (cells["PTB, svd-10, ms"].ours, cells["PTB, svd-10, ms"].status) == ("0.500", "stand-in")
    said = "4.0 times as fast as PyTorch's full softmax, 2.0 as our own; printed 4.1"
    assert cells["PTB, svd-10, ms"].note.startswith(said)
    assert {cells[f"{NAMES[task]}, full, ms"].status for task in ("wikitext2", "characters")} == {"not run"}
