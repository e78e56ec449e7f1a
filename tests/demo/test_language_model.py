"""``headlong demo --model``: both heads pick the tokens of greedy decoding, on a tiny model and on SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headlong.bench.real_layers import smollm2_file
from headlong.cli.main import app
from headlong.errors import HeadlongError
from tiny_model import tiny_model

pytest.importorskip("transformers", reason="transformers is an extra")

from headlong.demo import language_model as demo


def test_both_continue_as_greedy_decoding_does(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tiny_model(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[2, 7, 9]])
    steps = list(demo.continued(model, demo.heads(model, 1), ids, 5))
    expected = model.generate(ids, do_sample=False, max_new_tokens=5, min_new_tokens=5, pad_token_id=1)[0, 3:].tolist()
    assert [[pair[who].token for pair in steps] for who in ("stock", "headlong")] == [expected] * 2
    assert demo.summary(steps).caption == "100% of the tokens are the same."
    assert [row[0] for row in demo.summary(steps).rows] == ["stock", "headlong"]


def test_tokens_that_differ_are_counted() -> None:
    step = demo.Step(3, 0.01, 0.002)
    steps = [{"stock": step, "headlong": step}, {"stock": step, "headlong": step._replace(token=4, head=0.001)}]
    found = demo.summary(steps)
    assert found.caption == "50.0% of the tokens are the same." and found.rows == (
        ("stock", "12.0", "2.00"), ("headlong", "11.0", "1.00"),
    )  # fmt: skip
    assert demo.line(1, ["'a'", "'b'"], steps[1]).count("ms, head") == 2


def test_smollm2_continues_a_sentence() -> None:
    for name in ("gguf", "accelerate"):
        pytest.importorskip(name, reason=f"transformers reads GGUF files with {name}")
    try:
        smollm2_file()
    except HeadlongError as error:
        pytest.skip(str(error))
    done = CliRunner().invoke(app, ["demo", "--model", "--quick", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    steps = json.loads(done.stdout)["steps"]
    assert len(steps) == 6 and all(pair["stock"]["token"] == pair["headlong"]["token"] for pair in steps)
    assert len({pair["stock"]["token"] for pair in steps}) > 3
