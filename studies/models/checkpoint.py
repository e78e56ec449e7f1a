"""Where a run stands, in one safetensors file; no pickle::

    model.NAME       parameters (each once, also where tied) and buffers
    optimiser.I.KEY  the optimiser's memory of parameter I
    state.I          the recurrent state in front of the next batch
    metadata         the recipe, epoch and step, the epoch's sum so far, the history

The file is replaced whole or not at all, so a run that is killed while it saves, or whose disk is full, keeps the
checkpoint before. Random numbers need no saving: each step seeds them with its own number.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headlong.errors import MalformedFileError, OptionError, ShapeError
from headlong.store import TensorFile, check_version, json_object, open_file, write_file
from studies.data import DATA_SETS
from studies.models.backbones.base import State
from studies.models.jobs import Job
from studies.models.optimisers import optimiser_tensors, restore_optimiser

FORMAT, VERSION = "headlong checkpoint", 1


@dataclass
class Progress:
    """Where a run stands: the next batch is ``step`` of ``epoch``."""

    epoch: int = 0
    step: int = 0
    total: float = 0.0
    """Sum over this epoch's batches of loss times targets."""
    count: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, a shared one under its first name only, and buffers."""
    return {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def save_checkpoint(path: Path, job: Job, optimiser: torch.optim.Optimizer | None, state: State, progress: Progress) -> None:
    """Replace ``path``; without an optimiser it is a finished model."""
    tensors: dict[str, Any] = {f"model.{name}": value for name, value in named_tensors(job.model).items()}
    if optimiser is not None:
        tensors |= {f"optimiser.{name}": value for name, value in optimiser_tensors(optimiser).items()}
    tensors |= {f"state.{index}": value.contiguous() for index, value in enumerate(state)}
    recipe = job.recipe
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "name": recipe.name,
        "recipe": json.dumps(recipe.as_dict() | {"data": _absolute(recipe.data)}),
        "progress": json.dumps(dataclasses.asdict(progress)),
    }
    write_file(path, tensors, metadata)


def open_checkpoint(path: str | os.PathLike[str]) -> tuple[TensorFile, dict[str, Any], Progress]:
    """The file, the recipe as plain data (with its name), and where the run stood."""
    file = open_file(path)
    check_version(file.metadata, FORMAT, VERSION, file.name)
    texts = [json_object(file.metadata.get(key, "").encode(), f"{file.name}: {key}") for key in ("recipe", "progress")]
    try:
        return file, {**texts[0], "name": file.metadata.get("name", "")}, Progress(**texts[1])
    except TypeError as error:
        raise MalformedFileError(f"{file.name}: its progress cannot be read: {error}") from error


def _absolute(data: str) -> str:
    """A file or folder as it is found from anywhere; the name of a registered data set as it is."""
    return os.path.abspath(data) if data not in DATA_SETS and os.path.exists(data) else data


def load_weights(file: TensorFile, model: nn.Module) -> None:
    """Copy the file's parameters and buffers into ``model``; nothing is copied where one of them does not fit."""
    mine = named_tensors(model)
    shapes = {name: list(value.shape) for name, value in mine.items()}
    found = {name: list(info.shape) for name in mine if (info := file.tensors.get(f"model.{name}")) is not None}
    if wrong := next((name for name in mine if found.get(name) != shapes[name]), None):
        raise ShapeError(f"{file.name}: model.{wrong} is {found.get(wrong, 'missing')}, the model's is {shapes[wrong]}")
    for name, value in mine.items():
        value.copy_(_tensor(file, f"model.{name}"))


def resume(path: Path, job: Job, optimiser: torch.optim.Optimizer) -> tuple[State, Progress]:
    """Continue from ``path``; OptionError where it belongs to another recipe."""
    file, plain, progress = open_checkpoint(path)
    mine = json.loads(json.dumps(job.recipe.as_dict()))
    # not where the data lie, but what they are has to be the same
    if {**plain, "data": "", "name": ""} != {**mine, "data": "", "name": ""}:
        raise OptionError(f"{path} is a run of another recipe; give another folder with --out, or remove this one")
    load_weights(file, job.model)
    _load_optimiser(file, optimiser)
    count = sum(name.startswith("state.") for name in file.tensors)
    return tuple(_tensor(file, f"state.{index}") for index in range(count)), progress


def _load_optimiser(file: TensorFile, optimiser: torch.optim.Optimizer) -> None:
    prefix = "optimiser."
    names = [name for name in file.tensors if name.startswith(prefix)]
    restore_optimiser(optimiser, {name[len(prefix) :]: _tensor(file, name) for name in names})


def _tensor(file: TensorFile, name: str) -> Tensor:
    array = file.read(name)
    if file.tensors[name].dtype == "BF16":
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
