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
from studies.papers.doubly_sparse.tables import ALL
from studies.papers.monotonic_softmax.beside_printed import beside
from studies.papers.monotonic_softmax.language_models import STUDIES as MODELS
from studies.papers.monotonic_softmax.language_models import TRAINED_HEADS
from studies.papers.monotonic_softmax.talk import printed as printed_share
from studies.papers.shown import CELLS, counted, markdown
from studies.papers.svd_hierarchical.hierarchical import FOLDERS, FULL, HEADS, SVD, TUNED


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
    large = ("smollm2-wikitext2", "smollm2-ptb", "gemma-wikitext2", "qwen-wikitext2")
    for name in (*large, "mnist", "eurosat", "wikitext2-gpt", "ptb-short", "wikitext2-short"):
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


LAYERS = ("smollm2", "gemma", "qwen", "characters", "lstm", "ptb-short", "wikitext2-short")


def svd() -> str:
    """SVD-softmax, plain and weighted, N = V/10: of the ten best, and the divergence; losses at D/8 where targets are known."""
    found = []
    for name in LAYERS:
        got = {tuple(line["setting"].values()): line["got"] for line in rows(f"vlasova-softmax.svd-{name}")}
        for rotation in ("plain", "weighted"):
            mine = {width: got[rotation, width, "V/10"] for width in ("D/16", "D/8", "D/4") if got}
            loss = [f"{mine['D/8'][key]:.4g}" for key in ("loss", "full_loss") if "loss" in mine.get("D/8", {})]
            if mine:
                cells = [f"{one['top10']:.4g}, {one['kl']:.2g}" for one in mine.values()]
                found.append((name, rotation, *cells, " of ".join(loss)))
    return markdown(("layer", "rotation", "D/16: of the ten best, KL", "D/8", "D/4", "loss at D/8, of the full"), found)


def large() -> str:
    """SVD-softmax, AdaptiveSoftmax as published at each delta, and ours on the same large heads."""
    file = RESULTS / "large-heads.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else []
    found = []
    for one in runs:
        about = f"{one['layer']} ({one['vocab']:,} x {one['dim']})"
        if one["method"] == "ours":
            for line in rows(f"baharav2024.{one['name']}-wikitext2"):
                got, delta = line["got"], float(line["setting"]["delta"])
                right = 1 - got["wrong_argmax"] / got["queries"]
                found.append((about, f"AdaptiveSoftmax, delta {delta:.0%}", f"{1 / got['gain']:.1%}", "", f"{right:.0%}", ""))
        shown = (f"{one['read']:.1%}", f"{one['rows']:.2%}", f"{one['top1']:.0%}", f"{one['top10']:.4g}")
        found.append((about, one["method"], *shown))
    return markdown(("head", "method", "of a float32 layer's bytes", "rows", "the best is right", "of the ten best"), found)


def experts() -> str:
    """Learned experts and their controls, means over seeds: a line for each backbone."""
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for line in rows("liao2019.learned"):
        groups.setdefault(line["setting"]["task"], {}).setdefault(line["setting"]["method"], []).append(line["got"])

    def cell(got: list[Mapping[str, Any]]) -> str:
        top1, flops = (fmean(one[name] for one in got) for name in ("top1", "flops"))
        return f"{100 * top1:.2f}" + (f", {flops:.3g}x" if flops > 1 else "") + _seeds(len(got))

    found = [(task, *(cell(of[one]) if one in of else "" for one in ALL)) for task, of in sorted(groups.items())]
    return markdown(("backbone", *ALL), found)


def _seeds(count: int) -> str:
    return f" ({count})" if count > 1 else ""


def heads() -> str:
    """How far each head ends from the softmax in each training, beside the talk's."""
    trained, found = {table: rows(f"ganea2019.{table}") for table in MODELS}, []
    for head in TRAINED_HEADS:
        ours = [beside(trained[table], head, "test") for table in MODELS]
        shown = ["" if one is None else f"{one.shown()}, {one.share:.3f}{_seeds(one.seeds)}" for one in ours]
        talk = [printed_share(corpus, head) for corpus in ("ptb", "wikitext2")]
        found.append((head, *shown, *("" if one is None else f"{one:.3f}" for one in talk)))
    return markdown(("head", "PTB, six epochs", "PTB, 400 steps", "WikiText-2, 400 steps", "PTB, print", "WT2, print"), found)


def hierarchical() -> str:
    """Heads on one frozen backbone each: perplexity, how many of the ten best, and rows that are read for them."""
    tables: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, (_, about) in FOLDERS.items():
        corpus = "WikiText-2" if "wikitext2" in name else "Penn Treebank"
        if made := {one["setting"]["head"]: one["got"] for one in rows(f"vlasova-softmax.{name}")}:
            tables[f"{corpus}, {about}"] = made

    def cell(got: Mapping[str, Any]) -> str:
        return ", ".join(f"{got[name]:.4g}" for name in ("perplexity", "top10", "rows") if got)

    heads = (FULL, TUNED, SVD, *HEADS)
    return markdown(("head", *tables), [(head, *(cell(of.get(head, {})) for of in tables.values())) for head in heads])


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
    "experts": experts, "heads": heads, "large-heads": large,
    "token-times": token_times, "hierarchical": hierarchical,
    **{f"printed-{STUDIES[paper].page}": partial(printed, paper) for paper in STUDIES},
}  # fmt: skip
