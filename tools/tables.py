"""Fills the generated blocks of README.md and docs/ from results/ and from the program itself.

    python tools/tables.py            write them
    python tools/tables.py --check    exit 1 where one is stale

A block lies between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. No number in them is typed by hand.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import typer

from headlong.bench.measure import read_run
from headlong.cli.commands import app
from headlong.engines.method import METHODS
from headlong.report.papers import paper_table
from headlong.report.tables import Table, comparisons, markdown
from headlong.studies import papers
from headlong.studies.data import DATA_SETS

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))  # for those who load this file by its path
import tables_curves as curves  # noqa: E402
import tables_device as device  # noqa: E402
import tables_experts as experts  # noqa: E402
import tables_heads as heads  # noqa: E402
import tables_integrations as integrations  # noqa: E402
import tables_processors as processors  # noqa: E402
import tables_readme as first_screen  # noqa: E402
import tables_studies as evidence  # noqa: E402
import tables_synthetic as synthetic  # noqa: E402

PAGES = (
    "cascade", "cli", "svd", "data", "training", "hierarchical", "bands", "adaptive", "buckets", "kernel-density", "tune",
    "promises",
)  # fmt: skip
MADE = (
    *PAGES, *device.PAGES, *heads.PAGES, *integrations.PAGES, *processors.PAGES, *first_screen.PAGES, *evidence.PAGES,
)  # fmt: skip
FILES = ("README.md", "results/README.md", *(f"docs/{page}.md" for page in MADE))
BENCH = "results/bench-wikitext2.json"
DEMO = "results/demo.json"


def batches() -> str:
    return _of_run(BENCH, lambda record: "\n\n".join(f"{table.title}:\n\n{markdown(table)}" for table in comparisons(record)))


def demo() -> str:
    return _of_run(DEMO, lambda record: "\n\n".join(f"{table.title}:\n\n{markdown(table)}" for table in comparisons(record)))


def _of_run(path: str, made: Callable[[dict[str, Any]], str]) -> str:
    file = ROOT / path
    return made(read_run(file)) if file.is_file() else f"No committed run yet: {path} is not there."


def commands() -> str:
    """One line for each command."""
    rows = [(f"`headlong {name}`", (command.help or "").strip()) for name, command in _commands().items()]
    return _left(Table("", ("command", "what it does"), tuple(rows)))


def reference() -> str:
    """Every command with its arguments and options."""
    parts = []
    for name, command in _commands().items():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        shown = " ".join(param.metavar or param.name.upper() for param in arguments)
        rows = [
            (f"`{', '.join(param.opts)}`", _default(param), (getattr(param, "help", "") or "").strip())
            for param in command.params
            if param.param_type_name == "option" and param.name != "help"
        ]
        usage = f"    headlong {name} {shown}".rstrip()
        options = _left(Table("", ("option", "default", "what it says"), tuple(rows)))
        parts.append(f"## {name}\n\n{(command.help or '').strip()}\n\n{usage}\n\n{options}")
        if name == "compile":
            parts.append(f"Every method has its own `--option`:\n\n{method_options()}")
    return "\n\n".join(parts)


def method_options() -> str:
    """Every method with its options and their defaults."""
    rows = []
    for name, method in METHODS.items():
        fields = [field for field in dataclasses.fields(cast("Any", method)) if field.name != "name"]
        rows.append((f"`{name}`", ", ".join(f"`{field.name}={_spelt(field)}`" for field in fields) or "none"))
    return _left(Table("", ("--method", "--option, with its default"), tuple(rows)))


def _spelt(field: Any) -> str:
    """The default as the command line spells it, which is JSON where it is no text."""
    return field.default if isinstance(field.default, str) else json.dumps(field.default)


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _default(param: Any) -> str:
    return "" if param.default is None or param.default is False else f"`{param.default}`"


def _left(table: Table) -> str:
    """A table of words: set to the left."""
    return markdown(table).replace("--:|", "---|")


def one_paper_table(name: str) -> Callable[[], str]:
    """The rows of one table, on its own page."""

    def made() -> str:
        (table,) = papers.tables(name)
        lines = evidence.lines_of(table)
        return markdown(paper_table(lines, "", table.source)) if lines else "No committed run yet."

    return made


def data_sets() -> str:
    """Every row of the registry."""
    rows = [
        (f"`{row.name}`", row.kind, row.source, row.licence, "`data.fetch`" if row.downloads else row.obtain)
        for row in DATA_SETS.values()
    ]
    return _left(Table("", ("name", "kind", "what and from where", "licence", "how to get it"), tuple(rows)))


def trainings() -> str:
    """Every shipped recipe: what its committed run reached, or that there is none."""
    rows = []
    for name in sorted(file.stem for file in (ROOT / "src/headlong/models/recipes").glob("*.toml")):
        file = ROOT / "results" / f"train-{name}.json"
        rows.append(_trained(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else (name, "not run", *[""] * 5))
    titles = ("recipe", "test", "parameters", "layer", "epochs", "seconds", "processor seconds")
    return _left(Table("", titles, tuple(rows)))


def _trained(record: dict[str, Any]) -> tuple[str, ...]:
    test, layer = record["test"], record["layer"]
    figures = [f"{name} {test[name]:.2f}" for name in ("perplexity", "accuracy", "bleu") if name in test]
    figures += [f"`{test['signature']}`"] if "signature" in test else []
    shape = f"{layer['vocab']:,} x {layer['dim']}"
    counts = (f"{record['parameters']:,}", shape, str(len(record["curve"])))
    return record["name"], ", ".join(figures), *counts, f"{record['seconds']:,.0f}", f"{record['cpu_seconds']:,.0f}"


def step_costs() -> str:
    """The dense head's step and the loop's throughput beside plain PyTorch."""
    file = ROOT / "results/training-costs.json"
    if not file.is_file():
        return "No committed run yet: results/training-costs.json is not there."
    record = json.loads(file.read_text(encoding="utf-8"))
    shape, made = record["shape"], record["environment"]
    names = {"naive": "`cross_entropy(linear(...))`", "whole": "dense head, one piece", "chunked": "dense head, in pieces"}
    rows = [
        (
            names[path],
            f"{rise / 2**20:.0f} MiB",
            f"{rise / record['memory_rise']['naive']:.2f}",
            f"{record['time_ratio'][path]:.2f}",
        )
        for path, rise in record["memory_rise"].items()
    ]
    table = markdown(Table("", ("one step", "memory", "of plain", "time, of plain"), tuple(rows)))
    return (
        f"V = {shape['vocab']:,}, N = {shape['rows']:,}, D = {shape['dim']}, {shape['dtype']}, {made['threads']} threads, "
        f"{made['cpu']}, torch {made['versions']['torch']}, {made['date']}; `{record['command']}`.\n\n{table}\n\n"
        f"Training steps of the same models, same batches, 10,000 classes, beside plain PyTorch with all logits at once:\n\n"
        f"{markdown(model_speeds(record['models']))}"
    )


def model_speeds(models: dict[str, Any]) -> Table:
    """One row for each model and type: medians of both, and the median of the ratios of a round."""
    rows = []
    for name, one in models.items():
        ours, plain = (1e3 * statistics.median(one["step_seconds"][who]) for who in ("headlong", "plain"))
        rows.append((name, f"{ours:.0f} ms", f"{plain:.0f} ms", f"{one['speed']:.2f}"))
    return Table("", ("model", "headlong", "plain PyTorch", "speed, of plain"), tuple(rows))


def band_costs() -> str:
    """Our bands beside torch's: medians of one run."""
    file = ROOT / "results/band-costs.json"
    if not file.is_file():
        return "No committed run yet."
    record = json.loads(file.read_text(encoding="utf-8"))
    made, shape, names = record["environment"], record["shape"], ("ours", "torch")
    losses = record["losses"]
    rows = [("loss of the first step", *(f"{losses[name][0]:.6f}" for name in names))]
    rows += [(f"loss of step {len(losses['ours'])}", *(f"{losses[name][-1]:.4f}" for name in names))]
    rows += [(f"a training step, {shape['rows']:,} rows", *(_milliseconds(record["step"][name]) for name in names))]
    for batch, seconds in record["topk"].items():
        rows += [(f"top-10, {batch} at once", *(_milliseconds(seconds[name]) for name in names))]
    for word, said in record.get("tried", {}).items():
        rows.append((f"loss under {word}", *(said[name].replace("|", " ") for name in names)))
    table = _left(Table("", ("", "headlong", "torch"), tuple(rows)))
    about = f"{shape['vocab']:,} classes x {shape['dim']}, cutoffs {record['cutoffs']}, {made['threads']} threads"
    return f"{table}\n\n{about}, {made['cpu']}, torch {made['versions']['torch']}, {made['date']}."


def _milliseconds(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.3g} ms"


def plain(name: str, columns: dict[str, str]) -> Callable[[], str]:
    """Chosen fields of ``results/NAME.json``, a row for each of its rows; where it was measured below."""

    def made() -> str:
        file = ROOT / "results" / f"{name}.json"
        if not file.is_file():
            return f"No committed run yet: results/{name}.json is not there."
        record = json.loads(file.read_text(encoding="utf-8"))
        rows = tuple(tuple(_field(row.get(key)) for key in columns) for row in record["rows"])
        plain_facts = {key: value for key, value in record["facts"].items() if not isinstance(value, dict | list)}
        where, facts = record["environment"], ", ".join(f"{key} {_field(value)}" for key, value in plain_facts.items())
        caption = f"{facts}. {where['cpu']}, {where['threads']} threads, NumPy {where['versions']['numpy']}, {where['date']}."
        return markdown(Table("", tuple(columns.values()), rows, caption))

    return made


def runs(name: str, columns: dict[str, str], facts: str = "") -> Callable[[], str]:
    """Chosen fields of the ``runs`` of ``results/NAME.json``; where they were measured below."""

    def made() -> str:
        file = ROOT / "results" / f"{name}.json"
        if not file.is_file():
            return f"No committed run yet: results/{name}.json is not there."
        record = json.loads(file.read_text(encoding="utf-8"))
        rows = tuple(tuple(_field(run.get(key, run.get("layer", {}).get(key))) for key in columns) for run in record["runs"])
        where = record["environment"]
        caption = f"{facts}{where['cpu']}, {where['threads']} threads, NumPy {where['versions']['numpy']}, {where['date']}."
        return markdown(Table("", tuple(columns.values()), rows, caption))

    return made


def _field(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


ADAPTIVE_TIME = {
    "contestant": "contestant", "median_us": "median, µs", "against_torch_fp32": "times torch fp32's speed",
    "against_full": "of full's time", "entries": "entries", "bytes": "bytes", "memory": "memory",
    "failures": "failures", "queries": "of",
    "dense": "finished densely", "promise": "promise",
}  # fmt: skip
COVERAGE = {
    "layer": "layer", "widths": "widths", "pairs": "pairs", "outside": "outside", "queries_with_any": "queries with any",
    "queries": "of", "allowed_rate": "allowed rate",
}  # fmt: skip
DENSITY = {
    "bandwidth": "bandwidth", "contestant": "contestant", "median_ms": "median, ms", "worst_error": "worst error",
    "asked": "asked", "outside_own_error": "outside own error", "queries": "queries", "build_s": "build, s",
}  # fmt: skip
LOWDIM = {
    "dim": "D", "contestant": "contestant", "median_us": "median, µs", "against_torch_fp32": "times torch fp32's speed",
    "entries": "entries", "failures": "failures", "queries": "of", "dense": "finished densely",
}  # fmt: skip
QUESTIONS = {
    "contestant": "contestant", "question": "question", "wrong": "wrong", "queries": "of", "rate_below": "rate below, 95 %",
    "proved": "proved", "entries": "entries",
}  # fmt: skip

VERIFIED = {
    "contestant": "engine", "rows": "hidden vectors", "violations": "violations", "worst_off": "worst error, nats",
    "mean_bytes": "bytes a query", "dense_rows": "finished densely",
}  # fmt: skip
BANDWIDTH = {
    "query": "query", "vocab": "classes", "dim": "dimensions", "gigabytes_per_second": "GB/s",
    "plain_gigabytes_per_second": "plain read, GB/s", "share": "share",
}  # fmt: skip
FLAT = {
    "kind": "layer", "vocab": "classes", "dim": "dimensions", "batch": "at once", "full_seconds": "full, s",
    "cascade_seconds": "cascade, s", "over": "cascade over full", "dense": "finished densely",
}  # fmt: skip

STEP = {
    "layer": "layer", "torch_us": "torch bf16, µs", "headlong_us": "headlong, µs", "speed_up": "times faster",
    "nucleus_median": "median nucleus", "nucleus_p90": "90 %", "nucleus_largest": "largest", "rows": "exact rows",
    "dense": "finished densely",
}  # fmt: skip
BUILD = {
    "layer": "layer", "promise": "promise", "compile_s": "compile, s", "yardstick_s": "two products and eigh, s",
    "ratio": "ratio",
    "kept": "kept beside it, of the bfloat16 layer", "rounds": "rounds",
}  # fmt: skip
COLD = {
    "method": "method", "median_us": "median, µs", "q25_us": "25 %", "q75_us": "75 %", "p90_us": "90 %",
    "speed_up": "times the fastest dense product",
}  # fmt: skip
ADAPT = {
    "promise": "promise", "engine": "engine", "share_read": "of float32's bytes", "a loop, us": "in a loop, µs",
    "cold caches, us": "cold, µs",
}  # fmt: skip
MASKS = {"layer": "layer", "mask": "mask", "median_us": "median, µs", "over_no_mask": "of the unmasked time", "wrong": "wrong"}
FAILURES = {
    "layer": "layer", "promise": "promise", "over": "over", "promised": "rate promised", "failures": "failures",
    "trials": "trials", "low": "at least", "high": "at most", "worst": "worst error", "share_read": "of float32's bytes",
}  # fmt: skip
GROWTH = {
    "vocab": "classes", "dim": "dimensions", "median_us": "median, µs", "bytes": "bytes", "gigabytes_per_second": "GB/s",
    "sum_gigabytes_per_second": "a sum of them, GB/s", "rows": "exact rows", "build_s": "build, s",
}  # fmt: skip
BLOCKS: dict[str, Callable[[], str]] = {
    **processors.BLOCKS,
    **integrations.BLOCKS,
    **device.BLOCKS,
    **experts.BLOCKS,
    **evidence.BLOCKS,
    **heads.BLOCKS,
    **synthetic.BLOCKS,
    **first_screen.BLOCKS,
    **curves.BLOCKS,
    "band-costs": band_costs,
    "batches": batches,
    "data-sets": data_sets,
    "demo": demo,
    "commands": commands,
    "reference": reference,
    "step-costs": step_costs,
    "trainings": trainings,
    "adaptive-time-ptb": plain("adaptive-time-ptb", ADAPTIVE_TIME),
    "adaptive-time-wikitext2": plain("adaptive-time-wikitext2", ADAPTIVE_TIME),
    "adaptive-coverage": plain("adaptive-coverage", COVERAGE),
    "verified": runs("verify-wikitext2", VERIFIED),
    "bandwidth": runs("bandwidth", BANDWIDTH),
    "flat": runs("flat", FLAT),
    "svd": one_paper_table("vlasova-softmax:svd"),
    "svd-lstm": one_paper_table("vlasova-softmax:svd-lstm"),
    "svd-ptb": one_paper_table("vlasova-softmax:svd-ptb"),
    "finished": one_paper_table("ganea2019:finished"),
    "adaptive-lowdim": plain("adaptive-lowdim", LOWDIM),
    "adaptive-questions": plain("adaptive-questions", QUESTIONS),
    "kernel-density": plain("kernel-density", DENSITY),
    "sampling-step": plain("sampling-step", STEP),
    "masks": plain("masks", MASKS),
    "cold-calls": plain("cold-calls", COLD),
    "build-costs": plain("build-costs", BUILD),
    "promise-failures": plain("promise-failures", FAILURES),
    "growth": plain("growth", GROWTH),
    "adapt": plain("adapt", ADAPT),
}


def filled(text: str) -> str:
    """The text with every block made anew."""

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- begin {name} -->\n{BLOCKS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", fill, text, flags=re.DOTALL)


def made() -> Iterator[tuple[Path, str, str]]:
    """Every generated file: where it is, what it says, what it should say."""
    for name in FILES:
        old = (ROOT / name).read_text(encoding="utf-8")
        yield ROOT / name, old, filled(old)
    for name, picture in first_screen.PICTURES.items():
        file = ROOT / name
        yield file, file.read_text(encoding="utf-8") if file.is_file() else "", picture()


def main() -> int:
    stale = []
    for file, old, new in made():
        if new != old:
            stale.append(str(file.relative_to(ROOT)))
            if "--check" not in sys.argv:
                file.write_text(new, encoding="utf-8")
    if stale:
        sys.stdout.write(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale)}\n")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
