"""Sentences on expressive heads with figures in them, made from the rows: they change when rows come."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from tables_records import lines, missing, record

from studies.papers.monotonic_softmax.beside_printed import SOFTMAX, Place, places
from studies.papers.monotonic_softmax.language_models import STUDIES
from studies.papers.monotonic_softmax.talk import TABLE


def _side(share: float) -> str:
    """``3.6 % below``"""
    return f"{abs(share - 1):.1%}".replace("%", " %") + (" below" if share < 1 else " above")


def _seeds(place: Place) -> str:
    return f"{place.test.pairs} seed{'s' if place.test.pairs > 1 else ''}"


def six_epochs() -> str:
    """How far each head ends from the softmax, beside what the talk prints, and what is still to be run."""
    found = places("ptb", lines("ganea2019.ptb"))
    if not found:
        return "Not run yet: `python -m studies reproduce ganea2019:ptb`."
    there = sorted((place for place in found if place.test.pairs), key=lambda place: place.test.share)
    each = "; ".join(f"{place.head}: {_side(place.test.share)} ({_seeds(place)})" for place in there if place.head != SOFTMAX)
    talk = {head: row[2] / TABLE["ptb"][SOFTMAX][2] for head, row in TABLE["ptb"].items() if head != SOFTMAX}
    print_ = "; ".join(f"{head}: {_side(share)}" for head, share in sorted(talk.items(), key=lambda one: one[1]))
    wanted = STUDIES["ptb"].heads
    gone = [head for head in wanted if head not in {place.head for place in found}]
    held = sum(place.test.seeds for place in found)
    said = [
        f"- **Test perplexity after six epochs, beside the softmax's**: {each}.",
        f"- **Printed after 500 epochs of an AWD-LSTM**: {print_}. The other heads have no figure in the talk.",
        f"- **Rows**: {held} of {len(wanted) * len(STUDIES['ptb'].seeds)} are there"
        + (f"; no row yet of {'; '.join(gone)}." if gone else "."),
    ]
    return "\n".join(said)


def curves() -> str:
    """How the lead of a PLIF shrinks over its training."""
    if text := missing("train-ptb-lstm", "train-ptb-lstm-plif"):
        return text
    plain, curve = record("train-ptb-lstm"), record("train-ptb-lstm-plif")
    pairs = zip(plain["curve"], curve["curve"], strict=False)
    shares = [mine["valid_perplexity"] / base["valid_perplexity"] for base, mine in pairs]
    tested = curve["test"]["perplexity"] / plain["test"]["perplexity"] if "test" in curve else None
    end = f"; on the test text it ends {_side(tested)}" if tested else ""
    return (
        f"With 256 knots and seed 1, PLIF's perplexity on validation text is {_side(shares[0])} the softmax's after the first "
        f"epoch and {_side(shares[-1])} after epoch {len(shares)}{end}. So most of what it has at first is speed of learning."
    )


def start() -> str:
    """After the first epoch."""
    found = {place.head: place for place in places("ptb-early", lines("ganea2019.ptb-early"))}
    heads = ("PLIF, ours", "PLIF, published", "PLIF, frozen random", "temperature")
    if not set(heads) <= set(found):
        return "Not run yet: `python -m studies reproduce ganea2019:ptb-early`."
    each = "; ".join(f"{head}: {_side(found[head].test.share)}" for head in heads)
    return f"- **Start of training**: test perplexity after the first epoch, beside the softmax's, means of two seeds: {each}."


def synthetic() -> str:
    """Modes found at alpha = 0.01, d = 4 and at the larger dimensions."""
    rows = lines("ganea2019.synthetic")
    if not rows:
        return "Not run yet: `python -m studies reproduce ganea2019:synthetic`."
    few = [row for row in rows if (row["setting"]["alpha"], row["setting"]["d"]) == ("0.01", "4")]
    heads = list(dict.fromkeys(row["setting"]["head"] for row in few))
    each = "; ".join(f"{head}: {_range(few, head)}" for head in heads)
    said = [f"- With alpha = 0.01 and d = 4, the likeliest outcome is found in so many of the contexts: {each}."]
    said += [_larger(rows, alpha) for alpha in ("0.01", "0.1")]
    seeds = len({row["setting"]["seed"] for row in rows})
    return "\n".join([*said, f"- From the least to the most of {seeds} seeds."])


def _larger(rows: list[dict[str, Any]], alpha: str) -> str:
    parts = []
    for dim in ("16", "32"):
        mine = [row for row in rows if (row["setting"]["alpha"], row["setting"]["d"]) == (alpha, dim)]
        parts.append(f"at d = {dim} {_range(mine, 'linear')} (linear) and {_range(mine, 'PLIF, 256 knots')} (PLIF, 256 knots)")
    return f"- With alpha = {alpha}, {', '.join(parts)}."


def _range(rows: list[dict[str, Any]], head: str) -> str:
    values = [row["got"]["mode_match"] for row in rows if row["setting"]["head"] == head]
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def finished() -> str:
    """What a bend alone adds to a finished softmax."""
    found = {row["setting"]["curve"]: row["got"]["test"] for row in lines("ganea2019.finished")}
    if not {"none", "PLIF, 256 knots", "temperature"} <= set(found):
        return "Not run yet: `python -m studies reproduce ganea2019:finished`."
    table = TABLE["ptb"]
    talk = table["PLIF, published"][2] / table[SOFTMAX][2]
    bent = [value for curve, value in found.items() if curve.startswith("PLIF")]
    return (
        f"A temperature changes the perplexity of {found['none']:.1f} by {found['temperature'] - found['none']:+.2f}, a PLIF "
        f"by {fmean(bent) - found['none']:+.2f} ({_side(fmean(bent) / found['none'])}). The talk prints {_side(talk)} for a "
        "model that is trained with its curve."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "heads-ptb-said": six_epochs, "heads-ptb-curves-said": curves, "heads-ptb-early-said": start,
    "synthetic-said": synthetic, "finished-said": finished,
}  # fmt: skip
