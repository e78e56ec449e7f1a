"""Which one? A row for each situation, and the runs that ``report/readme.py`` makes README's first screen of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables_records import RESULTS, left, missing, record

from headlong.bench.measure import read_run
from headlong.report import readme
from headlong.report.decoding import medians
from headlong.report.page import PICTURE
from headlong.report.plots import standalone
from headlong.report.summaries import Summary, baselines, summaries
from headlong.report.tables import ReportTable, markdown, percent, times

TRAINED, SMALL = "bench-wikitext2.json", "bench-ptb-lstm.json"
MILLION = "bench-million-avx2.json"
GENERATE = ("generate-gpt2", "generate-llama", "generate-gemma")
THREADS = 2
"""Of the decoders that the first screens speak of: all processors of the machine."""


def cold() -> dict[str, Any]:
    """The run of ``benchmarks/cold_calls.py``."""
    return record("cold-calls")


def run(name: str) -> dict[str, Any]:
    return read_run(RESULTS / name)


def generations() -> list[dict[str, Any]]:
    """The runs of ``benchmarks/generate.py``, on as many threads as the other runs."""
    runs = [record(name) for name in GENERATE]
    return [run | {"rows": [row for row in run["rows"] if row.get("threads", THREADS) == THREADS]} for run in runs]


def headline() -> str:
    return markdown(readme.headline(cold(), run(TRAINED)))


def elsewhere() -> str:
    return readme.elsewhere(record("cold-calls-avx2"))


def decode() -> str:
    return f"{readme.decode(generations())}\n\n{readme.recommender(run(MILLION))}"


def loop() -> str:
    return readme.loop(run(TRAINED))


def wrong() -> str:
    return readme.wrong(run(TRAINED))


def picture() -> str:
    """``docs/figures/cold-calls.svg``"""
    return standalone(readme.picture(cold(), run(TRAINED)), PICTURE) + "\n"


def choice() -> str:
    """A row for each situation: what to take, and what it gained in the committed runs."""
    rows = [*_decoders(), *_trained(), *_others()]
    return left(ReportTable("", ("your situation", "take", "expect"), tuple(rows)))


def _decoders() -> list[tuple[str, str, str]]:
    whole = missing("gguf-smollm2")
    if not whole:
        ratios = [medians(entry)[2] for entry in record("gguf-smollm2")["runs"]]
        whole = f"a step of SmolLM2-135M {times(min(ratios))} to {times(max(ratios))} stock llama.cpp, greedy and samplers"
    take = '`Model("model.gguf")` in the place of `llama_cpp.Llama` ([page](PAGES/llama-cpp.md))'
    gguf = ("a GGUF model decodes on a CPU, 1 to 4 sequences", take, whole)
    runs = generations()
    parts = [row["times"] for one in runs for row in one["rows"] if row["what"].startswith("head + ")]
    steps = [row["times"] for one in runs for row in one["rows"] if row["what"] == readme.STEP]
    sizes = [f"{one['facts']['vocab']:,}" for one in runs]
    vocab = " or ".join([", ".join(sizes[:-1]), sizes[-1]])
    gain = f"output layer and sampler {_span(parts)}, the whole step {_span(steps)} stock transformers"
    return [gguf, (f"a Hugging Face model decodes on a CPU, {vocab} tokens, 1 to 8 sequences",
             "`accelerate(model, text=...)`, then `model.generate(...)` ([page](PAGES/transformers.md))", gain)]  # fmt: skip


def _trained() -> list[tuple[str, str, str]]:
    record, calls = run(TRAINED), {row["method"]: row for row in cold()["rows"]}
    found, over = _at(record, 1), cold()["facts"]["over"]
    size = f"{record['layer']['vocab']:,} × {record['layer']['dim']}"

    def gain(name: str) -> str:
        return f"{times(calls[name]['speed_up'])} {over} cold; {times(found[name].speedup)} {baselines(record)[1]} in a loop"

    batch = _at(record, 64)
    ids, both = batch["calibrated, ids only"], batch["calibrated, default promise"]
    at_once = f"{times(both.speedup)} {baselines(record)[64]}; ids only {times(ids.speedup)}"
    return [
        (f"one query at a time, {size}; ids and log-probabilities; you have hidden vectors",
         "`hl.compile(layer, calibration=hidden)`", gain("calibrated, default promise")),
        ("the same, and the ids or their order are enough",
         "`hl.compile(layer, calibration=hidden, eps=math.inf)`", gain("calibrated, ids only")),
        ("the same without hidden vectors; log-probabilities within 0.2 nats, proved",
         _typed(record, "cascade"), gain("cascade")),
        ("64 queries at once, with hidden vectors", "`hl.compile(layer, calibration=hidden)`", f"{at_once} in a loop"),
        (f"log-probabilities proved within {_stated(record, 'full'):.2g} nats", '`hl.compile(layer, "full")`',
         f"{gain('full')}: all rows are read as they are stored. A smaller `eps=` takes float64 sums, which are slower"),
    ]  # fmt: skip


def _others() -> list[tuple[str, str, str]]:
    large, small, trained = run(MILLION), run(SMALL), _at(run(TRAINED), 1)
    million, tiny = _at(large, 1)["calibrated, ids only"], _at(small, 1)["auto"]
    rivals = [trained[name] for name in ("hnswlib", "scann") if name in trained]
    said = ", ".join(f"{one.contestant} {times(one.speedup)} with {percent(one.agreement)} of the ids" for one in rivals)
    return [
        ("a recommender: a million items × 256, one user at a time",
         "`hl.compile(layer, calibration=users, eps=math.inf)` ([page](PAGES/search.md))",
         f"{times(million.speedup)} {baselines(large)[1]} in a loop"),
        (f"a small layer, {small['layer']['vocab']:,} × {small['layer']['dim']}", _typed(small, "auto"),
         f"{times(tiny.speedup)} {baselines(small)[1]} in a loop: tens of microseconds either way"),
        ("some ids may be wrong, and no probabilities are needed",
         "a graph or a tree: hnswlib, FAISS, ScaNN ([beside](PAGES/beside.md))", f"{said}, in a loop"),
        ("everything on a GPU, large batches", "your matrix product",
         "no factor of ours was measured there ([page](PAGES/device.md))"),
    ]  # fmt: skip


def _typed(record: dict[str, Any], name: str) -> str:
    """What compiles the engine of that name in the run: one without options, where its promise is compile's own."""
    promise = next(entry["about"]["promise"] for entry in record["answers"] if entry["contestant"] == name)
    given = record["settings"]
    options = "" if "but for 0.001" in promise else f", eps={given['eps']:g}, delta={given['delta']:g}"
    return f"`hl.compile(layer{options})`"


def _stated(record: dict[str, Any], name: str) -> float:
    """The largest error that an engine stated of its log-probabilities."""
    return float(max(next(entry["error"] for entry in record["answers"] if entry["contestant"] == name)))


def _at(record: dict[str, Any], batch: int) -> dict[str, Summary]:
    return {one.contestant: one for one in summaries(record) if one.batch == batch}


def _span(ratios: list[float]) -> str:
    return f"{times(min(ratios)).rstrip('×')}–{times(max(ratios))}"


def placed(block: Callable[[], str], pages: str) -> Callable[[], str]:
    """The block with its links as the page needs them."""
    return lambda: block().replace("PAGES/", pages)


BLOCKS = {
    "headline": headline, "headline-avx2": elsewhere, "decode": decode, "loop": loop, "wrong": wrong,
    "choice": placed(choice, "docs/"), "choice-page": placed(choice, ""),
}  # fmt: skip
PICTURES = {"docs/figures/cold-calls.svg": picture}
