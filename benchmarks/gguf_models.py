"""GGUF models by llama.cpp alone and with the head read by headlong, beside what ``headlong bench --gguf MODEL`` measures.

    python benchmarks/gguf_models.py real gemma3-270m results/gguf-gemma3-270m.json    # or qwen2.5-coder-0.5b, smollm2
    python benchmarks/gguf_models.py perplexity MODEL.gguf TEXT results/gguf-perplexity.json

``real``: a model that ``benchmarks/fetch_models.py`` fetches, or SmolLM2 out of its wheel. ``perplexity``: the first 4,096
tokens of a text in windows of 512: our log-probabilities, the same hidden vectors with a float64 head, and llama.cpp alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from common.models import model_file
from headlong.bench import gguf
from headlong.bench.measure import claim_threads, environment, write_run

TOKENS, WINDOW = 4096, 512


def perplexity(model_path: Path, text: Path, out: Path, threads: int) -> None:
    import llama_cpp

    from headlong.integrations.llama_cpp import Model

    stock = llama_cpp.Llama(str(model_path), n_ctx=WINDOW, n_batch=WINDOW, n_threads=threads, logits_all=True, verbose=False)
    tokens = stock.tokenize(text.read_text(encoding="utf-8")[: 8 * TOKENS].encode(), add_bos=False)[:TOKENS]
    sums = {"headlong": 0.0, "float64 head": 0.0, "llama.cpp": 0.0}
    error, apart, count = 0.0, 0.0, 0
    with Model(model_path, n_ctx=2 * WINDOW, n_threads=threads) as model:
        weight = np.asarray(model.engine.layer.weight, np.float64)
        for start in range(0, len(tokens), WINDOW):
            window = tokens[start : start + WINDOW]
            ours, off = model.log_probs(window)
            exact = dense(model, window, weight)
            stock.reset()
            stock.eval(window)
            logits = stock.scores[: len(window) - 1].astype(np.float64)
            theirs = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))[np.arange(len(window) - 1), window[1:]]
            for name, values in zip(sums, (ours, exact, theirs), strict=True):
                sums[name] += float(values.sum())
            error, apart = max(error, float(off.max())), max(apart, float(np.abs(ours - exact).max()))
            count += len(ours)
    record = {
        "environment": environment(threads), "model": model_path.name, "text": text.name, "tokens": len(tokens),
        "window": WINDOW,
        "perplexity": {name: float(np.exp(-value / count)) for name, value in sums.items()},
        "error": error, "furthest from float64": apart,
    }  # fmt: skip
    write_run(out, record)


def dense(model: Any, window: list[int], weight: Any) -> Any:
    """Log-probabilities of the same hidden vectors by a product in float64."""
    hidden = np.asarray(model.hidden(window)[:-1], np.float64)
    logits = np.asarray(model.engine.layer.link(hidden @ weight.T))
    return logits[np.arange(len(hidden)), window[1:]] - np.logaddexp.reduce(logits, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["real", "perplexity"])
    parser.add_argument("arguments", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where codes are kept; default: the user's cache folder")
    asked = parser.parse_args()
    claim_threads(asked.threads)
    if asked.what == "real":
        name, out = asked.arguments
        write_run(Path(out), gguf.run(model_file(name), gguf.Turns(rounds=asked.rounds), asked.threads, asked.folder))
    else:
        model, text, out = map(Path, asked.arguments)
        perplexity(model, text, out, asked.threads)


if __name__ == "__main__":
    main()
