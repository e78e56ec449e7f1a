"""The tables of the pages on training: what every recipe reached, and what a step costs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tables_records import left, missing, record

from headlong.report.tables import ReportTable, markdown
from studies import models

RECIPES = Path(models.__file__).parent / "recipes"


def trainings() -> str:
    """Every shipped recipe: what its committed run reached, or that there is none."""
    rows = []
    for name in sorted(file.stem for file in RECIPES.glob("*.toml")):
        run = f"train-{name}"
        rows.append((name, "not run", *[""] * 5) if missing(run) else _trained(record(run)))
    titles = ("recipe", "test", "parameters", "layer", "epochs", "seconds", "processor seconds")
    return left(ReportTable("", titles, tuple(rows)))


def _trained(record: dict[str, Any]) -> tuple[str, ...]:
    test, layer = record["test"], record["layer"]
    figures = [f"{name} {test[name]:.2f}" for name in ("perplexity", "accuracy", "bleu") if name in test]
    figures += [f"`{test['signature']}`"] if "signature" in test else []
    shape = f"{layer['vocab']:,} x {layer['dim']}"
    counts = (f"{record['parameters']:,}", shape, str(len(record["curve"])))
    return record["name"], ", ".join(figures), *counts, f"{record['seconds']:,.0f}", f"{record['cpu_seconds']:,.0f}"


def step_costs() -> str:
    """The dense head's step and the loop's throughput beside plain PyTorch."""
    if text := missing("training-costs"):
        return text
    found = record("training-costs")
    shape, made = found["shape"], found["environment"]
    names = {"naive": "`cross_entropy(linear(...))`", "whole": "dense head, one piece", "chunked": "dense head, in pieces"}
    rows = [
        (
            names[path],
            f"{rise / 2**20:.0f} MiB",
            f"{rise / found['memory_rise']['naive']:.2f}",
            f"{found['time_ratio'][path]:.2f}",
        )
        for path, rise in found["memory_rise"].items()
    ]
    table = markdown(ReportTable("", ("one step", "memory", "of plain", "time, of plain"), tuple(rows)))
    return (
        f"V = {shape['vocab']:,}, N = {shape['rows']:,}, D = {shape['dim']}, {shape['dtype']}, {made['threads']} threads, "
        f"{made['cpu']}, torch {made['versions']['torch']}, {made['date']}; `{found['command']}`.\n\n{table}\n\n"
        f"Training steps of the same models, same batches, 10,000 classes, beside plain PyTorch with all logits at once:\n\n"
        f"{markdown(model_speeds(found['models']))}"
    )


def model_speeds(models: dict[str, Any]) -> ReportTable:
    """One row for each model and type: medians of both, and the median of the ratios of a round."""
    rows = []
    for name, one in models.items():
        ours, plain = (1e3 * statistics.median(one["step_seconds"][who]) for who in ("headlong", "plain"))
        rows.append((name, f"{ours:.0f} ms", f"{plain:.0f} ms", f"{one['speed']:.2f}"))
    return ReportTable("", ("model", "headlong", "plain PyTorch", "speed, of plain"), tuple(rows))


def band_costs() -> str:
    """Our bands beside torch's: medians of one run."""
    if text := missing("band-costs"):
        return text
    found = record("band-costs")
    made, shape, names = found["environment"], found["shape"], ("ours", "torch")
    losses = found["losses"]
    rows = [("loss of the first step", *(f"{losses[name][0]:.6f}" for name in names))]
    rows += [(f"loss of step {len(losses['ours'])}", *(f"{losses[name][-1]:.4f}" for name in names))]
    rows += [(f"a training step, {shape['rows']:,} rows", *(_milliseconds(found["step"][name]) for name in names))]
    for batch, seconds in found["topk"].items():
        rows += [(f"top-10, {batch} at once", *(_milliseconds(seconds[name]) for name in names))]
    for word, said in found.get("tried", {}).items():
        rows.append((f"loss under {word}", *(said[name].replace("|", " ") for name in names)))
    table = left(ReportTable("", ("", "headlong", "torch"), tuple(rows)))
    about = f"{shape['vocab']:,} classes x {shape['dim']}, cutoffs {found['cutoffs']}, {made['threads']} threads"
    return f"{table}\n\n{about}, {made['cpu']}, torch {made['versions']['torch']}, {made['date']}."


def _milliseconds(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.3g} ms"


BLOCKS = {"band-costs": band_costs, "step-costs": step_costs, "trainings": trainings}
