"""The printed cells of AdaptiveSoftmax's language models and classifiers, recomputed from its authors' own rows.

    git clone https://github.com/ThrunGroup/adaptiveSoftmax CLONE
    python -m studies reproduce baharav2024:logs CLONE results/studies/baharav2024.logs.json

Their repository once held a row for each query: entries read in all and by either stage alone, the best class and its
probability, found and true. What follows from the rows is kept here, the rows are not: the repository has no licence. Gains
are means over queries of entries read, over V times the coordinates that are not 0.
"""

from __future__ import annotations

import csv
import io
import subprocess
from pathlib import Path
from statistics import fmean, median
from typing import Any

from headlong.errors import DataError
from studies.papers.scripts import keep

TEXTS = {"wikitext": "wikitext2", "penn_treebank": "ptb"}
NAMES = {"gpt2": "gpt2", "Meta-Llama-3-8B": "llama3-8b", "Mistral-7B": "mistral-7b", "gemma-7b": "gemma-7b"}


def git(clone: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=False)
    return done.stdout


def files(clone: Path) -> dict[tuple[str, str, str], str]:
    """Model, data and delta of every file of rows in the history, and its blob."""
    found: dict[tuple[str, str, str], str] = {}
    words = ("log", "--all", "-m", "--raw", "--no-abbrev", "--format=", "--diff-filter=A", "--", "*.csv")
    for line in git(clone, *words).splitlines():
        facts, _, path = line.partition("\t")
        parts, blob = path.split("/"), facts.split(" ")[3]
        if parts[:2] == ["experiments", "mnl_results"] and path.endswith("raw.csv"):
            found["classifier", parts[3], f"0.01, {parts[2][:5]}"] = blob
        elif parts[:2] == ["experiments", "llm_results"] and parts[2] in TEXTS:
            name = next(name for part, name in NAMES.items() if part in parts[4])
            found[name, TEXTS[parts[2]], parts[3].removeprefix("delta_")] = blob
    return found


def summed(rows: list[dict[str, str]]) -> dict[str, Any]:
    """What the paper prints of its rows, and how they fail."""
    classes, dim = int(rows[0]["n"]), int(rows[0]["d"])
    full = [classes * float(row["d_not_sparse"]) for row in rows]

    def gain(column: str) -> float:
        return round(1 / fmean(float(row[column]) / all_ for row, all_ in zip(rows, full, strict=True)), 3)

    true, guess = ([float(row[name].strip("[]")) for row in rows] for name in ("p_best_arm", "p_hat_best_arm_hat"))
    right = [row["best_arm_hat"] == row["best_arm"] for row in rows]
    off = [got / wanted - 1 for got, wanted in zip(guess, true, strict=True)]
    success = fmean(one and abs(far) <= 0.3 for one, far in zip(right, off, strict=True))
    return {
        "queries": len(rows), "classes": classes, "dim": dim, "gain": gain("budget_total"), "success": round(100 * success, 2),
        "argmax_right": round(100 * fmean(right), 2),
        "too_low": sum(far < -0.3 for far in off), "too_high": sum(far > 0.3 for far in off),
        "normaliser_gain": gain("budget_log_norm_estimation"), "argmax_gain": gain("budget_best_arms"),
        "median_probability": round(median(true), 3),
    }  # fmt: skip


def main(clone: str, path: str) -> None:
    found = files(Path(clone))
    if not found:
        raise DataError(f"{clone} has no rows of runs in its history; expected a clone of ThrunGroup/adaptiveSoftmax")
    runs = []
    for (model, data, delta), blob in sorted(found.items()):
        rows = list(csv.DictReader(io.StringIO(git(Path(clone), "cat-file", "-p", blob))))
        runs.append({"model": model, "data": data, "delta": delta, **summed(rows)})
    keep(path, "baharav2024:logs CLONE", {"runs": runs})
