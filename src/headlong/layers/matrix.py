"""The output layer of one matrix, a bias and a link.

::

    z = hidden @ weight.T + bias                    [batch, vocab], the raw logits
    log p = link(z) - log(sum(exp(link(z))))

A :class:`Layer` is data only and never changes. It keeps the stored numbers as they are (no cast, no copy), since
exactness is defined against them; it computes nothing: that is an engine's business.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, closed_copy, is_linear, pieces, resident, stored_bias, stored_matrix, to_host, unchanging
from headlong.cached_attribute import once
from headlong.errors import DtypeError, MalformedFileError, OptionError, named
from headlong.layers.checkpoint import Checkpoint, open_checkpoint
from headlong.layers.gguf_file import GgufFile
from headlong.layers.written_to import WrittenTo
from headlong.links import IDENTITY, Link, link_from_dict
from headlong.number_checks import file_name, flag, text
from headlong.packed_rows import PackedRows
from headlong.store import check_version, checksum, json_object, write_file

FORMAT, VERSION = "headlong layer", 1


class Layer:
    """``weight [vocab, dim]``, ``bias [vocab]`` or None, ``link`` (None: identity); NumPy or torch on the CPU.

    ``weight`` may also be a ``torch.nn.Linear``; its bias is then taken, too.

    float32, float16 and bfloat16 weights are kept without a copy (rows that are not contiguous are copied): the layer borrows
    the caller's array. An engine's plan is computed from the weights at compile time, but its answers also read rows from the
    array itself. After a write to the array, for instance by a training step, answers would mix old and new weights. Every call
    of an engine looks: a tensor's writes are counted, of other arrays some words are compared; ``save`` and pickling read all.
    What was written to is refused: compile again. A write to a few rows of a NumPy array alone is noticed by ``save`` only.
    ``copy=True`` makes a private copy. A layer that is loaded from a file is mapped read-only.

    A weight in a GPU's memory stays there for engines on that GPU, and is copied once to the CPU's, where plans are made and
    rows are measured.
    """

    def __init__(self, weight: Any, bias: Any = None, link: Link | None = None, *, name: str = "", copy: bool = False) -> None:
        if is_linear(weight):
            if bias is not None:
                raise OptionError("a Linear and a bias were given; expected one of them: a Linear has its own bias")
            weight, bias = weight.weight, weight.bias
        self._given = weight, bias
        self._resident = resident(weight)
        self._weight: Any = weight
        if not isinstance(weight, PackedRows):
            self._weight = stored_matrix(to_host(weight))
        self._bias = None if bias is None else stored_bias(to_host(bias), self.vocab)
        if flag(copy, "copy"):
            self._given = None, None
            packed = isinstance(weight, PackedRows)
            self._weight = weight.closed_copy() if packed else closed_copy(self._weight)
            self._bias = None if self._bias is None else closed_copy(self._bias)
        if link is not None and not isinstance(link, Link):
            raise OptionError(f"link is {named(link)}; expected Affine(scale, shift), SoftCap(cap), Gss() or a Table")
        self._link = IDENTITY if link is None else link
        self._name = name

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        weight: str = "lm_head.weight",
        bias: str | Literal[False] | None = None,
        link: Link | None = None,
    ) -> Layer:
        """Map a layer from a safetensors file, a sharded index, a GGUF file, or a checkpoint's folder; nothing is read yet.

        A matrix that is stored as codes and scales stays as it is where it is of one of the kinds of
        ``headlong.packed_rows`` (GGUF's Q8_0, Q4_0, Q4_K, Q5_K, Q6_K; int8 with a scale for each row): ``weight`` is then
        no array, but ``weight[ids]`` and ``np.asarray(weight)`` are. Other kinds are expanded to float32, four bytes per
        weight; ``name`` and ``repr`` say so.

        ``weight``  the tensor's name; an absent ``lm_head.weight`` is looked for where models tie or rename it
        ``bias``    the tensor's name; None takes the one that belongs to the weight, if any; False takes none
        ``link``    None takes what the file (or, for a language model's head, ``config.json``) says
        """
        checkpoint = open_checkpoint(path)
        name = checkpoint.head(text(weight, "weight", "the name of a tensor"))
        if bias is not None and bias is not False:
            text(bias, "bias", "the name of a tensor, None or False")
        if bias is None:
            bias = checkpoint.bias(weight, name) or False
        if link is None:
            link = _saved_link(checkpoint, name)
        offset = checkpoint.read(bias) if bias else None
        matrix, kind = checkpoint.read(name), checkpoint.kind(name)
        if checkpoint.metadata.get("format") == FORMAT and "rows" in checkpoint.metadata:
            matrix = _saved_rows(matrix, checkpoint)
        written_out = kind is not None and not isinstance(matrix, PackedRows)
        origin = f"{name} ({kind}, written out as float32: {matrix.nbytes / 2**20:,.0f} MiB)" if written_out else name
        return cls(matrix, offset, link, name=origin)

    @classmethod
    def from_arrow(
        cls,
        data: Any,
        column: str | None = None,
        bias: Any = None,
        link: Link | None = None,
        *,
        name: str = "",
        copy: bool = False,
    ) -> Layer:
        """A layer whose rows are a column of vectors, which is not copied where it lies in one piece.

        ``data``    an Arrow table, batch or array; whatever has ``__arrow_c_stream__`` or ``__arrow_c_array__`` (DuckDB,
                    polars, pandas); a dataset of Hugging Face or Lance; or the path of a file or folder of such: Parquet, Arrow
                    (mapped), Lance, PostgreSQL's ``COPY ... (FORMAT BINARY)`` of pgvector's types
        ``column``  its name; None takes the only one that holds vectors
        Vectors are lists of float or halffloat, all of one length; a null is refused with its row.
        """
        from headlong.tables import arrow, files

        if isinstance(data, str | os.PathLike):
            rows = files.whole(file_name(data, "data"), column)
        else:
            rows = arrow.vectors(data, column, name or "data")
        if rows.dtype == np.float64:
            raise DtypeError(f"{name or 'data'} holds vectors of double; expected float or halffloat: cast the column first")
        return cls(rows, bias, link, name=name or column or "", copy=copy)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layer and its link to a file that :meth:`load` reads without tensor names."""
        tensors = {"lm_head.weight": self.stored} | ({} if self._bias is None else {"lm_head.bias": self._bias})
        about = {"format": FORMAT, "version": str(VERSION), "link": json.dumps(self._link.as_dict())}
        if isinstance(self._weight, PackedRows):
            about["rows"] = json.dumps({"kind": self.dtype, "dim": self.dim})
        write_file(path, tensors, about)

    @property
    def weight(self) -> Array:
        """``[vocab, dim]``, read-only; ``headlong.packed_rows.PackedRows`` where rows are codes and scales."""
        found: Array = self._weight
        return found

    @property
    def stored(self) -> Array:
        """The array that holds the weights: itself, or the bytes of rows of codes and scales."""
        found: Array = self._weight.stored if isinstance(self._weight, PackedRows) else self._weight
        return found

    @property
    def row_bytes(self) -> int:
        """What a row takes as it is stored."""
        return self.stored.nbytes // self.vocab

    @property
    def bias(self) -> NDArray[np.float32] | None:
        """``[vocab]``, read-only."""
        return self._bias

    @property
    def link(self) -> Link:
        return self._link

    @property
    def resident(self) -> Any | None:
        """The weight as a tensor in a GPU's memory, where it came as one."""
        return self._resident

    @property
    def name(self) -> str:
        """The tensor that a loaded layer came from; empty for a layer made of arrays."""
        return self._name

    @property
    def vocab(self) -> int:
        return int(self._weight.shape[0])

    @property
    def dim(self) -> int:
        return int(self._weight.shape[1])

    @property
    def dtype(self) -> str:
        """``"float32"``, ``"float16"``, ``"bfloat16"``, or of rows of codes their kind, as ``"Q6_K"``."""
        return self._weight.kind if isinstance(self._weight, PackedRows) else str(self._weight.dtype.name)

    def checksum(self) -> str:
        """sha256 over type, shape, weights, bias and link: equal exactly where the answers are.

        Reads the whole layer: every time if the arrays are borrowed, once if nobody else can write to them.
        """
        return self._checksum_for_good if self.unchanging else self._checksum()

    @property
    def unchanging(self) -> bool:
        """Whether nobody can write to the weights and the bias."""
        return unchanging(self.stored) and (self._bias is None or unchanging(self._bias))

    def watch(self) -> WrittenTo | None:
        """What tells at every call whether borrowed arrays were written to since; None where nobody can write to them."""
        if self.unchanging:
            return None
        return WrittenTo(self._given, (self.stored,) if self._bias is None else (self.stored, self._bias))

    def stamp(self) -> str | None:
        """A checksum of a borrowed layer's numbers: if it changes, they were written to. None for a layer
        that nobody can write to."""
        if self.unchanging:
            return None
        bias = b"" if self._bias is None else self._bias.tobytes()
        return checksum(memoryview(bias), self.stored.reshape(-1).view(np.uint8).data)

    @once
    def _checksum_for_good(self) -> str:
        return self._checksum()

    def _checksum(self) -> str:
        facts = {
            "dtype": self.dtype,
            "shape": [self.vocab, self.dim],
            "bias": self._bias is not None,
            "link": self._link.as_dict(),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for part in pieces(self.vocab, self.row_bytes):
            digest.update(self.stored[part].reshape(-1).view(np.uint8).data)
        if self._bias is not None:
            digest.update(self._bias.view(np.uint8).data)
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its arrays; what comes back has copies that nobody can write to."""
        return partial(Layer, name=self._name, copy=True), (self._weight, self._bias, self._link)

    def __repr__(self) -> str:
        bias = "no bias" if self._bias is None else "bias"
        origin = f", from {self._name}" if self._name else ""
        return f"Layer(vocab={self.vocab}, dim={self.dim}, {self.dtype}, {bias}, {self._link}{origin})"


def _saved_rows(stored: Any, checkpoint: Checkpoint | GgufFile) -> PackedRows:
    about = json_object(checkpoint.metadata["rows"].encode(), f"{checkpoint.name}: the rows")
    kind, dim = about.get("kind"), about.get("dim")
    if not isinstance(kind, str) or type(dim) is not int:
        raise MalformedFileError(f"{checkpoint.name}: its rows are said to be {about}; expected a kind and how many weights")
    return PackedRows(stored, kind, dim)


def _saved_link(checkpoint: Checkpoint | GgufFile, name: str) -> Link | None:
    if checkpoint.metadata.get("format") == FORMAT:
        check_version(checkpoint.metadata, FORMAT, VERSION, checkpoint.name)
        saved = checkpoint.metadata.get("link", "")
        return link_from_dict(json_object(saved.encode(), f"{checkpoint.name}: the link"))
    return checkpoint.link(name)
