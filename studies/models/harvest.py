"""``python -m studies harvest``: the finished layer of a model, and the hidden vectors that it was asked about::

    harvest("runs/ptb-lstm", out)      # out/layer.safetensors    the layer with its link
                                       # out/hidden.safetensors   SPLIT_hidden [n, dim], SPLIT_target [n]
                                       # out/vocab.txt            the classes, one a line

which is what ``compile``, ``bench`` and training of heads alone read. The vectors are those of the model that the layer was cut
from, in the order of the text (sentence pairs are shuffled). Hugging Face models are read by ``headlong harvest``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headlong import Layer
from headlong.errors import OptionError, StoreError
from headlong.store import replacing, write_file
from studies.models.checkpoint import load_weights, open_model
from studies.models.evaluate import vectors
from studies.models.jobs import Job, build_job, harvested_feed
from studies.models.recipe import from_dict
from studies.models.train import BEST

SPLITS = ("train", "valid", "test")
STORED = {"float16": np.float16, "float32": np.float32}
Vectors = NDArray[Any]


class Wish(NamedTuple):
    """Which splits, how many rows of each (0: all), and the type that the vectors are stored in."""

    splits: tuple[str, ...] = ("train", "valid")
    rows: int = 8192
    dtype: str = "float16"


def harvest(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    wish: Wish = Wish(),  # noqa: B008
    stage: Callable[[str], Callable[[int, int], None]] | None = None,
) -> Path:
    """Cut the layer and its hidden vectors from a trained model: a run's folder or its file.

    ``stage(split)`` gives a callback ``(done, total)`` that counts its batches.
    """
    if wish.dtype not in STORED or wish.rows < 0 or not wish.splits or not set(wish.splits) <= set(SPLITS):
        raise OptionError(
            f"splits {','.join(wish.splits) or 'none'}, rows {wish.rows}, dtype {wish.dtype}; expected splits of "
            f"{', '.join(SPLITS)}, rows of 0 or more, dtype float16 or float32"
        )
    job = trained(source)
    layer = job.model.head.to_layer()
    if not isinstance(layer, Layer):
        raise OptionError(f"the head {job.recipe.head} becomes a {type(layer).__name__}; harvest writes one matrix")
    tensors: dict[str, Vectors] = {}
    for split in wish.splits:
        feed = harvested_feed(job.data.content, split, job.recipe.training)
        count_to = None if stage is None else stage(f"{split} vectors")
        tensors |= collected(split, vectors(job.model, feed), wish, feed.steps(0), count_to)
    write(Path(out), layer, tensors, f"{job.recipe.name} on {job.data.name}")
    with replacing(Path(out) / "vocab.txt") as file:
        file.write("".join(f"{name}\n" for name in job.classes).encode())
    return Path(out)


def trained(source: str | os.PathLike[str]) -> Job:
    """The job of a finished run with its best weights, on its own data."""
    path = Path(source)
    if path.is_dir() and not (path / BEST).exists():
        raise StoreError(f"{path} holds no trained model; expected the folder of a run with {BEST} in it, or that file")
    file, saved = open_model(path / BEST if path.is_dir() else path)
    name = saved.pop("name")
    job = build_job(from_dict(saved, name))
    load_weights(file, job.model)
    job.model.eval()
    return job


def collected(
    split: str, pieces: Iterator[tuple[torch.Tensor, torch.Tensor]], wish: Wish, steps: int, count_to: Any
) -> dict[str, Vectors]:
    """The first ``wish.rows`` rows of a split, as they will be stored."""
    hidden: list[Vectors] = []
    targets: list[Vectors] = []
    for step, (vector, target) in enumerate(pieces, 1):
        hidden.append(vector.detach().float().numpy().astype(STORED[wish.dtype]))
        targets.append(target.numpy().astype(np.int32))
        if count_to is not None:
            count_to(step, steps)
        if wish.rows and sum(map(len, targets)) >= wish.rows:
            break
    most = wish.rows or None
    return {f"{split}_hidden": np.concatenate(hidden)[:most], f"{split}_target": np.concatenate(targets)[:most]}


def write(folder: Path, layer: Layer, tensors: dict[str, Vectors], source: str) -> None:
    """``layer.safetensors`` and ``hidden.safetensors``, each whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error}; give another folder with --out") from error
    layer.save(folder / "layer.safetensors")
    write_file(folder / "hidden.safetensors", tensors, {"source": source, "layer": layer.checksum()})
