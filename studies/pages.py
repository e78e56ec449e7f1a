"""What the pages on the studies count and quote, from the rows in ``results/studies``: the blocks between
``<!-- begin NAME -->`` and ``<!-- end NAME -->`` of ``studies/pages/*.md``. No number in them is typed by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from studies.papers.cells import RESULTS, STUDIES, account, built, counts, lines_of, summary
from studies.papers.monotonic_softmax.beside_printed import SOFTMAX, beside
from studies.papers.monotonic_softmax.language_models import STUDIES as MODELS
from studies.papers.monotonic_softmax.talk import printed as printed_share
from studies.papers.shown import CELLS, counted, markdown


def study_counts() -> str:
    """A line for each study: how many figures it prints, and what became of them."""
    columns, found = counted({paper: counts(account(paper, RESULTS)) for paper in STUDIES})
    return markdown(columns, [(f"[{STUDIES[paper].about}]({STUDIES[paper].page}.md)", *rest) for paper, *rest in found])


def printed(paper: str) -> str:
    """Every figure that a study prints and that something of ours stands beside, and what the others are of."""
    found = account(paper, RESULTS)
    gone = Counter(
        cell.what.split(" (")[0].rpartition(", ")[0] or cell.what.split(" (")[0] for cell in found if cell.status == "not run"
    )
    named = "; ".join(f"{what} ({count})" if count > 1 else what for what, count in gone.items())
    more = f"`python -m studies list {paper}` says what each takes"
    shown = markdown(CELLS, [cell for cell in found if cell.status != "not run"])
    return f"{shown}\n\n{summary(found)}. Not run: {named}; {more}."


def rows(name: str) -> list[Mapping[str, Any]]:
    return list(lines_of(RESULTS / f"{name}.jsonl"))


def provenance() -> str:
    """How many rows do not name the build that they were run on, by file."""
    bare, every = Counter[str](), 0
    for file in sorted(RESULTS.glob("*.jsonl")):
        made = lines_of(file)
        every += len(made)
        bare[file.name] = sum(not built(line) for line in made)
    each = ", ".join(f"{count} of `{name}`" for name, count in bare.most_common() if count)
    return f"{bare.total()} of the {every} rows do not name both version and commit: {each}."


def adaptive_rates() -> str:
    """Gain and failures of the published search, of its variants at 10 %, and what the failures say of delta."""
    found = []
    for name in ("smollm2-wikitext2", "smollm2-ptb", "mnist", "eurosat", "wikitext2-gpt"):
        for line in rows(f"baharav2024.{name}"):
            got, asked = line["got"], line["setting"]
            if asked["variant"] != "published" and asked["delta"] != "0.1":
                continue
            rate = f"{got['failures'] / got['queries']:.1%} ({got['rate_above']:.1%} to {got['rate_below']:.1%})"
            alone = [f"{got[stage]:.3g}" if stage in got else "" for stage in ("argmax_gain", "normaliser_gain")]
            kinds = [f"{got[kind]:.0f}" if kind in got else "" for kind in ("wrong_argmax", "too_low", "too_high")]
            shown = (f"{got['gain']:.3g}", *alone, rate, " / ".join(kinds) if kinds[0] else "")
            found.append((name, f"{float(asked['delta']):.0%}", asked["variant"], *shown))
    columns = (
        "layer", "delta", "variant", "gain", "best class alone", "normaliser alone", "failures, at 95 %", "wrong / low / high",
    )  # fmt: skip
    return markdown(columns, found)


def authors() -> str:
    """The authors' cells, from their own rows: gains of the whole and of either stage, and how the failures come about."""
    runs = json.loads((RESULTS / "baharav2024.logs.json").read_text(encoding="utf-8"))["runs"]
    found = []
    for run in runs:
        if run["data"] == "wikitext2" or run["model"] == "classifier":
            name = run["data"] if run["model"] == "classifier" else run["model"]
            gains = [f"{run[key]:.3g}" for key in ("gain", "argmax_gain", "normaliser_gain")]
            failures = [f"{run[key]:.1f}" for key in ("success", "argmax_right")]
            found.append((name, run["delta"], str(run["queries"]), *gains, *failures, f"{run['too_low']} / {run['too_high']}"))
    columns = (
        "model", "delta", "queries", "gain", "best class alone", "normaliser alone", "success", "argmax right", "p low / high",
    )  # fmt: skip
    return markdown(columns, found)


def svd() -> str:
    """SVD-softmax, plain and weighted, on a language model that people use and on a text recogniser: N = V/10."""
    found = []
    for name in ("svd-smollm2", "svd-characters", "svd-lstm"):
        for line in rows(f"vlasova-softmax.{name}"):
            got, asked = line["got"], line["setting"]
            if asked["rows"] == "V/10" and asked["width"] in ("D/16", "D/8", "D/4"):
                numbers = [f"{got[key]:.4g}" for key in ("top10", "kl", "z_ratio", "loss", "full_loss")]
                found.append((name.removeprefix("svd-"), asked["rotation"], asked["width"], *numbers))
    return markdown(("layer", "rotation", "W", "of the ten best", "KL", "Z~ / Z", "loss", "full loss"), found)


def experts() -> str:
    """Learned experts and their controls, means over seeds."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in rows("liao2019.learned"):
        groups.setdefault((line["setting"]["task"], line["setting"]["method"]), []).append(line["got"])
    found = []
    for (task, method), got in groups.items():
        means = {name: fmean(one[name] for one in got) for name in ("top1", "flops")}
        hit = f"{fmean(one['hit'] for one in got):.1%}" if "hit" in got[0] else ""
        found.append((task, method, str(len(got)), f"{means['top1']:.4f}", f"{means['flops']:.4g}", hit))
    return markdown(("task", "method", "runs", "top-1", "times fewer FLOPs", "target held"), found)


def heads(table: str) -> str:
    """How far each head of a table ends from the softmax, beside the talk's."""
    trained, shown = rows(f"ganea2019.{table}"), []
    for head in MODELS[table].heads:
        if (found := beside(trained, head, "test")) is not None:
            talk = printed_share(table.partition("-")[0], head)
            shown.append((head, str(found.seeds), found.shown(), f"{found.share:.3f}", "" if talk is None else f"{talk:.3f}"))
    return markdown(("head", "seeds", "test perplexity", f"of the {SOFTMAX}", "printed"), shown)


def hierarchical(part: str = "") -> str:
    """Heads on one frozen backbone."""
    found = []
    for line in rows(f"vlasova-softmax.hierarchical{part}"):
        got = line["got"]
        numbers = [f"{got[name]:.4g}" for name in ("perplexity", "top10", "rows")]
        found.append((line["setting"]["head"], *numbers, f"{got['read']:.1%}"))
    return markdown(("head", "perplexity", "of the ten best", "exact rows", "of a float32 layer's bytes"), found)


def languages() -> str:
    """A tree that people use, asked about lines of a known language."""
    found = [
        (line["setting"]["language"], f"{got['lines']:.0f}", f"{got['right']:.1%}", f"{got['top10']:.4g}", f"{got['rows']:.3g}")
        for line in rows("vlasova-softmax.languages") for got in (line["got"],)
    ]  # fmt: skip
    return markdown(("language", "lines", "right", "of the ten best", "of 175 nodes read"), found)


def token_times() -> str:
    """Medians of calls in a loop, one query each."""
    runs = json.loads((RESULTS / "hierarchical-times.json").read_text(encoding="utf-8"))["runs"]
    flat, found = [name for name in list(runs[0]["milliseconds"])[:3] if name != "cascade"], []  # a method that is gone
    for run in runs:
        medians = {name: f"{parts[1]:.3f}" for name, parts in run["milliseconds"].items()}
        others = "; ".join(f"{name} {median}" for name, median in medians.items() if name not in (*flat, "cascade"))
        found.append((run["layer"], *(medians[name] for name in flat), others))
    return markdown(("layer", *flat, "heads"), found)


BLOCKS: dict[str, Callable[[], str]] = {
    "study-counts": study_counts,
    "provenance": provenance, "adaptive-rates": adaptive_rates, "adaptive-authors": authors, "svd": svd,
    "experts": experts, **{f"heads-{table}": partial(heads, table) for table in MODELS},
    "languages": languages, "token-times": token_times,
    "hierarchical": hierarchical, "hierarchical-wikitext2": partial(hierarchical, "-wikitext2"),
    **{f"printed-{STUDIES[paper].page}": partial(printed, paper) for paper in STUDIES},
}  # fmt: skip
