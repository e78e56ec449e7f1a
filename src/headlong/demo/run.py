"""The main job on real input, with nothing downloaded: ``headlong demo``.

::

    trained = layer(Recipe(), stage, train_apart)    # a next-word layer, from the cache or trained now
    record  = contest(trained, settings, stage)      # every method on it, against float64 and a plain softmax

The layer is trained from the text that every Python install carries (:mod:`headlong.demo.corpus`), the queries are
hidden vectors of files that training never saw. Neither torch nor a plotting library is needed; torch takes part as a
rival where it is installed. Times are of this machine and this run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.bench import rivals
from headlong.bench import rows as bench
from headlong.bench.measure import THREAD_VARIABLES, Progress
from headlong.bench.rows import Settings, Stage
from headlong.demo import corpus as builtin
from headlong.demo.model import Recipe, Trained, train
from headlong.engines.reference.codes import CodesInNumPy, kappa_of
from headlong.errors import DataError, HeadlongError
from headlong.layers.matrix import Layer
from headlong.report import plots
from headlong.report.files import bench_page
from headlong.report.tables import ReportTable, percent
from headlong.store import cache_folder, open_file, write_file

FORMAT = "headlong demo layer"
APART = "import sys; from headlong.demo.run import main; main(*sys.argv[1:])"
"""What the process that trains runs."""
METHODS = ("headlong", "headlong, ids only")
"""The default, and without log-probabilities."""
SETTINGS = Settings(batches=(1, 64), queries=512, rounds=10, seconds=5.0)
SHOWN = 5
SILENCE = 0.1
"""Seconds between two lines of progress from the training process."""


def cache_file(recipe: Recipe) -> Path:
    """One file for each recipe and Python version: another standard library is another corpus."""
    facts = json.dumps({"recipe": asdict(recipe), "python": sys.version}, sort_keys=True)
    return cache_folder() / f"demo-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.safetensors"


Say = Callable[[str], None]
Trainer = Callable[[Recipe, Path, Stage], None]
"""Trains the layer of a recipe and writes it to a file."""


def layer(recipe: Recipe, stage: Stage, trainer: Trainer, fresh: bool = False, say: Say | None = None) -> Trained:
    """The trained layer, from the cache unless ``fresh``; a cache that cannot be read is made again, one that cannot be
    written is done without. ``say`` hears which."""
    path, say = cache_file(recipe), say or (lambda text: None)
    if not fresh and path.is_file():
        try:
            found = read(path)
        except HeadlongError:
            say("the cached layer is damaged: training again")
        else:
            say("the layer is one that was trained before; --fresh trains it again")
            return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        say(f"{path.parent} cannot be written: the layer is not kept")
        with tempfile.TemporaryDirectory() as folder:
            trainer(recipe, Path(folder, path.name), stage)
            mapped = read(Path(folder, path.name))
            return mapped._replace(
                weight=np.array(mapped.weight),
                bias=np.array(mapped.bias),
                hidden=np.array(mapped.hidden),
                contexts=np.array(mapped.contexts),
                target=np.array(mapped.target),
            )
    trainer(recipe, path, stage)
    return read(path)


def train_here(recipe: Recipe, path: Path, stage: Stage) -> None:
    """In this process, with as many BLAS threads as it has."""
    corpus = builtin.load(recipe.vocab, progress=stage("read the standard library"))
    write(path, train(corpus, recipe, stage("train")))


def train_apart(recipe: Recipe, path: Path, stage: Stage) -> None:
    """In a process of its own with one BLAS thread: on a busy machine two that wait for each other at every product take
    several times as long, and BLAS cannot be told once it has been imported."""
    command = [sys.executable, "-P", "-c", APART, json.dumps(asdict(recipe)), str(path)]
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    moves: dict[str, Progress] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            label, done, total = json.loads(line)
            if label not in moves:
                moves[label] = stage(label)
            moves[label](done, total)
        said = child.stderr.read().strip()
    if child.returncode:
        raise DataError(said.splitlines()[-1] if said else f"the training process ended with status {child.returncode}")


def main(recipe: str, path: str) -> None:
    """The process that :func:`train_apart` starts: progress as JSON lines, a fault as the last line on stderr."""

    def stage(label: str) -> Progress:
        last = -math.inf

        def move(done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > SILENCE:
                sys.stdout.write(json.dumps([label, done, total]) + "\n")
                sys.stdout.flush()
                last = time.monotonic()

        return move

    try:
        train_here(Recipe(**json.loads(recipe)), Path(path), stage)
    except HeadlongError as fault:
        sys.exit(str(fault))


def write(path: Path, trained: Trained) -> None:
    """The layer where ``Layer.load`` finds it, its queries and its words beside it."""
    tensors = {
        "lm_head.weight": trained.weight,
        "lm_head.bias": trained.bias,
        "hidden": trained.hidden,
        "contexts": trained.contexts,
        "target": trained.target,
        "words": np.frombuffer("\n".join(trained.words).encode(), np.uint8),
    }
    perplexities = {"perplexity": repr(trained.perplexity), "unigram_perplexity": repr(trained.unigram_perplexity)}
    write_file(path, tensors, {"format": FORMAT, **perplexities})


def read(path: Path) -> Trained:
    """What :func:`write` wrote; a HeadlongError where it is not that."""
    file = open_file(path)
    try:
        words = file.read("words").tobytes().decode().split("\n")
        weight, bias, hidden, contexts, target = (
            file.read(name) for name in ("lm_head.weight", "lm_head.bias", "hidden", "contexts", "target")
        )
        perplexities = [float(file.metadata[key]) for key in ("perplexity", "unigram_perplexity")]
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} is not a layer of the demo: {error}; delete it") from error
    if len(words) != len(weight) or file.metadata.get("format") != FORMAT:
        raise DataError(f"{path} has {len(words)} words for {len(weight)} classes; delete it")
    return Trained(words, weight, bias, hidden, contexts, target, *perplexities)


def contest(trained: Trained, settings: Settings, stage: Stage) -> dict[str, Any]:
    """The raw run: our engines and every dense product that is installed; which are not is in it."""
    names = [*rivals.dense_installed(), *METHODS]
    subject = Layer(trained.weight, trained.bias)
    record = bench.run(subject, trained.hidden, names, settings, stage)
    if gone := [name for name in (*rivals.DENSE, *rivals.FEW_BITS) if name not in names]:
        record["left_out"] = [*record.get("left_out", []), {"contestant": ", ".join(gone), "why": "not installed"}]
    record["layer"]["perplexity"] = trained.perplexity
    record["layer"]["unigram_perplexity"] = trained.unigram_perplexity
    return record


def examples(trained: Trained, threads: int) -> ReportTable:
    """What the layer says next in held-out text: the best words with proved ids and probabilities."""
    engine = headlong.compile(Layer(trained.weight, trained.bias), "codes", eps=0.01, delta=0.0, threads=threads)
    rows = _readable(trained, SHOWN)
    top = engine.topk(trained.hidden[rows], k=4)
    lines = []
    for row, ids, log_probs in zip(rows, top.ids, top.log_probs, strict=True):
        context = " ".join(trained.words[word] for word in trained.contexts[row])
        said = " · ".join(
            f"{trained.words[i]} {percent(float(np.exp(value)))}" for i, value in zip(ids, log_probs, strict=True)
        )
        lines.append((f"{context} …", said, trained.words[trained.target[row]]))
    return ReportTable("What comes next", ("held-out text", "the layer's best words", "what stood there"), tuple(lines))


def _readable(trained: Trained, count: int) -> NDArray[np.int64]:
    """Rows whose context is plain words of one line, evenly spread; chosen without a look at what the layer says."""
    plain = np.array([word.isalpha() for word in trained.words])
    enough = np.flatnonzero((plain[trained.contexts].sum(1) >= trained.contexts.shape[1] - 1) & plain[trained.target])
    among = enough if len(enough) >= count else np.arange(len(trained.target))
    spread: NDArray[np.int64] = among[np.linspace(0, len(among) - 1, count + 2).astype(np.int64)[1:-1]]
    return spread


def introduction(trained: Trained) -> str:
    """The layer in one sentence, its quality beside the simplest model's."""
    vocab, dim = trained.weight.shape
    return (
        f"A next-word layer of {vocab:,} classes × {dim} dimensions, trained on this Python's own standard library: "
        f"perplexity {trained.perplexity:.1f} on files it never saw, where word frequencies alone have "
        f"{trained.unigram_perplexity:.0f}."
    )


def one_query(trained: Trained, most: int = 16) -> plots.Closing:
    """The intervals of the first of the examples, closing on its best words: those of NumPy's reference, class by class."""
    layer, row, k = Layer(trained.weight, trained.bias), _readable(trained, SHOWN)[:1], 4
    hidden = trained.hidden[row].astype(np.float64)
    plan = headlong.compile(layer, "codes", log_probs=False, threads=1).plan
    assert plan.codes is not None  # they were asked for
    (estimates,), (radii,) = CodesInNumPy(layer, plan.codes).estimates(hidden, kappa_of(k, 1e-6), 0)
    exact = (hidden @ trained.weight.T.astype(np.float64) + trained.bias)[0]
    threshold = float(np.sort(exact)[-k])
    best = np.argsort(-estimates)[:most]
    open_ = (estimates + radii >= threshold)[best]
    return plots.Closing(
        [trained.words[i] for i in best], estimates[best].tolist(), radii[best].tolist(), threshold,
        [float(exact[i]) if reached else None for i, reached in zip(best, open_, strict=True)],
    )  # fmt: skip


def html_page(trained: Trained, record: dict[str, Any], shown: ReportTable) -> str:
    """The run as one self-contained page: the text with its probabilities, one query's intervals, and the race."""
    return bench_page(record, "headlong demo", introduction(trained), [shown, *plots.closing(one_query(trained))])


def page_file() -> Path:
    """Where the page goes if nobody says where."""
    return cache_folder() / "headlong-demo.html"


def settings(threads: int, quick: bool = False) -> Settings:
    """The demo's settings; ``quick`` is for trying the demo itself."""
    chosen = replace(SETTINGS, threads=threads)
    return replace(chosen, queries=64, rounds=3, calls=1) if quick else chosen
