"""AdaptiveSoftmax (Baharav et al., NeurIPS 2024): its tables.

::

    gain     = 1 / mean over queries of (entries of W touched / entries of a full read)
    success  : the argmax is right and |p^ - p| / p <= 0.3

``published`` has its multipliers fitted on 200 queries, as all published gains have; ``published, shared`` leaves half of the
failures that delta allows there to the normaliser; ``theory`` has multipliers of 1; ``sound`` has constants that hold on both
sides of p (pages/adaptive.md), fitted as ``published``. At delta = 1 % all of them get 400 vectors instead of the paper's 200,
which cannot show a rate of 1 %. A full read counts coordinates of no weight out. ``rate_above`` and ``rate_below``: Clopper
and Pearson, 95 % each.
GPT-2, Llama-3, Mistral and Gemma are run from a local folder of weights (``--model``, ``checkpoint.py``) or wherever somebody
has put their harvested heads; our own layers stand beside them under their own names. Figures of language models are interim
logs of the authors', so a miss may be theirs or ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong import Layer
from headlong.bench.measure import Progress
from headlong.store import open_file
from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.adaptive_softmax.clopper_pearson import clopper_pearson
from studies.papers.verdicts import Expected

Doubles = NDArray[np.float64]

EPS = 0.3
DELTAS = (0.1, 0.05, 0.01)
TUNING, CERTIFYING, TESTED = 200, 400, 800
"""Vectors to fit on, those at a delta that so few cannot show, and queries to test on."""
HARVESTED, WINDOW = 8192, 1024
"""Hidden vectors of a language model's test text, and tokens of a window."""
TEXTS = {"wikitext2": "wikitext-2", "ptb": "penn-treebank"}
VARIANTS = ("published", "published, shared", "theory", "sound")
SOURCE = "interim author logs and a public review, as quoted in notes; unverified against the paper"


def setting(variant: str, delta: float) -> Setting:
    return (("variant", variant), ("delta", f"{delta:g}"))


def run(layer_file: str, hidden_file: str, split: str, context: Context) -> Iterator[Row]:
    """The variants at each delta, on queries that had no part in tuning."""
    layer = Layer.load(context.data / layer_file, weight=_weight(context, layer_file))
    vectors = open_file(context.data / hidden_file).read(f"{split}_hidden")
    order = np.random.default_rng(0).permutation(len(vectors))
    fitted = min(CERTIFYING, len(order) // 2)
    tested = min(TESTED, context.queries or TESTED, max(1, len(order) - fitted))
    queries = vectors[np.sort(order[fitted : fitted + tested])].astype(np.float64)
    exact = _exponents(layer, queries)
    progress, done = context.stage("variants"), 0
    for delta in DELTAS:
        count = min(fitted, TUNING if delta > 0.01 else CERTIFYING)
        tuning = vectors[order[:count]].astype(np.float64)
        for variant in VARIANTS:
            if setting(variant, delta) in context.done or not context.wants(setting(variant, delta)):
                continue
            yield Row(setting(variant, delta), measured(layer, variant, delta, tuning, queries, exact))
            done += 1
            progress(done, len(DELTAS) * len(VARIANTS))


def _weight(context: Context, file: str) -> str:
    names = open_file(context.data / file).tensors
    return "weight" if "weight" in names else "lm_head.weight"


def _exponents(layer: Layer, queries: Doubles) -> Doubles:
    z = queries @ np.asarray(layer.weight, np.float64).T
    return np.asarray(layer.link(z if layer.bias is None else z + layer.bias))


def measured(layer: Layer, variant: str, delta: float, tuning: Doubles, queries: Doubles, exact: Doubles) -> dict[str, float]:
    """Gain, successes and what they say of the failure rate. Each entry that is read counts four bytes."""
    vectors, share = None if variant == "theory" else tuning, 0.5 if variant == "published, shared" else 1.0
    engine = hl.compile(
        layer, method="adaptive", eps=math.log1p(EPS), delta=delta, published=variant != "sound", calibration=vectors,
        arm_share=share,
    )  # fmt: skip
    top = engine.topk(queries, 1)
    touched = top.cost.bytes / 4 / np.maximum(layer.vocab * weighing(layer, queries), 1)
    best = exact.argmax(axis=1)
    true = exact.max(axis=1) - np.logaddexp.reduce(exact, axis=1)
    wrong = int(((top.ids[:, 0] != best) | (np.abs(np.expm1(top.log_probs[:, 0] - true)) > EPS)).sum())
    assert engine.plan.arrays is not None
    multipliers = engine.plan.arrays["multipliers"]
    return {
        "gain": round(1 / float(touched.mean()), 4),
        "success": round(100 * (1 - wrong / len(queries)), 3),
        "failures": wrong,
        "queries": len(queries),
        "rate_above": round(1 - clopper_pearson(len(queries) - wrong, len(queries)), 5),
        "rate_below": round(clopper_pearson(wrong, len(queries)), 5),
        "vectors": len(tuning),
        "arm": round(float(multipliers[0]), 8),
        "sum": round(float(multipliers[1]), 8),
    }


def weighing(layer: Layer, queries: Doubles) -> NDArray[np.int64]:
    """Coordinates of each query that can be drawn: those where neither the query nor the column is 0."""
    heavy = np.abs(np.asarray(layer.weight, np.float64)).sum(axis=0) > 0
    return np.asarray(((queries != 0) & heavy).sum(axis=1))


def _language(queries: int, *cells: tuple[float, float, float]) -> dict[Setting, dict[str, Expected]]:
    """Gains from the printed one's last digit on; successes within two standard errors of both samples. More is better."""
    found: dict[Setting, dict[str, Expected]] = {}
    for delta, gain, success in cells:
        rate = success / 100
        error = 200 * math.sqrt(max(rate * (1 - rate), 1 / queries**2) * (1 / queries + 1 / TESTED))
        limits = {"gain": Expected(gain, 1e9, 0.05), "success": Expected(success, 100.0, round(error, 2))}
        found[setting("published", delta)] = limits
    return found


LOGS: dict[tuple[str, str], tuple[int, tuple[tuple[float, float, float], ...]]] = {
    ("gpt2", "wikitext2"): (462, ((0.1, 8.30, 89.2), (0.05, 7.67, 94.8), (0.01, 6.87, 98.1))),
    ("gpt2", "ptb"): (107, ((0.1, 7.84, 92.5), (0.05, 7.34, 97.2), (0.01, 7.09, 98.1))),
    ("llama3-8b", "wikitext2"): (465, ((0.1, 17.8, 84.9), (0.05, 13.5, 92.9), (0.01, 9.86, 98.5))),
    ("llama3-8b", "ptb"): (94, ((0.1, 17.8, 81.9), (0.05, 15.0, 89.4), (0.01, 6.68, 98.9))),
    ("mistral-7b", "wikitext2"): (554, ((0.1, 31.0, 90.3), (0.05, 27.2, 93.5), (0.01, 19.4, 98.4))),
    ("mistral-7b", "ptb"): (114, ((0.1, 19.1, 91.2), (0.05, 14.4, 96.5), (0.01, 10.1, 100.0))),
    ("gemma-7b", "wikitext2"): (465, ((0.1, 5.33, 89.2), (0.05, 5.38, 89.9), (0.01, 3.30, 99.8))),
    ("gemma-7b", "ptb"): (83, ((0.1, 4.87, 94.0), (0.05, 3.85, 97.6))),
}
"""Model, text: queries tested; delta, gain, successes in per cent."""


def planned() -> list[Setting]:
    return [setting(variant, delta) for delta in DELTAS for variant in VARIANTS]


def _register(name: str, claim: str, folder: str, split: str, more: dict[str, Any] | None = None) -> None:
    layer, hidden = f"{folder}/layer.safetensors", f"{folder}/hidden.safetensors"
    if folder.endswith("gpt512"):
        layer, hidden = f"{folder}.safetensors", f"{folder}.hidden.safetensors"
    rows = partial(run, layer, hidden, split)
    register(PaperTable("baharav2024", name, claim, SOURCE, (layer, hidden), rows, planned=planned, **(more or {})))


def from_weights(folder: str, text: str, model: Path, root: Path, stage: Callable[[str], Progress]) -> None:
    """The layer and hidden vectors of a Hugging Face folder, asked about the test text; nothing where they are there."""
    from headlong.integrations.harvest import harvest
    from studies.data import load
    from studies.data.text import END

    if (root / folder / "hidden.safetensors").is_file():
        return
    corpus = load(text).content
    words = corpus.vocabulary.words
    # a word is at least one token in any tokenizer that keeps them apart; twice as many are enough either way
    read = " ".join("\n" if words[i] == END else words[i] for i in corpus.test[: 2 * HARVESTED + 2].tolist())
    harvest(model, {"test": read}, root / folder, HARVESTED, window=WINDOW, stage=stage)


DIGITS = "the paper's network on MNIST, trained on 6,000 images: 25,088 features, of which fewer are read"
_register("mnist", DIGITS, "heads/baharav-mnist", "test")

OURS = "our own layer in place of the paper's language models"
_register("wikitext2-gpt", OURS, "heads/wikitext2-gpt512", "valid")
for _name in ("wikitext2-lstm", "ptb-lstm"):
    _register(_name, OURS, f"heads/{_name}", "valid")
for (_model, _text), (_queries, _cells) in LOGS.items():
    _folder = f"heads/{_model}-{_text}"
    _claim = "more than 10 times fewer entries on most language models, up to 30 times"
    _more = {"expected": _language(_queries, *_cells), "prepare": partial(from_weights, _folder, TEXTS[_text])}
    _register(f"{_model}-{_text}", _claim, _folder, "test", _more)
