"""Which tensor of which file is the output layer: what the model's own code takes, or a refusal with a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import StoreError
from headlong.store import write_file

VOCAB, DIM = 12, 8
RNG = np.random.default_rng(0)
WORDS, HEAD = (RNG.standard_normal((VOCAB, DIM)).astype(np.float32) for _ in range(2))


def folder(place: Path, tensors: dict[str, Any], config: dict[str, Any] | None = None, name: str = "model") -> Path:
    """A checkpoint's folder, as ``save_pretrained`` makes it."""
    write_file(place / f"{name}.safetensors", tensors, {"format": "pt"})
    if config is not None:
        (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json", "model.safetensors", "model.gguf"])
def test_a_pipe_in_a_checkpoints_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Nobody writes to it: what opens it waits for ever, and what looks away reads another model."""
    if name == "config.json":
        folder(tmp_path, {"lm_head.weight": HEAD})
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(StoreError, match="is not a regular file"):
            hl.Layer.load(path)
