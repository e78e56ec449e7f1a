"""A trained model in one safetensors file; no pickle::

    model.NAME       parameters (each once, also where tied) and buffers
    metadata         the recipe

The file is replaced whole or not at all. It holds no training state: a row of a study ends within minutes, and one that is
stopped begins anew; the study goes on at the first row that its results do not have, on whatever machine they lie.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headlong.errors import ShapeError
from headlong.store import TensorFile, check_version, json_object, open_file, write_file
from studies.data import DATA_SETS
from studies.models.jobs import Job

FORMAT, VERSION = "headlong checkpoint", 1


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, a shared one under its first name only, and buffers."""
    return {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def save_model(path: Path, job: Job) -> None:
    """Replace ``path``."""
    tensors: dict[str, Any] = {f"model.{name}": value for name, value in named_tensors(job.model).items()}
    recipe = json.dumps(job.recipe.as_dict() | {"data": _absolute(job.recipe.data)})
    write_file(path, tensors, {"format": FORMAT, "version": str(VERSION), "name": job.recipe.name, "recipe": recipe})


def open_model(path: str | os.PathLike[str]) -> tuple[TensorFile, dict[str, Any]]:
    """The file, and the recipe as plain data, with its name."""
    file = open_file(path)
    check_version(file.metadata, FORMAT, VERSION, file.name)
    recipe = json_object(file.metadata.get("recipe", "").encode(), f"{file.name}: recipe")
    return file, {**recipe, "name": file.metadata.get("name", "")}


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
        value.copy_(torch.from_numpy(file.read(f"model.{name}").copy()))
