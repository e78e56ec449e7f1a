"""AdaptiveSoftmax (Baharav, Tiwari, Singh, Zhang; NeurIPS 2024): its tables, and the same questions put to our own race.

::

    gain     = 1 / mean over queries of (entries of W touched / entries of a full read)
    success  : the argmax is right and |p^ - p| / p <= 0.3

``published`` has its multipliers fitted on 200 queries, as all published gains have; ``published, shared`` leaves half of
the failures that delta allows there to the normaliser; ``theory`` has multipliers of 1. ``race`` is our engine with
calibrated widths, which counts what it reads the same way. A full read counts coordinates of no weight out.
GPT-2, Llama-3, Mistral and Gemma are run wherever somebody has put their harvested heads (``headlong harvest``); our own
layers stand beside them under their own names. Figures are interim logs of the authors', so a miss may be theirs or ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import hidden64
from headlong.compile import compile as compile_engine
from headlong.engines.adaptive.fit import failed
from headlong.engines.adaptive.reader import PublishedReader, RaceReader
from headlong.engines.adaptive.tuning import clopper_pearson
from headlong.layers.matrix import Layer
from headlong.store import open_file
from headlong.studies.papers import Context, Expected, PaperTable, Row, Setting, register

Doubles = NDArray[np.float64]

EPS = 0.3
DELTAS = (0.1, 0.05, 0.01)
TUNING, TESTED, LEARNING = 200, 800, 2000
VARIANTS = ("published", "published, shared", "theory", "race")
SOURCE = "interim author logs and a public review, as quoted in notes; unverified against the paper"


def setting(variant: str, delta: float) -> Setting:
    return (("variant", variant), ("delta", f"{delta:g}"))


def run(layer_file: str, hidden_file: str, split: str, context: Context) -> Iterator[Row]:
    """The variants at each delta, on queries that had no part in tuning."""
    layer = Layer.load(context.data / layer_file, weight=_weight(context, layer_file))
    vectors = open_file(context.data / hidden_file).read(f"{split}_hidden")
    order = np.random.default_rng(0).permutation(len(vectors))
    tested = min(TESTED, context.queries or TESTED, max(1, len(order) - TUNING))
    parts = (order[:TUNING], order[TUNING : TUNING + tested], order[TUNING + tested :][:LEARNING])
    tuning, queries, learning = (hidden64(vectors[np.sort(part)], layer.dim) for part in parts)
    exact = _exponents(layer, queries)
    progress, done = context.stage("variants"), 0
    for delta in DELTAS:
        for variant in VARIANTS:
            found = measured(layer, variant, delta, tuning, learning, queries, exact)
            if found is not None:
                yield Row(setting(variant, delta), found)
            done += 1
            progress(done, len(DELTAS) * len(VARIANTS))


def _weight(context: Context, file: str) -> str:
    names = open_file(context.data / file).tensors
    return "weight" if "weight" in names else "lm_head.weight"


def _exponents(layer: Layer, queries: Doubles) -> Doubles:
    z = queries @ np.asarray(layer.weight, np.float64).T
    return np.asarray(layer.link(z if layer.bias is None else z + layer.bias))


def measured(
    layer: Layer, variant: str, delta: float, tuning: Doubles, learning: Doubles, queries: Doubles, exact: Doubles
) -> dict[str, float] | None:
    """Gain, successes and what they say of the failure rate; None where too few vectors are left to learn widths from."""
    eps = math.log1p(EPS)
    full = len(queries) * layer.vocab * layer.dim
    if variant == "race":
        if len(learning) < 2 * (math.ceil(2 / delta) - 1):
            return None
        engine = compile_engine(
            layer, method="adaptive", eps=eps, delta=delta, delta_ids=delta, widths="calibrated", calibration=learning
        )
        top = engine.topk(queries, 1)
        values, ids, lse = top.log_probs + top.lse[:, None], top.ids, top.lse
        reader = engine._executor  # noqa: SLF001 - counting entries is no verb of engines
        assert isinstance(reader, RaceReader)
        entries, expensive = reader.entries(queries, 1, eps, delta / 2)
        touched, multipliers = float(entries.sum() + expensive.sum() * layer.vocab * layer.dim), (1.0, 1.0)
        read = touched / full
    else:
        vectors, share = None if variant == "theory" else tuning, 0.5 if variant == "published, shared" else 1.0
        engine = compile_engine(
            layer, method="adaptive", eps=eps, delta=delta, published=True, calibration=vectors, arm_share=share
        )
        search = engine._executor  # noqa: SLF001
        assert isinstance(search, PublishedReader)
        values, ids, lse, pulls, whole, *_ = search.search(queries, 1, None, 2)
        read = float(np.mean(pulls / np.maximum(whole, 1)))
        multipliers = (search.rules.arm, search.rules.sum)
    wrong = int(failed(values, ids, lse, exact, EPS).sum())
    return {
        "gain": round(1 / read, 4),
        "success": round(100 * (1 - wrong / len(queries)), 3),
        "failures": wrong,
        "queries": len(queries),
        "rate_below": round(clopper_pearson(wrong, len(queries)), 5),
        "arm": round(multipliers[0], 8),
        "sum": round(multipliers[1], 8),
    }


def _published(delta: float, gain: float, low: float, high: float | None = None) -> dict[Setting, dict[str, Expected]]:
    """A gain within a tenth of the published one, successes within a point."""
    success = Expected(low, low if high is None else high, 1.0)
    return {setting("published", delta): {"gain": Expected(gain, gain, gain / 10), "success": success}}


def _language(*cells: tuple[float, float, float]) -> dict[Setting, dict[str, Expected]]:
    found: dict[Setting, dict[str, Expected]] = {}
    for delta, gain, success in cells:
        found |= _published(delta, gain, success)
    return found


FIGURES: dict[tuple[str, str], dict[Setting, dict[str, Expected]]] = {
    ("gpt2", "wikitext2"): _language((0.1, 8.30, 89.2), (0.05, 7.67, 94.8), (0.01, 6.87, 98.1)),
    ("gpt2", "ptb"): _language((0.1, 7.84, 92.5), (0.05, 7.34, 97.2), (0.01, 7.09, 98.1)),
    ("llama3-8b", "wikitext2"): _language((0.1, 17.8, 84.9), (0.05, 13.5, 92.9), (0.01, 9.86, 98.5)),
    ("llama3-8b", "ptb"): _language((0.1, 17.8, 81.9), (0.05, 15.0, 89.4), (0.01, 6.68, 98.9)),
    ("mistral-7b", "wikitext2"): _language((0.1, 31.0, 90.3), (0.05, 27.2, 93.5), (0.01, 19.4, 98.4)),
    ("mistral-7b", "ptb"): _language((0.1, 19.1, 91.2), (0.05, 14.4, 96.5), (0.01, 10.1, 100.0)),
    ("gemma-7b", "wikitext2"): _language((0.1, 5.33, 89.2), (0.05, 5.38, 89.9), (0.01, 3.30, 99.8)),
    ("gemma-7b", "ptb"): _language((0.1, 4.87, 94.0), (0.05, 3.85, 97.6)),
}


def _register(name: str, claim: str, layer: str, hidden: str, split: str, expected: dict[Setting, dict[str, Expected]]) -> None:
    register(
        PaperTable("baharav2024", name, claim, SOURCE, (layer, hidden), partial(run, layer, hidden, split), expected)
    )


CLASSIFIER = "at delta 1 % a classifier's layer of 25,088 features is read {} times less often, with failures within delta"
for _name, _times, _expected in (
    ("mnist", "8.2", _published(0.01, 8.2, 99.4, 99.6)),
    ("eurosat", "4.55", _published(0.01, 4.55, 98.4)),
):
    _folder = f"heads/baharav-{_name}"
    _claim = CLASSIFIER.format(_times)
    _register(_name, _claim, f"{_folder}/layer.safetensors", f"{_folder}/hidden.safetensors", "test", _expected)

OURS = "our own layer in the place of the paper's language models"
_register("wikitext2-gpt", OURS, "heads/wikitext2-gpt512.safetensors", "heads/wikitext2-gpt512.hidden.safetensors", "valid", {})
for _name in ("wikitext2-lstm", "ptb-lstm"):
    _register(_name, OURS, f"heads/{_name}/layer.safetensors", f"heads/{_name}/hidden.safetensors", "valid", {})
for (_model, _text), _expected in FIGURES.items():
    _folder = f"heads/{_model}-{_text}"
    _claim = "more than 10 times fewer entries on most language models, up to 30 times"
    _register(f"{_model}-{_text}", _claim, f"{_folder}/layer.safetensors", f"{_folder}/hidden.safetensors", "test", _expected)
