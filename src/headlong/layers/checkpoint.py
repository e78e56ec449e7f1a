"""Where a model's output layer lies: one safetensors file, the shards of an index, a GGUF file, or a folder with one of them.

Knows Hugging Face's names: the usual output and input embeddings, and tied heads. Reads headers only; tensors are mapped when
asked for, and written out where they are stored as codes and scales. Pickled checkpoints are never opened.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from headlong.arrays import Array
from headlong.errors import MalformedFileError, MissingFileError, MissingTensorError, StoreError, an
from headlong.layers.codes_and_scales import block_of_config, companions, packed, stored, written_out
from headlong.layers.conventions import link_of_config
from headlong.layers.gguf_file import PART, GgufFile, is_gguf
from headlong.layers.tying import OF_WORDS, WITH_WORDS, ties
from headlong.links import Link
from headlong.number_checks import file_name
from headlong.packed_rows import PackedRows
from headlong.store import TensorFile, json_object, mapped_bytes, open_file

INDEX = ".safetensors.index.json"
PART_OF_MODEL = re.compile(r"\d+[-_.]of[-_.](?!0*1\D)\d+[^/]*\.safetensors$")
WEIGHT_NAMES = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "embed_out.weight")
"""Output embeddings, as models name them; GPT-NeoX has the last."""
EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "transformer.wte.weight",
    "transformer.tokens_embed.weight",
    "transformer.word_embeddings.weight",
    "backbone.embeddings.weight",
    "gpt_neox.embed_in.weight",
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "shared.weight",
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
)
"""Input embeddings that a tied output layer shares."""
SHARED_BIAS = "final_logits_bias"
"""What BART and its like add to the logits, ``[1, vocab]``."""
WORDS = re.compile(r"(^|\.)embeddings\.(word|tok)_embeddings\.weight$")
BESIDE_WORDS = "cls.predictions.dense.weight"
"""MobileBERT's hidden vectors are longer than its embedding: its head is the embedding and these further columns."""
DECODERS = ("cls.predictions.decoder.weight", "lm_head.decoder.weight")
"""How BERT and its like store a head: the input embedding, which a tied head shares, and the head of its own."""
HEADS = {name: re.compile(beside) for name, beside in (
    *((name, "") for name in WEIGHT_NAMES[:3]), (WEIGHT_NAMES[3], r"(^|\.)embed_in\."),
    (DECODERS[0], r"^cls\.predictions\.(transform|bias|decoder\.bias)"), (DECODERS[1], r"^lm_head\.(dense|bias|decoder\.bias)"),
)}  # fmt: skip
"""Output layers, and what their kinds of models have beside them: without it the name is something else's."""
BIASES_OF_WORDS = (
    "cls.predictions.bias", "cls.predictions.decoder.bias", "lm_head.bias", "lm_head.decoder.bias", "predictions.bias",
    "generator_lm_head.bias", "vocab_projector.bias", "decoder.bias",
)  # fmt: skip
CLASSIFIERS = re.compile(r"(^|\.)(score|classifier|classification_head|[a-z]+_head|qa_outputs)\.([a-z_0-9]+\.)?weight$")
"""Output layers of classes that give no logits over words, as they are usually called."""
OF_VECTORS = ("modules.json", "config_sentence_transformers.json")
"""Beside the weights of a model that gives vectors of whole texts, whatever its class could do."""


class Checkpoint:
    """``checkpoint.names`` over all shards; ``read(name)`` maps one tensor; ``config`` is the model's, or empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._file = _weights_of(Path(self.name))
        self._open: dict[str, TensorFile] = {}
        if self._file.name.endswith(INDEX):
            self._shards = _weight_map(self._file)
        else:
            self._shards = dict.fromkeys(self._shard(self._file.name).tensors, self._file.name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shards)

    @property
    def metadata(self) -> dict[str, str]:
        """What a single file says of itself; an index has none of ours."""
        return {} if self._file.name.endswith(INDEX) else self._shard(self._file.name).metadata

    def read(self, name: str) -> Array | PackedRows:
        """One tensor, mapped; of codes and scales, rows of int8 with a scale each, or all written out."""
        how = stored(name, self._shards)
        if name == SHARED_BIAS:
            return self._mapped(name).reshape(-1)
        if how is None:
            return self._mapped(name)
        kept = packed(how, self._mapped)
        return written_out(how, self._mapped, block_of_config(self.config())) if kept is None else kept

    def kind(self, name: str) -> str | None:
        """What a tensor that is stored as codes and scales is called; None for one that is mapped as it is."""
        how = stored(name, self._shards)
        if how is None:
            return None
        return how.kind if how.kind == "bitsandbytes int8" else f"{self._mapped(how.codes).dtype} {how.kind}"

    def _has(self, name: str) -> bool:
        return name in self._shards or stored(name, self._shards) is not None

    def _mapped(self, name: str) -> Array:
        if name not in self._shards:
            raise MissingTensorError(f"{self.name} has no tensor {name!r}; its matrices are {self._matrices()}")
        return self._shard(self._shards[name]).read(name)

    def config(self) -> dict[str, Any]:
        """``config.json`` beside the weights, or nothing."""
        path = self._file.with_name("config.json")
        return json_object(mapped_bytes(path, "JSON")[:], str(path)) if os.path.lexists(path) else {}

    def _shard(self, file: str) -> TensorFile:
        if file not in self._open:
            self._open[file] = open_file(self._file.with_name(file))
        return self._open[file]

    def _matrices(self, most: int = 12) -> str:
        """The 2-D tensors, largest first, for a message that helps to choose."""
        found: list[tuple[int, str]] = []
        for name, file in self._shards.items():
            try:
                info = self._shard(file).tensors.get(name)
            except StoreError:  # the message is about another fault
                continue
            if info is not None and len(info.shape) == 2:
                found.append((info.start - info.stop, f"{name} {list(info.shape)} {info.dtype}"))
        shown = ", ".join(text for _, text in sorted(found)[:most]) or "none"
        return shown + (f" and {len(found) - most} more" if len(found) > most else "")

    def head(self, weight: str) -> str:
        """The tensor to read for ``weight``: itself, or for an absent ``lm_head.weight`` what the model ties it to."""
        if self._has(weight) or weight != WEIGHT_NAMES[0]:
            return weight
        config = self.config()
        kinds = [kind for kind in config.get("architectures") or () if isinstance(kind, str)]
        words = [name for name in self._shards if WORDS.search(name)] if any(map(OF_WORDS.search, kinds)) else []
        layers = [name for name in self._shards if ".layer.0." in name]  # the embedding of another body than these is nobody's
        words = [name for name in words if not layers or any(one.startswith(name.split("embeddings.")[0]) for one in layers)]
        found = [name for name, beside in HEADS.items() if self._has(name) and any(map(beside.search, self._shards))]
        if not found:
            found = [*(name for name in EMBEDDINGS if self._has(name)), *words]
            if found and (trouble := self._not_tied(config, kinds, " and ".join(found))):
                raise MissingTensorError(f"{self.name} {trouble}")
            found = found if ties(config, self.name) else []
        if len(found) != 1:
            reason = f"{' and '.join(found)} could all be it" if found else "no tied embedding was found in its place"
            raise MissingTensorError(
                f"{self.name} has no tensor {weight!r}, and {reason}; pass weight= with one of its matrices: {self._matrices()}"
            )
        return found[0]

    def _not_tied(self, config: dict[str, Any], kinds: list[str], words: str) -> str:
        """Why the embedding ``words`` of a model without a head of its own cannot be taken for one; "" where it can."""
        names, asked = list(self._shards), "pass weight= if that is the matrix to be read"
        other = [name for head in WEIGHT_NAMES for name in companions(head, names)]
        if other:
            return f"has {' and '.join(other)}, an output layer in a form that is not read; save it without quantising it"
        if PART_OF_MODEL.search(self._file.name):
            return (
                f"is one part of a model, without {WEIGHT_NAMES[0]!r} and without the *{INDEX} that says which part has it; "
                "pass the folder of all parts with their index"
            )
        if kinds and not any(map(WITH_WORDS.search, kinds)):
            own = " or ".join(f"weight={name!r}" for name in names if CLASSIFIERS.search(name))
            return (
                f"holds {an(kinds[0])}, which has no output layer that is known here: {words} embeds its inputs; "
                + (f"pass {own} for its own, or " if own else "")
                + asked
            )
        if any(self._file.with_name(name).exists() for name in OF_VECTORS):
            return f"is a model that gives vectors of texts, not words: {words} embeds its inputs; {asked}"
        if BESIDE_WORDS in self._shards:
            return (
                f"has a head of two matrices, {words} and the transposed {BESIDE_WORDS}; put them side by side, [vocab, "
                "hidden_size], and pass that to Layer(weight)"
            )
        if ties(config, self.name) is None:
            family = f"a model of the family {config['model_type']!r}" if "model_type" in config else "its config.json"
            return (
                f"has no tensor {WEIGHT_NAMES[0]!r}, and {family} does not say tie_word_embeddings, which would make {words} "
                f"its output layer; put the model's config.json beside it, or {asked}"
            )
        return ""

    def bias(self, *weights: str) -> str | None:
        """The bias that belongs to one of the given weights: ``lm_head.weight`` has ``lm_head.bias``."""
        for weight in weights:
            stem, _, last = weight.rpartition("weight")
            if not last and (bias := f"{stem}bias") in self._shards:
                return bias
        if any(WORDS.search(weight) or weight in DECODERS for weight in weights):
            return next((bias for bias in BIASES_OF_WORDS if bias in self._shards), None)
        return SHARED_BIAS if SHARED_BIAS in self._shards and set(weights) & {WEIGHT_NAMES[0], *EMBEDDINGS} else None

    def link(self, name: str) -> Link | None:
        """What the model does to the logits that ``name`` gives; None where the configuration is not about them."""
        known = name in (*WEIGHT_NAMES, *EMBEDDINGS, *DECODERS) or WORDS.search(name)
        return link_of_config(self.config(), self.name) if known else None


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint | GgufFile:
    """What lies at ``path``: a GGUF file, or a folder with one and nothing else; or a :class:`Checkpoint`."""
    place = Path(file_name(path))
    if place.is_file() and (place.suffix == ".gguf" or is_gguf(place)):
        return GgufFile(place)
    if place.is_dir() and not any(place.glob("*.safetensors")):
        files = [file for file in sorted(place.glob("*.gguf")) if (part := PART.search(file.name)) is None or int(part[1]) == 1]
        if len(files) > 1:
            raise StoreError(f"{path} has several models: {', '.join(file.name for file in files)}; pass one of them")
        if files:
            return GgufFile(files[0])
    return Checkpoint(place)


def _weights_of(path: Path) -> Path:
    """The file to open: an index, or the one safetensors file of a folder; for a part of a model, the index that names it.

    ``model.safetensors`` goes before an index that does not name it, as in transformers.
    """
    if not path.is_dir():
        return _index_over(path) or path
    for pattern in ("model.safetensors", f"model{INDEX}", f"*{INDEX}", "*.safetensors"):
        found = sorted(path.glob(pattern))
        if len(found) > 1:
            raise StoreError(f"{path} has several models: {', '.join(file.name for file in found)}; pass one of them")
        if found:
            return _index_over(found[0]) or found[0]
    pickled = sorted(path.glob("*.bin"))
    advice = f"; {pickled[0].name} is pickled, which is never read: save the model as safetensors" if pickled else ""
    raise MissingFileError(f"{path} has no safetensors file and no *{INDEX}{advice}")


def _index_over(path: Path) -> Path | None:
    """The index beside a part of a model: the head may be in another part."""
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    return next((index for index in sorted(path.parent.glob(f"*{INDEX}")) if path.name in _weight_map(index).values()), None)


def _weight_map(index: Path) -> dict[str, str]:
    shards = json_object(mapped_bytes(index, "JSON")[:], str(index)).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise MalformedFileError(f"{index} has no weight_map; expected a Hugging Face index of shards")
    for name, file in shards.items():
        # a shard lies beside its index: a downloaded index must not reach for other files
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file or "\\" in file:
            raise MalformedFileError(f"{index} puts {name!r} into {file!r}; expected a .safetensors file next to it")
    return shards
