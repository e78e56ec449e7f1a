"""``python -m studies harvest``: the finished layer of a model, and the hidden vectors that it was asked about::

    harvest("runs/ptb-lstm", out)      # out/layer.safetensors    lm_head.weight, lm_head.bias; link and source beside them
                                       # out/hidden.safetensors   SPLIT_hidden [n, dim], SPLIT_target [n]
                                       # out/vocab.txt            the classes, one a line

which is what ``compile``, ``bench`` and training of heads alone read. The vectors are those of the very model that the
layer was cut from, in the order of the text (sentence pairs are shuffled);
they are stored in float16 unless told otherwise. Hugging Face models are read by ``headlong harvest``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headlong import Layer
from headlong.errors import DataError, OptionError, StoreError
from headlong.layers.matrix import FORMAT, VERSION
from headlong.store import TensorFile, replacing, write_file
from studies.data import Loaded, load
from studies.data.identity import words_of
from studies.data.text import Vocabulary
from studies.models.backbones.base import Model, State
from studies.models.checkpoint import load_weights, open_checkpoint, words_in
from studies.models.evaluate import Tell
from studies.models.feeds import Feed
from studies.models.jobs import MODELS, Job, build_job, harvested_feed, size_of
from studies.models.recipe import Recipe, from_dict
from studies.models.train import BEST

SPLITS = ("train", "valid", "test")
STORED = {"float16": np.float16, "float32": np.float32}
Vectors = NDArray[Any]
Stage = Callable[[str], Tell]
Pieces = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Wish(NamedTuple):
    """Which splits, how many rows of each (0: all), and the type that the vectors are stored in."""

    splits: tuple[str, ...] = ("train", "valid")
    rows: int = 8192
    dtype: str = "float16"


def harvest(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | None = None,
    wish: Wish = Wish(),  # noqa: B008
    stage: Stage | None = None,
) -> Path:
    """Cut the layer and its hidden vectors from a trained model: a run's folder or a checkpoint.

    ``stage(split)`` gives a callback ``(done, total)`` that counts its rows.
    """
    _check(wish)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; give another folder with --out")
    job = trained(source, data)
    layer = job.model.head.to_layer()
    if not isinstance(layer, Layer):
        raise OptionError(f"the head {job.recipe.head} becomes a {type(layer).__name__}; harvest writes one matrix")
    tensors: dict[str, Vectors] = {}
    for split in wish.splits:
        feed = harvested_feed(job.data.content, split, job.recipe.training)
        count_to = counted(stage, split, wish.rows, size_of(job.data.content, split))
        tensors |= collected(split, vectors(job.model, feed), wish, count_to)
    write(folder, layer, tensors, f"{job.recipe.name} on {job.data.name}")
    with replacing(folder / "vocab.txt") as file:
        file.write("".join(f"{name}\n" for name in job.classes).encode())
    return folder


def trained(source: str | os.PathLike[str], data: str | None = None) -> Job:
    """The job of a finished or unfinished run with its best weights, on its own data or on other ``data``.

    Text is read in the words that the model was trained on; what it has no word for is its ``<unk>``.
    """
    path = _checkpoint(Path(source))
    file, saved, _ = open_checkpoint(path)
    name = saved.pop("name")
    recipe = from_dict(saved, name, {} if data is None else {"data": data})
    try:
        read = _read(file, recipe)
    except DataError as error:
        raise DataError(f"{error}; say with --data where the data of {path} is" if data is None else str(error)) from error
    job = build_job(recipe, data=read)
    load_weights(file, job.model)
    job.model.eval()
    return job


def _checkpoint(source: Path) -> Path:
    if source.is_dir() and not (source / BEST).exists():
        raise StoreError(
            f"{source} holds no trained model; expected the folder of a run with {BEST} in it, or a checkpoint"
        )
    return source / BEST if source.is_dir() else source


def _read(file: TensorFile, recipe: Recipe) -> Loaded:
    """The data that the recipe names, in the words of the checkpoint; OptionError where its classes are others."""
    words, kind = words_in(file), MODELS[recipe.model].data if recipe.model in MODELS else ""
    data = load(recipe.data, vocabulary=Vocabulary(words[0]) if kind == "text" else None)
    if data.kind == kind and words_of(data.content) != words:
        raise OptionError(
            f"{file.name} was trained on other classes than those of {data.name}; sentence pairs "
            "must have the same words as in training"
        )
    return data


def vectors(model: Model, feed: Feed) -> Pieces:
    """``(hidden, target)`` of one batch after the other."""
    state: State = ()
    for step in range(feed.steps(0)):
        batch = feed.batch(0, step)
        with torch.no_grad():
            features = model.backbone(batch.inputs, state)
        state = features.state
        yield features.hidden, batch.target


def collected(split: str, pieces: Pieces, wish: Wish, count_to: Callable[[int], None]) -> dict[str, Vectors]:
    """The first ``wish.rows`` rows of a split, as they will be stored."""
    hidden: list[Vectors] = []
    targets: list[Vectors] = []
    count = 0
    for vector, target in pieces:
        hidden.append(vector.detach().float().numpy().astype(STORED[wish.dtype]))
        targets.append(target.numpy().astype(np.int32))
        count += len(target)
        count_to(count)
        if wish.rows and count >= wish.rows:
            break
    if not count:
        raise OptionError(f"the {split} split has no text to read; choose another with --splits")
    most = wish.rows or count
    return {f"{split}_hidden": np.concatenate(hidden)[:most], f"{split}_target": np.concatenate(targets)[:most]}


def counted(stage: Stage | None, split: str, rows: int, there: int) -> Callable[[int], None]:
    """A bar for ``split`` with its total filled in: ``rows`` of what is ``there``, or all of it."""
    total = min(rows, there) if rows else there
    tell = None if stage is None else stage(f"{split} vectors")
    return lambda count: None if tell is None else tell(min(count, total), total)


def write(folder: Path, layer: Layer, tensors: Mapping[str, Vectors], source: str) -> None:
    """``layer.safetensors`` and ``hidden.safetensors``, each whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error}; give another folder with --out") from error
    about = {"format": FORMAT, "version": str(VERSION), "link": json.dumps(layer.link.as_dict()), "source": source}
    parts = {"lm_head.weight": layer.weight} | ({} if layer.bias is None else {"lm_head.bias": layer.bias})
    write_file(folder / "layer.safetensors", parts, about)
    write_file(folder / "hidden.safetensors", tensors, {"source": source, "layer": layer.checksum()})


def _check(wish: Wish) -> None:
    if wish.dtype not in STORED or wish.rows < 0 or not wish.splits or not set(wish.splits) <= set(SPLITS):
        raise OptionError(
            f"splits {','.join(wish.splits) or 'none'}, rows {wish.rows}, dtype {wish.dtype}; expected splits of "
            f"{', '.join(SPLITS)}, rows of 0 or more, dtype float16 or float32"
        )
