"""The tables of the page on GGUF models: families, SmolLM2, shapes of other models, perplexity."""

from __future__ import annotations

from typing import Any

from tables_records import missing, record

from headlong.report.decoding import decoding, medians
from headlong.report.measured_on import machine
from headlong.report.tables import ReportTable, markdown, times

SHAPES = {
    "gguf-gemma3-270m": "Gemma 3 270M", "gguf-qwen3-0.6b": "Qwen3 0.6B", "gguf-llama3.2-1b": "Llama 3.2 1B",
    "gguf-gemma3-270m-spectrum": "Gemma 3 270M, head with SmolLM2's spectrum",
}  # fmt: skip


def families() -> str:
    """Read from the source: importing it needs llama-cpp-python."""
    import ast
    from pathlib import Path

    file = Path(__file__).resolve().parents[1] / "src/headlong/integrations/llama_cpp/families.py"
    (table,) = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.AnnAssign))
    assert isinstance(table.value, ast.Dict)
    return ", ".join(f"`{ast.literal_eval(key)}`" for key in table.value.keys if key is not None) + "."


def smollm2() -> str:
    return missing("gguf-smollm2") or markdown(decoding(record("gguf-smollm2"))._replace(title=""))


def shapes() -> str:
    names = [name for name in SHAPES if not missing(name)]
    if not names:
        return missing(*SHAPES)
    rows, made = [], record(names[0])["environment"]
    for name in names:
        found = record(name)
        size, took = found["shape"], found["took"]
        read = f"{took['rows']:,.0f} rows, {took['bytes'] / 2**20:.0f} MiB" if took else ""
        for entry in found["runs"]:
            theirs, ours, ratio = medians(entry)
            rows.append((SHAPES[name], f"{size['vocab']:,} × {size['dim']:,}", entry["sampler"], f"{theirs:.2f}", f"{ours:.2f}",
                         times(ratio), read))  # fmt: skip
    titles = ("shape", "output layer", "sampler", "llama.cpp, ms a token", "headlong", "llama.cpp / headlong", "read, greedy")
    return markdown(ReportTable("", titles, tuple(rows), machine(made)))


def perplexity() -> str:
    if text := missing("gguf-perplexity"):
        return text
    found: dict[str, Any] = record("gguf-perplexity")
    rows = tuple((name, f"{value:.4f}") for name, value in found["perplexity"].items())
    caption = (
        f"No log-probability is further than {found['furthest from float64']:.2g} nats from float64's; promised are "
        f"{found['error']:.2g}. {machine(found['environment'])}"
    )
    return markdown(ReportTable("", ("log-probabilities by", "perplexity"), rows, caption))


BLOCKS = {"llama-families": families, "llama-smollm2": smollm2, "llama-shapes": shapes, "llama-perplexity": perplexity}
