"""Decoding with transformers, stock beside headlong, on models of the shapes of GPT-2, Gemma 3 (270m) and a small Llama.

    python benchmarks/generate.py check gemma results/generate-gemma.json     # tokens, noise, chi-square
    python benchmarks/generate.py time gemma results/generate-gemma.json      # seconds, added to the same file
    python benchmarks/generate.py time gemma results/generate-gemma.json --entropy 3   # one of the two uncertainties
    python benchmarks/generate.py time gemma results/generate-gemma.json --threads 1   # by default on one and on two

Random weights, float32, an output layer like a trained one's (``language_models.py``). ``check``: greedy tokens over 200
prompts, tokens under the same noise, and the frequencies of samples. ``time``: output layer and sampler per token at top-p
0.95, at next tokens of two uncertainties, and whole decode steps, greedy and top-p: the stock model, the accelerated model
through its own ``model.generate`` ("drop-in"), and through ``generate(model, ...)``. Each row says its threads, commit and day;
rows of other uncertainties and other threads stay. Each number of threads is a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headlong.bench.measure import claim_threads, environment, pinned, write_run

TOP_P = 0.95
ENTROPIES = (3.0, 4.5)
"""Of the next token, in nats: a good small model's on running text, and a weak one's."""
STEPS: dict[str, dict[str, Any]] = {
    "decode step, greedy": {"do_sample": False}, "decode step, top-p": {"do_sample": True, "top_p": TOP_P},
}  # fmt: skip


def plain(model: Any) -> dict[str, Any]:
    """No early stop: all sequences have the same length."""
    return {"pad_token_id": 0, "eos_token_id": model.get_output_embeddings().weight.shape[0] + 7, "top_k": 0}


def check(model: Any, settings: Any) -> dict[str, Any]:
    import torch
    from language_models import prompts, uncertain

    from headlong.integrations.generation.decoding import headlong_generate
    from headlong.integrations.transformers import accelerate, restore

    facts: dict[str, Any] = uncertain(model, ENTROPIES[0])
    asked, few = prompts(model, settings.prompts), prompts(model, settings.prompts)[: settings.noisy]
    greedy = {**plain(model), "max_new_tokens": settings.tokens, "do_sample": False}
    noisy = {**plain(model), "max_new_tokens": 16, "do_sample": True, "top_p": TOP_P}
    blocks, length = asked.split(50), asked.shape[1]
    expected = torch.cat([model.generate(block, **greedy) for block in blocks])
    same_noise = model.generate(few, custom_generate=dense_with_noise(5), **noisy)[:, length:]
    dense = model(asked[:3, :2]).logits[:, -1].double()
    head = accelerate(model)
    found = torch.cat([model.generate(block, custom_generate=headlong_generate, **greedy) for block in blocks])
    differ = (found != expected).any(1).nonzero()[:, 0].tolist()
    ours = model.generate(few, custom_generate=headlong_generate, headlong_seed=5, **noisy)[:, length:]
    facts |= {
        "greedy prompts": len(asked), "greedy tokens": found[:, length:].numel(),
        "greedy tokens equal": int((found == expected)[:, length:].sum()), "different tokens": len(found[:, length:].unique()),
        "first gaps in logits": [first_gap(model, expected[row], found[row]) for row in differ],
        "same noise, tokens": ours.numel(), "same noise, equal": int((ours == same_noise).sum()),
    }  # fmt: skip
    facts["chi-square"] = [frequencies(model, asked[row, :2], dense[row], settings.draws) for row in range(len(dense))]
    facts["paths"] = dict(head.paths)
    restore(model)
    return facts


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

    from headlong.engines.reference.gumbel import gumbels

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

    from headlong.integrations.generation.decoding import headlong_generate

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
    expected, large = chances * len(found), chances * len(found) >= 5
    cells = torch.stack([counts[large], expected[large]], 1)
    if not large.all():
        cells = torch.cat([cells, torch.stack([counts[~large].sum(), expected[~large].sum()])[None]])
    statistic = float(((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum())
    freedom = len(cells) - 1
    chance = float(torch.special.gammaincc(torch.tensor(freedom / 2.0).double(), torch.tensor(statistic / 2).double()))
    outside = len(found) - int(counts.sum())
    return {"draws": len(found), "statistic": statistic, "freedom": freedom, "p": chance, "outside the nucleus": outside}


def clock(model: Any, settings: Any) -> list[dict[str, Any]]:
    """Rows: what was timed, how uncertain the next token is, how many at once, and every timed call of both."""
    import torch
    from language_models import prompts, uncertain

    from headlong.bench.measure import Contestant, Schedule, contest
    from headlong.integrations.transformers import accelerate, restore

    asked, rows = prompts(model, 16), []
    for entropy in settings.entropy:
        facts = uncertain(model, entropy)
        head = accelerate(model)
        with torch.no_grad(), head.taking() as taken:
            model(asked)
        hidden = taken.hidden.reshape(-1, taken.hidden.shape[-1]).contiguous()
        shared = {"asked": entropy, "entropy": facts["entropy"], "nucleus": facts["nucleus_median"]}
        for what, (stock, ours) in rivals(head).items():
            for batch in (1, 8):
                pair = [Contestant("stock", stock), Contestant("headlong", ours)]
                timings = contest(pair, hidden, batch, Schedule(rounds=9, calls=3, settle=1, seconds=settings.seconds))
                about = {"what": what, **shared, "batch": batch}
                rows.append(about | ratio({timing.contestant: timing.seconds for timing in timings}, batch))
                sys.stdout.write(f"{ {key: value for key, value in rows[-1].items() if key != 'seconds'} }\n")
        stock_layer = restore(model)
        for what, options in STEPS.items():
            seconds = decode_steps(model, stock_layer, head, asked[:1], {**plain(model), **options})
            rows.append({"what": what, **shared, "batch": 1} | ratio(seconds, 1))
            sys.stdout.write(f"{ {key: value for key, value in rows[-1].items() if key != 'seconds'} }\n")
    return rows


def ratio(seconds: dict[str, list[float]], batch: int) -> dict[str, Any]:
    """Medians for each token, how much faster, and what they are made of."""
    medians = {name: 1e3 * statistics.median(some) / batch for name, some in seconds.items()}
    shown = {f"{name}_ms": median for name, median in medians.items()}
    return shown | {"times": medians["stock"] / medians["headlong"], "seconds": seconds}


def rivals(head: Any) -> dict[str, tuple[Any, Any]]:
    """Output layer and sampler of one step, stock and ours: hidden vectors in, tokens out."""
    import torch
    from transformers import TopPLogitsWarper

    from headlong.integrations.generation.decoding import Picker
    from headlong.integrations.generation.processors import recipe

    stock, warper = head.replaced, TopPLogitsWarper(TOP_P)

    class Given:
        hidden: Any = None

    pickers = {name: Picker(head, Given, recipe(parts, head.out_features), seed, 1) for name, parts, seed in
               (("top-p", [warper], 3), ("greedy", [], None))}  # fmt: skip

    def dense_sample(rows: Any) -> Any:
        with torch.no_grad():
            return torch.multinomial(warper(None, stock(rows).float()).softmax(-1), 1)

    def dense_greedy(rows: Any) -> Any:
        with torch.no_grad():
            return stock(rows).argmax(-1)

    def picked(name: str) -> Any:
        def call(rows: Any) -> Any:
            with torch.no_grad():
                Given.hidden = rows[:, None]
                return pickers[name](rows[:, :1].long(), rows[:, :1]).argmax(-1)

        return call

    return {"head + sampler, top-p": (dense_sample, picked("top-p")), "head + argmax, greedy": (dense_greedy, picked("greedy"))}


def decode_steps(model: Any, stock_layer: Any, head: Any, ids: Any, options: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds for each token of whole ``generate`` calls, in turn; the first of each is not counted."""
    from headlong.integrations.generation.decoding import headlong_generate

    options = {**options, "max_new_tokens": 16}
    seconds: dict[str, list[float]] = {"stock": [], "drop-in": [], "headlong": []}
    for _ in range(6):
        model.set_output_embeddings(stock_layer)
        seconds["stock"].append(per_token(model, ids, options))
        model.set_output_embeddings(head)
        seconds["drop-in"].append(per_token(model, ids, options))
        seconds["headlong"].append(per_token(model, ids, {**options, "custom_generate": headlong_generate}))
    model.set_output_embeddings(stock_layer)
    return {name: values[1:] for name, values in seconds.items()}


def per_token(model: Any, ids: Any, options: dict[str, Any]) -> float:
    start = time.perf_counter()
    model.generate(ids, **options)
    return (time.perf_counter() - start) / options["max_new_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "time"])
    parser.add_argument("model", choices=["gpt2", "gemma", "llama"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, nargs="*", help="default: 2 for check, 1 and 2 for time")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--noisy", type=int, default=32, help="prompts that are continued under the same noise")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each timing")
    parser.add_argument("--entropy", type=float, nargs="*", choices=ENTROPIES, default=ENTROPIES, help="rows of others stay")
    settings = parser.parse_args()
    threads = settings.threads or ([2] if settings.what == "check" else [1, 2])
    if len(threads) == 1:
        measured(settings, threads[0])
        return
    for count in threads:  # of several "--threads" the last one counts
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--threads", str(count)], check=True)


def measured(settings: Any, threads: int) -> None:
    """What was asked for, on so many threads of this process, into the file."""
    claim_threads(threads)
    import torch
    from language_models import shaped

    torch.set_num_threads(threads)
    record = json.loads(settings.out.read_text()) if settings.out.is_file() else {"facts": {}, "rows": []}
    made = environment(threads)
    with torch.no_grad(), pinned(threads):
        model = shaped(settings.model)
        weight = model.get_output_embeddings().weight
        parameters = sum(part.numel() for part in model.parameters())
        about = {"shape": settings.model, "vocab": weight.shape[0], "dim": weight.shape[1], "parameters": parameters}
        if settings.what == "check":
            record["facts"] = about | check(model, settings) | {"transformers": transformers_version()}
        else:
            said = {name: made[name] for name in ("threads", "commit", "date")}
            record["rows"] = joined(record, [row | said for row in clock(model, settings)], settings.entropy, threads)
    write_run(settings.out, record | {"environment": made})
    sys.stdout.write(json.dumps(record["facts"], indent=1) + "\n" if settings.what == "check" else "written\n")


def joined(record: dict[str, Any], rows: list[dict[str, Any]], entropies: Any, threads: int) -> list[dict[str, Any]]:
    """With the rows of other uncertainties and threads; those that say no threads and no commit are the file's last run's."""
    last = record.get("environment", {})
    about = {name: last.get(name) for name in ("threads", "commit", "date")}
    kept = [about | row for row in record["rows"]]
    others = [
        row for row in kept if row["threads"] != threads or row.get("asked", round(row["entropy"], 1)) not in entropies
    ]
    return sorted(others + rows, key=lambda row: (row["threads"], row["entropy"]))


def transformers_version() -> str:
    import transformers

    return str(transformers.__version__)


if __name__ == "__main__":
    main()
