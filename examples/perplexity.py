"""The perplexity of a Hugging Face model over a corpus, as an interval, without [positions, vocab] scores.

python examples/perplexity.py path/to/model corpus.txt
"""

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from headlong.integrations.transformers import accelerate, restore


def perplexity(model: Any, tokenizer: Any, texts: Iterable[str], length: int = 512) -> tuple[float, float, int]:
    """``(lower, upper, tokens)``: exp of the mean of -log p of every token but the first of each piece."""
    head = accelerate(model, eps=0.01, delta=0.0)  # delta 0: the interval holds for certain
    total = off = 0.0
    count = 0
    try:
        for text in texts:
            for ids in torch.split(tokenizer(text, return_tensors="pt").input_ids[0], length):
                if len(ids) < 2:
                    continue
                with torch.no_grad(), head.taking() as taken:  # the model runs; its head keeps what it was given
                    model(input_ids=ids[None])
                answer = head.engine.log_prob(taken.hidden[0, :-1], ids[1:, None])
                total -= float(answer.log_probs.sum())
                off += float(answer.error.sum())
                count += len(ids) - 1
    finally:
        restore(model)
    return math.exp((total - off) / count), math.exp((total + off) / count), count


def main(folder: str, corpus: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = [part for part in Path(corpus).read_text(encoding="utf-8").split("\n\n") if part.strip()]
    low, high, count = perplexity(model, tokenizer, texts)
    print(f"perplexity {low:.3f} to {high:.3f} over {count:,} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:3])
