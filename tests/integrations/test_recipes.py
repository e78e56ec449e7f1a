"""The examples, each on small data, and the page on checkpoints; Ray's and Spark's are in test_offline.py."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import headlong as hl
from children import script

ROOT = Path(__file__).resolve().parents[2]
TEXT = "w3 w7 w11 w2 w9 w4 w1"


def example(name: str) -> ModuleType:
    return script(f"examples/{name}.py")


def words() -> Any:
    vocab = {"?": 0, "<end>": 1, **{f"w{number}": number + 2 for number in range(298)}}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="?", pad_token="<end>")


def model(width: int = 16, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 300, "n_positions": 128, "n_embd": width, "n_layer": 1, "n_head": 1}
    made = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=None, pad_token_id=1, tie_word_embeddings=False))
    made.lm_head.weight.data.mul_(8)  # a trained layer is not flat
    return made.eval()


def test_a_recommender_leaves_out_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("recommender").main(users=150, items=600, each=12, dim=8)
    assert found > 5 * 10 / 600  # much better than chance
    assert "proved" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:NearestCentroid computes its probabilities")  # the example takes the labels alone
def test_texts_get_their_labels(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("label_texts").main(labels=300, each=3, asked=64) > 0.9
    assert "300 labels" in capsys.readouterr().out


def test_outliers_have_low_densities(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("kernel_density").main(points=2000, dim=4, asked=50) > 0.5
    assert "within 0.0" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["full", "codes"])
@pytest.mark.parametrize(("dim", "bandwidth"), [(1, 0.1), (3, 0.7), (16, 1.5)])
def test_a_density_is_the_mean_of_kernels(rng: np.random.Generator, method: str, dim: int, bandwidth: float) -> None:
    density, (points, queries) = example("kernel_density"), (rng.standard_normal((n, dim)) for n in (700, 9))
    layer = density.gaussian_kernel(points, bandwidth)
    found = hl.compile(layer, method=method, eps=0.01, delta=0.0).lse(queries)
    distance = ((queries[:, None] - points) ** 2).sum(axis=2)
    kernels = np.exp(-distance / (2 * bandwidth**2)) / (2 * math.pi * bandwidth**2) ** (dim / 2)
    error = np.abs(density.log_density(found.lse, queries, 700, bandwidth) - np.log(kernels.mean(axis=1)))
    assert (error <= found.error + density.storage_error(layer, queries) + 1e-12).all()
    assert (found.error <= 0.01).all()


def test_perplexity_is_the_models_own() -> None:
    net, tokenizer = model(), words()
    texts = [TEXT, "w5 w6 w7 " * 30]
    losses, count = 0.0, 0
    for text in texts:
        for ids in torch.split(tokenizer(text, return_tensors="pt").input_ids, 40, dim=1):
            losses += float(net.double()(ids, labels=ids).loss.detach()) * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    low, high, tokens = example("perplexity").perplexity(net.float(), tokenizer, texts, length=40)
    assert tokens == count and low - 1e-3 <= np.exp(losses / count) <= high + 1e-3
    assert high / low < 1.03
    assert type(net.lm_head) is torch.nn.Linear  # restored


def test_a_draft_with_an_accelerated_head_is_accepted_as_often() -> None:
    speculative, tokenizer = example("speculative_decoding"), words()
    target = model(32)
    draft = model(32)  # the target's twin, slightly off: some drafts are accepted, some are not
    with torch.no_grad():
        for part in draft.parameters():
            part.add_(0.01 * torch.randn_like(part))
    found = speculative.compare(target, draft, tokenizer(TEXT, return_tensors="pt"), tokens=24)
    plain, fast = found["plain"], found["accelerated"]
    assert torch.equal(plain["text"], fast["text"]) and torch.equal(plain["alone"], fast["alone"])
    assert plain["target calls"] == fast["target calls"] < 24  # some were accepted, and as many
    assert "the same tokens: True" in speculative.report(found)


def test_the_next_word_server_streams() -> None:
    net, tokenizer = model(), words()
    plain = copy.deepcopy(net)
    inputs = tokenizer(TEXT, return_tensors="pt")
    expected = tokenizer.decode(net.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs.input_ids.shape[1] :])
    with torch.no_grad():
        probabilities = net(**inputs).logits[0, -1].softmax(0)
    module = example("next_word_server")
    serving = module.server(module.NextWords(net, tokenizer), port=0)
    Thread(target=serving.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{serving.server_address[1]}"
    try:
        with urlopen(f"{at}/next?text={quote(TEXT)}&k=3", timeout=30) as answer:
            found = json.load(answer)
        best = probabilities.topk(3)
        assert found["words"] == [tokenizer.decode([int(one)]) for one in best.indices] and found["proved"]
        np.testing.assert_allclose(found["probabilities"], best.values, rtol=0.011)
        with urlopen(f"{at}/complete?text={quote(TEXT)}&tokens=12&k=3", timeout=30) as answer:
            made = json.load(answer)
        assert made["text"] == expected and len(made["tokens"]) == len(made["logprobs"]) == len(made["top_logprobs"])
        ids = tokenizer.convert_tokens_to_ids(made["tokens"])
        with torch.no_grad():
            whole = torch.cat([inputs.input_ids, torch.tensor([ids])], dim=1)
            dense = plain(whole[:, :-1]).logits[0, inputs.input_ids.shape[1] - 1 :].log_softmax(-1)
        exact = dense.gather(1, torch.tensor(ids)[:, None])[:, 0]
        np.testing.assert_allclose(made["logprobs"], exact, atol=made["within"] + 1e-4)
        for row, one in zip(dense, made["top_logprobs"], strict=True):
            assert tokenizer.convert_tokens_to_ids(list(one)) == row.topk(3).indices.tolist()
        for _ in range(2):  # and again: nothing is left locked
            with urlopen(f"{at}/stream?text={quote(TEXT)}&tokens=12", timeout=30) as answer:
                assert answer.read().decode().split() == expected.split()
        for wrong, status in (("/next", 400), ("/next?text=a&k=x", 400), ("/other?text=a", 404)):
            with pytest.raises(HTTPError) as refused:
                urlopen(at + wrong, timeout=30)
            assert refused.value.code == status
            refused.value.close()
    finally:
        serving.shutdown()
        serving.server_close()


def test_the_page_on_checkpoints_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_gguf import gguf_file

    monkeypatch.chdir(tmp_path)
    net, tokenizer = model(), words()
    gguf_file(Path("model.gguf"), "gpt2", {"output.weight": net.lm_head.weight.detach().numpy().astype(np.float16)})
    names: dict[str, Any] = {"model": net, "tokenizer": tokenizer, "texts": [TEXT, "w1 w2"], "np": np, "torch": torch}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "checkpoints.md", "exec"), names)  # noqa: S102
    hidden = np.load("hidden.npy")
    assert hidden.shape == (9, 16)
    with torch.no_grad():
        scores = net(**tokenizer(TEXT, return_tensors="pt")).logits[0]
    assert (names["engine"].topk(hidden[:7], 1).ids[:, 0] == scores.argmax(1).numpy()).all()


@pytest.mark.parametrize("client", ["langchain", "sentence_transformers", "datasets"])
def test_faiss_clients_find_the_best_documents(client: str) -> None:
    """In a process of its own: the clients warn, and each has its own idea of threads."""
    if not all(map(importlib.util.find_spec, ("faiss", "langchain_community" if client == "langchain" else client))):
        pytest.skip(f"faiss or {client} is not installed")
    command = [sys.executable, str(ROOT / "examples/document_search.py"), client]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "the 5 best of 3,000 documents" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("client", "needs"), [("lm_eval", "lm_eval"), ("trl", "trl peft"), ("serve", "fastapi uvicorn openai")]
)
def test_clients_of_generate_answer_from_candidates(client: str, needs: str) -> None:
    """In a process of its own, as above; the example itself compares the answers and looks which way they came."""
    missing = [name for name in needs.split() if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed; examples/generate_clients.py says how")
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples/generate_clients.py"), client]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=offline)
    assert done.returncode == 0 and f"{client}: 4 answers, the same" in done.stdout, done.stderr
