"""Decoding with transformers, stock beside headlong, on models of the shapes of GPT-2 (small) and Gemma 3 (270m).

    python tools/generate.py check gpt2 --out results/generate-gpt2.json       # tokens, noise, chi-square
    python tools/generate.py time gemma --out results/generate-gemma.json      # seconds, added to the same file

Random weights, float32; the output layer is scaled until next tokens are about as uncertain as a trained model's (the
record says how much), since untrained scores are flat. It is not tied: an untrained tied model repeats its input.
``check``: greedy tokens over 200 prompts, tokens under the same noise, and the frequencies of samples. ``time``: output
layer and sampler per token at top-p 0.95, and whole decode steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from headlong.measure import claim_threads

SPREAD = 6.0
"""Standard deviation of the logits."""
TOP_P = 0.95


def shaped(name: str) -> Any:
    """The model, its output layer scaled so that logits have a standard deviation of SPREAD."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    if name == "gpt2":
        model: Any = GPT2LMHeadModel(GPT2Config(tie_word_embeddings=False))
    else:
        sizes = {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262_144}
        model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, tie_word_embeddings=False))
    model.eval()
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight.mul_(SPREAD / model(torch.arange(100, 140)[None]).logits.double().std().item())
    return model


def prompts(model: Any, count: int, length: int = 12) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randint(10, model.get_output_embeddings().weight.shape[0], (count, length), generator=generator)


def plain(model: Any) -> dict[str, Any]:
    """No early stop: all sequences have the same length."""
    return {"pad_token_id": 0, "eos_token_id": model.get_output_embeddings().weight.shape[0] + 7, "top_k": 0}


def check(model: Any, settings: Any) -> dict[str, Any]:
    import torch

    from headlong.integrations.decoding import headlong_generate
    from headlong.integrations.transformers import accelerate, restore

    asked = prompts(model, settings.prompts)
    greedy = {**plain(model), "max_new_tokens": settings.tokens, "do_sample": False}
    noisy = {**plain(model), "max_new_tokens": 8, "do_sample": True, "top_p": TOP_P}
    blocks = asked.split(100)
    expected = torch.cat([model.generate(block, **greedy) for block in blocks])
    same_noise = model.generate(asked[:8], custom_generate=dense_with_noise(5), **noisy)
    dense = model(asked[:3, :2]).logits[:, -1].double()
    head = accelerate(model, method=settings.method)
    found = torch.cat([model.generate(block, custom_generate=headlong_generate, **greedy) for block in blocks])
    ours = model.generate(asked[:8], custom_generate=headlong_generate, headlong_seed=5, **noisy)
    length = asked.shape[1]
    differ = (found != expected).any(1)
    record = {
        "greedy": {
            "prompts": len(asked), "tokens": settings.tokens, "equal_tokens": int((found == expected)[:, length:].sum()),
            "all_tokens": int(found[:, length:].numel()), "prompts_that_differ": int(differ.sum()),
            "first_gaps": [first_gap(model, expected[row], found[row]) for row in differ.nonzero()[:, 0].tolist()],
        },
        "same_noise": {"tokens": int(ours[:, length:].numel()), "equal": int((ours == same_noise)[:, length:].sum())},
        "chi_square": [frequencies(model, asked[row, :2], dense[row], settings.draws) for row in range(len(dense))],
        "paths": dict(head.paths),
    }  # fmt: skip
    entropy = -(dense.softmax(-1) * dense.log_softmax(-1)).sum(-1)
    sorted_mass = dense.softmax(-1).sort(-1, descending=True).values.cumsum(-1)
    record["next_token"] = {
        "entropy_nats": entropy.mean().item(), "nucleus": ((sorted_mass < TOP_P).sum(-1) + 1).double().mean().item(),
    }  # fmt: skip
    restore(model)
    return record


def first_gap(model: Any, expected: Any, found: Any) -> float:
    """How far apart, in float64, the two tokens' logits are where the sequences part."""
    place = int((expected != found).nonzero()[0, 0])
    head = model.get_output_embeddings()
    with head.taking() as taken:
        model(expected[None, :place])
    hidden = taken.hidden[0, -1].double()
    rows = head.weight[[int(expected[place]), int(found[place])]].double()
    logits = (rows @ hidden).tolist()
    return float(logits[1] - logits[0])


def dense_with_noise(seed: int) -> Any:
    """transformers' loop and processors over all scores, with the noise that headlong draws with."""
    import numpy as np
    import torch
    from transformers import LogitsProcessorList

    from headlong.engines.gumbel import gumbels

    def decode(model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **rest: Any):
        step = iter(range(10**9))

        def noise(ids: Any, scores: Any) -> Any:
            first = next(step) * len(scores)
            classes = np.arange(scores.shape[1], dtype=np.int64)
            return scores.double() + torch.from_numpy(np.stack([gumbels(seed, first + b, 0, classes) for b in range(len(ids))]))

        config = copy.copy(generation_config)
        config.do_sample = False
        return model._sample(  # noqa: SLF001  # transformers' own loop
            input_ids, LogitsProcessorList([*logits_processor, noise]), stopping_criteria, config, **rest
        )

    return decode


def frequencies(model: Any, prompt: Any, logits: Any, draws: int) -> dict[str, Any]:
    """Pearson's statistic of sampled next tokens against the dense law at top-p, classes expected less than five pooled."""
    import torch

    from headlong.integrations.decoding import headlong_generate

    ranked = logits.softmax(-1).sort(descending=True)
    inside = ranked.values.cumsum(-1) - ranked.values < TOP_P
    chances = ranked.values[inside] / ranked.values[inside].sum()
    torch.manual_seed(17)
    options = {**plain(model), "max_new_tokens": 1, "do_sample": True, "top_p": TOP_P}
    block = prompt.repeat(min(draws, 250), 1)
    found = torch.cat(
        [model.generate(block, custom_generate=headlong_generate, **options)[:, -1] for _ in range(-(-draws // len(block)))]
    )
    counts = torch.bincount(found, minlength=len(logits))[ranked.indices[inside]].double()
    expected = chances * len(found)
    large = expected >= 5
    pools = [(counts[large], expected[large])] + [(counts[~large].sum()[None], expected[~large].sum()[None])]
    statistic = sum(float(((c - e) ** 2 / e.clamp(min=1e-9)).sum()) for c, e in pools)
    freedom = int(large.sum())
    deviations = (statistic - freedom) / math.sqrt(2 * max(1, freedom))
    outside = len(found) - int(counts.sum())
    return {"draws": len(found), "statistic": statistic, "freedom": freedom, "deviations": deviations, "outside": outside}


def clock(model: Any, settings: Any) -> dict[str, Any]:
    import torch
    from transformers import TopPLogitsWarper

    from headlong.integrations.decoding import Picker, headlong_generate
    from headlong.integrations.processors import recipe
    from headlong.integrations.transformers import accelerate, restore
    from headlong.measure import Contestant, Schedule, race

    asked = prompts(model, 16)
    head = accelerate(model, method=settings.method)
    with torch.no_grad(), head.taking() as taken:
        model(asked)
    hidden = taken.hidden.reshape(-1, taken.hidden.shape[-1]).contiguous()
    stock, warper = head.replaced, TopPLogitsWarper(TOP_P)

    class Given:
        hidden: Any = None

    picker = Picker(head, Given, recipe([warper], head.out_features), 3)

    def dense(rows: Any) -> Any:
        with torch.no_grad():
            scores = warper(None, stock(rows).float())
            return torch.multinomial(scores.softmax(-1), 1)

    def ours(rows: Any) -> Any:
        with torch.no_grad():
            Given.hidden = rows[:, None]
            return picker(rows[:, :1].long(), rows[:, :1]).argmax(-1)

    def head_alone(rows: Any) -> Any:
        with torch.no_grad():
            return stock(rows).argmax(-1)

    def greedy(rows: Any) -> Any:
        return head.engine.topk(rows, 1, eps=math.inf).ids

    pairs = {"stock, top-p": dense, "headlong, top-p": ours, "stock, greedy": head_alone, "headlong, greedy": greedy}
    record: dict[str, Any] = {"engine": repr(head.engine), "head_and_sampler": [], "decode_steps": []}
    for batch in (1, 8):
        entries = [Contestant(name, call) for name, call in pairs.items()]
        for timing in race(entries, hidden, batch, Schedule(rounds=9, calls=3, settle=1, seconds=settings.seconds)):
            record["head_and_sampler"].append(timing._asdict())
    steps: dict[str, list[float]] = {"stock": [], "headlong": []}
    options = {**plain(model), "max_new_tokens": 16, "do_sample": True, "top_p": TOP_P}
    restore(model)
    for _ in range(4):
        steps["stock"].append(per_token(model, asked[:1], options))
        _swap(model, head)
        steps["headlong"].append(per_token(model, asked[:1], {**options, "custom_generate": headlong_generate}))
        restore(model)
    record["decode_steps"] = [{"contestant": name, "seconds": values[1:]} for name, values in steps.items()]
    return record


def _swap(model: Any, head: Any) -> None:
    for name in ("lm_head",):
        setattr(model, name, head)


def per_token(model: Any, ids: Any, options: dict[str, Any]) -> float:
    start = time.perf_counter()
    model.generate(ids, **options)
    return (time.perf_counter() - start) / options["max_new_tokens"]


def summary(record: dict[str, Any]) -> str:
    lines = []
    if "time" in record:
        medians = {(t["contestant"], t["batch"]): statistics.median(t["seconds"]) for t in record["time"]["head_and_sampler"]}
        for (name, batch), value in medians.items():
            against = medians[name.replace("headlong", "stock"), batch]
            lines.append(f"{name}, batch {batch}: {1e3 * value / batch:.2f} ms per token, {against / value:.2f} times stock")
        whole = {entry["contestant"]: statistics.median(entry["seconds"]) for entry in record["time"]["decode_steps"]}
        lines.append(f"decode step: {1e3 * whole['stock']:.1f} ms stock, {1e3 * whole['headlong']:.1f} ms headlong")
    if "check" in record:
        lines.append(json.dumps(record["check"]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "time"])
    parser.add_argument("model", choices=["gpt2", "gemma"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the timing at each batch size")
    parser.add_argument("--method", default="cascade")
    settings = parser.parse_args()
    claim_threads(settings.threads)
    import torch

    from headlong.measure import environment

    torch.set_num_threads(settings.threads)
    record = json.loads(settings.out.read_text()) if settings.out.is_file() else {}
    with torch.no_grad():
        model = shaped(settings.model)
        weight = model.get_output_embeddings().weight
        found = check(model, settings) if settings.what == "check" else clock(model, settings)
    parameters = sum(part.numel() for part in model.parameters())
    record["model"] = {"shape": settings.model, "vocab": weight.shape[0], "dim": weight.shape[1], "parameters": parameters}
    record[settings.what] = found | {"environment": environment(settings.threads), "method": settings.method}
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    settings.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(summary(record) + "\n")


if __name__ == "__main__":
    main()
