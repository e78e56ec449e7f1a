"""The output layer and the hidden vectors of a causal language model: a Hugging Face folder or a GGUF file on this machine::

    hidden = model(ids, logits_to_keep=[], output_hidden_states=True).hidden_states[-1]

    harvest("path/to/model", {"valid": text}, "out")    # out/layer.safetensors    lm_head.weight, lm_head.bias; its link
                                                        # out/hidden.safetensors   valid_hidden [n, dim], valid_target [n]

which is what ``compile``, ``tune`` and ``bench`` read. An empty ``logits_to_keep`` lets the model run without reading its own
output layer. That the layer fits the vectors is checked on a few tokens: ``link(hidden @ weight.T + bias)`` has to give the
model's own logits.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError, MissingPackageError, OptionError, StoreError
from headlong.layers.gguf_file import is_gguf
from headlong.layers.matrix import FORMAT, VERSION, Layer
from headlong.number_checks import file_name
from headlong.store import write_file

NEEDS = "Hugging Face models need torch and transformers: pip install 'headlong[transformers]'"
NEEDS_OF_GGUF = "transformers reads GGUF models with gguf and accelerate: pip install 'headlong[transformers,gguf]' accelerate"
try:
    import torch
except ModuleNotFoundError as error:
    raise MissingPackageError(NEEDS) from error

Vectors = NDArray[Any]
STORED = {"float16": np.float16, "float32": np.float32}
WINDOW, CHECKED = 256, 4
"""Tokens that the model reads at once; of the first of them, how many are compared with its own logits."""
TOLERANCE = 0.02
"""How far the logits of layer and model may be furthest, relative to their spread: a model may run in bfloat16."""


def harvest(
    source: str | os.PathLike[str],
    texts: Mapping[str, str],
    out: str | os.PathLike[str],
    rows: int = 8192,
    dtype: str = "float16",
    window: int = WINDOW,
    stage: Callable[[str], Callable[[int, int], None]] | None = None,
) -> Path:
    """``rows`` hidden vectors (0: all) of each named text, the target of each, and the layer; returns the folder ``out``.

    ``stage(name)`` gives a callback ``(done, total)`` that counts vectors.
    """
    if dtype not in STORED or rows < 0 or not texts:
        expected = "at least one text, rows of 0 or more, dtype float16 or float32"
        raise OptionError(f"{len(texts):,} texts, rows {rows}, dtype {dtype}; expected {expected}")
    folder = Path(file_name(out, "out"))
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; give another folder with --out")
    model, tokenizer = opened(source)
    layer = Layer.load(source)
    window = min(window, getattr(model.config, "max_position_embeddings", window))
    tensors: dict[str, Vectors] = {}
    for name, text in texts.items():
        # a token is at least one character; sixteen of them for each are more than tokenizers make of text
        ids = torch.tensor(tokenizer(text[: 16 * (rows + 1)] if rows else text)["input_ids"])
        if len(ids) < 2:
            raise DataError(f"the {name} text has {len(ids):,} tokens for this tokenizer; expected 2 or more")
        _check_match(model, layer, ids[: min(window, len(ids))])
        count = min(rows, len(ids) - 1) if rows else len(ids) - 1
        move = stage(f"{name} vectors") if stage is not None else None
        pieces = []
        for done, hidden in _vectors(model, ids[: count + 1], window):
            pieces.append(hidden.float().numpy().astype(STORED[dtype]))
            if move is not None:
                move(done, count)
        tensors[f"{name}_hidden"] = np.concatenate(pieces)
        tensors[f"{name}_target"] = ids[1 : count + 1].numpy().astype(np.int32)
    _write(folder, layer, tensors, Path(source).name)
    return folder


def read_texts(path: str | os.PathLike[str], splits: tuple[str, ...]) -> dict[str, str]:
    """``{"valid": its text}``: from ``FOLDER/valid.txt``, or all of one file under the only name that is asked for."""
    where = Path(file_name(path))
    files = {name: where / f"{name}.txt" for name in splits} if where.is_dir() else dict.fromkeys(splits, where)
    if len(files) > 1 and not where.is_dir():
        raise OptionError(f"{where} is one text, and {', '.join(splits)} are {len(files):,}; expected a folder of so many")
    try:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{where} cannot be read: {error}; expected a UTF-8 text, or a folder with SPLIT.txt") from error


def opened(source: str | os.PathLike[str]) -> tuple[Any, Any]:
    """The model and its tokenizer; a GGUF file's weights are written out as float32."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled
    except ImportError as error:
        raise MissingPackageError(NEEDS) from error
    where, options = Path(source), dict[str, Any](local_files_only=True)
    weights: dict[str, Any] = {}
    if is_gguf(where):
        if find_spec("gguf") is None or find_spec("accelerate") is None:
            raise MissingPackageError(NEEDS_OF_GGUF)
        where, options = where.parent, options | {"gguf_file": where.name}
        weights = {"dtype": torch.float32} | _written_out()
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        with warnings.catch_warnings():
            if weights:  # how slowly GGUF files are read
                warnings.simplefilter("ignore")
            model = AutoModelForCausalLM.from_pretrained(where, **options, **weights)
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise OptionError(f"{os.fspath(source)} is not a complete causal language model: {error}") from error
    finally:
        if shown:  # the rest of the program's
            enable_progress_bar()
    return model.eval(), tokenizer


def _written_out() -> dict[str, Any]:
    """The option without which newer versions multiply by packed weights, slowly; older ones always write them out."""
    try:
        from transformers.utils.quantization_config import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


@torch.no_grad()
def _hidden(model: Callable[..., Any], ids: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``hidden [n, dim]`` of all tokens and ``logits`` of those in ``keep``."""
    out = model(ids[None], logits_to_keep=keep, output_hidden_states=True, use_cache=False)
    return out.hidden_states[-1][0], out.logits[0]


def _vectors(model: Callable[..., Any], ids: torch.Tensor, window: int) -> Iterator[tuple[int, torch.Tensor]]:
    """``(vectors so far, hidden)`` of each window; the last token has no target and is left out."""
    nothing = torch.empty(0, dtype=torch.int64)
    for start in range(0, len(ids) - 1, window):
        inputs = ids[start : min(start + window, len(ids) - 1)]
        hidden, _ = _hidden(model, inputs, nothing)
        yield start + len(inputs), hidden


def _check_match(model: Callable[..., Any], layer: Layer, ids: torch.Tensor) -> None:
    last = torch.arange(max(0, len(ids) - CHECKED), len(ids))
    hidden, logits = _hidden(model, ids, last)
    wide = hidden[last].double().numpy() @ layer.weight.astype(np.float64).T
    mine = layer.link(wide if layer.bias is None else wide + layer.bias)
    furthest = float(np.abs(mine - logits.double().numpy()).max())
    if furthest > TOLERANCE * max(1e-3, float(np.std(mine))):
        raise OptionError(
            f"the model's logits are up to {furthest:.3g} from those of its layer ({layer!r}): its last hidden "
            "state is not the input of its output layer; expected a model where it is"
        )


def _write(folder: Path, layer: Layer, tensors: Mapping[str, Vectors], source: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error}; give another folder with --out") from error
    about = {"format": FORMAT, "version": str(VERSION), "link": json.dumps(layer.link.as_dict()), "source": source}
    parts = {"lm_head.weight": layer.weight} | ({} if layer.bias is None else {"lm_head.bias": layer.bias})
    write_file(folder / "layer.safetensors", parts, about)
    write_file(folder / "hidden.safetensors", tensors, {"source": source, "layer": layer.checksum()})
