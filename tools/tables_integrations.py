"""The tables of the pages on integrations: decoding, many processes, ten million rows, many classes, packaging."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tables_records import missing, record

from headlong.report.measured_on import measured_where
from headlong.report.records import field
from headlong.report.tables import ReportTable, markdown

MODELS = {
    "gpt2": "GPT-2 (50,257 x 768)", "llama": "small Llama (128,256 x 512)", "gemma": "Gemma 3 270m (262,144 x 640)",
}  # fmt: skip
GENERATE = tuple(f"generate-{name}" for name in MODELS)


PARTS = {"decode step, greedy": "head + argmax, greedy", "decode step, top-p": "head + sampler, top-p"}
"""What a step asks of output layer and sampler."""


def timed(name: str) -> list[dict[str, Any]]:
    """The rows of a model, by threads; those that name no threads and no commit have the file's."""
    found = record(f"generate-{name}")
    made = found["environment"]
    about = {"threads": made["threads"], "commit": made["commit"], "date": made["date"]}
    return sorted((about | row for row in found["rows"]), key=lambda row: row["threads"])


def decoding() -> str:
    """Times of all models, stock beside ours."""
    if text := missing(*GENERATE):
        return text
    rows = [
        (
            MODELS[name], row["what"], str(row["threads"]), f"{row['entropy']:.1f}", f"{row['nucleus']:,.0f}",
            str(row["batch"]), f"{row['stock_ms']:.2f}", f"{row['headlong_ms']:.2f}", f"{row['times']:.1f}×",
        )
        for name in MODELS
        for row in timed(name)
        if row["what"].startswith("head + ")
    ]  # fmt: skip
    titles = ("model's shape", "what", "threads", "entropy, nats", "nucleus", "at once", "stock, ms a token", "headlong",
              "times faster")  # fmt: skip
    facts = record("generate-gpt2")
    shared = {key: value for key, value in facts["environment"].items() if key not in ("threads", "headlong", "date")}
    caption = f"{measured_where(shared)}; transformers {facts['facts']['transformers']}, float32, top-p 0.95. {_runs()}."
    return markdown(ReportTable("", titles, tuple(rows), caption))


def _runs() -> str:
    """Of which day and commit each model's rows are."""
    made = {name: sorted({f"{row['date']} at {row['commit']}" for row in timed(name)}) for name in MODELS}
    return "; ".join(f"{MODELS[name].partition(' (')[0]}: {' and '.join(runs)}" for name, runs in made.items())


def decode_steps() -> str:
    """Tokens a second of whole steps: stock, the accelerated model's own ``generate``, and ours."""
    if text := missing(*GENERATE):
        return text
    rows = []
    for name, label in MODELS.items():
        for row in timed(name):
            if row["what"] in PARTS:
                speeds = [f"{1e3 / row[key]:.1f}" if key in row else "–" for key in ("stock_ms", "drop-in_ms", "headlong_ms")]
                shares = [_share(row, timed(name), key) for key in ("stock_ms", "headlong_ms")]
                about = label, row["what"][13:], str(row["threads"]), f"{row['entropy']:.1f}"
                rows.append((*about, *speeds, f"{row['times']:.2f}×", *shares))
    ways = ("stock", "accelerate(generate=False)", "accelerate()")
    titles = ("model's shape", "decoding", "threads", "entropy, nats", *(f"{way}, tokens/s" for way in ways), "times faster",
              "output layer and sampler, of a stock step", "of ours")  # fmt: skip
    return markdown(ReportTable("", titles, tuple(rows)))


def _share(step: dict[str, Any], rows: list[dict[str, Any]], key: str) -> str:
    """What output layer and sampler take alone, of a whole step of one sequence."""
    alike = [row for row in rows if row["what"] == PARTS[step["what"]] and row["batch"] == step["batch"]]
    part = next((row for row in alike if all(row[name] == step[name] for name in ("threads", "entropy"))), None)
    return "–" if part is None else f"{part[key] / step[key]:.0%}"


def decoded() -> str:
    """What was compared token for token, and the chi-squares."""
    if text := missing(*GENERATE):
        return text
    rows = []
    for name, label in MODELS.items():
        facts = record(f"generate-{name}")["facts"]
        if "greedy tokens" not in facts:
            continue
        greedy = f"{facts['greedy tokens equal']:,} of {facts['greedy tokens']:,} ({facts['greedy prompts']} prompts)"
        noise = f"{facts['same noise, equal']} of {facts['same noise, tokens']}"
        tests = ", ".join(f"{one['p']:.2f}" for one in facts["chi-square"])
        draws = f"{tests} ({facts['chi-square'][0]['draws']:,} draws each)"
        rows.append((label, greedy, noise, draws, str(sum(one["outside the nucleus"] for one in facts["chi-square"]))))
    titles = ("model's shape", "greedy tokens equal", "same noise, equal", "chi-square, p", "outside the nucleus")
    return markdown(ReportTable("", titles, tuple(rows)))


def chosen(name: str, columns: dict[str, str]) -> str:
    """Fields of the rows, where they were measured below."""
    if text := missing(name):
        return text
    found = record(name)
    rows = tuple(tuple(_sized(key, row.get(key)) for key in columns) for row in found["rows"])
    return markdown(ReportTable("", tuple(columns.values()), rows, f"{measured_where(found['environment'])}."))


def _sized(key: str, value: Any) -> str:
    """Bytes as MiB where the field says bytes or a peak."""
    if isinstance(value, int) and ("bytes" in key or "peak" in key) and value >= 2**20:
        return f"{value / 2**20:,.0f} MiB"
    return f"{value:.1%}" if key == "recall" else field(value)


PROCESSES = {
    "verb": "verb", "ids equal": "ids equal", "logits equal": "logits equal", "score equal": "keys equal",
    "within error": "lse within error", "lse gap": "lse gap", "proved": "proved", "bytes a query": "bytes sent a query",
    "exchanges": "exchanges",
}  # fmt: skip
TEN_MILLION = {
    "contestant": "contestant", "classes": "classes", "build CPU s": "build, CPU s",
    "build peak, anonymous": "own memory of the build", "build peak, with mapped pages": "with the file's pages",
    "index bytes": "index", "recall": "recall of the 10",
    "proved": "proved", "ms, batch 1": "ms, 1 query", "ms, batch 16": "ms each, 16 at once",
}  # fmt: skip
MANY_CLASSES = {
    "classes": "classes", "coefficients": "coefficients", "way": "way", "at once": "rows at once", "µs a row": "µs a row",
    "times dense's speed": "times dense's speed", "rows with equal labels": "rows with equal labels", "of": "of",
}  # fmt: skip
PACKAGING = {
    "python": "Python", "wheel": "wheel", "wheel bytes": "size", "build CPU s": "build, CPU s",
    "packages": "packages installed", "heavy": "heavy ones", "import s": "import headlong, s", "modules": "modules it loads",
}  # fmt: skip


def processes() -> str:
    return chosen("processes", PROCESSES)


def killed() -> str:
    """What the others said when one was killed."""
    if text := missing("processes"):
        return text
    facts = record("processes")["facts"]["killed"]
    lines = [f"- {name}, after {said['seconds']:.1f} s: {said['said']}" for name, said in facts.items()]
    return "\n".join(lines)


def ten_million() -> str:
    return chosen("ten-million", TEN_MILLION)


def many_classes() -> str:
    """The times, and how much memory each way took for all rows at once."""
    text = chosen("many-classes", MANY_CLASSES)
    if missing("many-classes"):
        return text
    peaks = {key: value for key, value in record("many-classes")["facts"].items() if key.startswith("peak")}
    lines = [f"- {key.removesuffix(', bytes')}: {value / 2**20:,.0f} MiB" for key, value in peaks.items()]
    return "\n".join([text, "", *lines])


def packaging() -> str:
    return chosen("packaging", PACKAGING)


def transformers_heads() -> str:
    """Every class of transformers that was built small: what its folder gave."""
    if text := missing("transformers-heads"):
        return text
    found = record("transformers-heads")
    counts = Counter((one["group"], one["outcome"]) for one in found["classes"])
    groups = dict.fromkeys(group for group, _ in counts)
    rows = [(group, *(str(counts[group, outcome]) for outcome in OUTCOMES)) for group in groups]
    refused = sorted({one["family"] for one in found["classes"] if one["outcome"] == "refused"})
    caption = f"transformers {found['transformers']}. Refused: {', '.join(refused)}."
    return markdown(ReportTable("", ("classes", *OUTCOMES.values()), tuple(rows), caption))


OUTCOMES = {
    "read": "logits are the model's own", "refused": "refused with a sentence", "wrong": "wrong",
    "not built": "not built small by transformers",
}  # fmt: skip


BLOCKS = {
    "transformers-heads": transformers_heads,
    "decoding": decoding, "decode-steps": decode_steps, "decoded": decoded, "processes": processes, "killed": killed,
    "ten-million": ten_million, "many-classes": many_classes, "packaging": packaging,
}  # fmt: skip
