"""Bergamot's translator out of Marian's file that ``python benchmarks/fetch_models.py bergamot-enpt`` fetched, in NumPy.

::

    x = 16 Wemb[token] + sinusoids ;  six encoders ;  two decoders of a simple recurrent unit, attention and a product
    logits = x @ Wemb.T + b ;  the next token is the likeliest one

Weights are int8 with one scale an array, those of products the other way round; here they are float32. The shortlist of a
sentence: the fifty most frequent tokens, and those that the file names for each token of the source. As Marian has it
(``src/models/transformer.h``, ``src/data/shortlist.h``); of thirty translations 27 were those of the wheel's own program, which
rounds to int8 and takes the shortlist.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from headlong.bench.measure import Contestant
from headlong.bench.rivals import rival
from headlong.bench.rivals.dense import best, found
from headlong.errors import MalformedFileError

from .models import model_file  # noqa: TID252 - common.models in a script, benchmarks.common.models here

INT8, FLOAT32, END = 0x4101, 0x0404, 0
MAGIC = 0xF11A48D5013417F5


def tensors(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    version, count = struct.unpack_from("<QQ", data)
    if version != 1:
        raise MalformedFileError(f"{path} is version {version} of Marian's binary files; expected 1")
    heads = np.frombuffer(data, np.uint64, 4 * count, 16).reshape(count, 4).astype(int).tolist()  # name, type, rank, bytes
    at, names, found = 16 + 32 * count, list[str](), dict[str, Any]()
    for length, *_ in heads:
        names.append(data[at : at + length - 1].decode())
        at += length
    shapes = []
    for _, _, rank, _ in heads:
        shapes.append(struct.unpack_from(f"<{rank}i", data, at))
        at += 4 * rank
    at += 8 + struct.unpack_from("<Q", data, at)[0]  # up to a whole page
    for name, shape, (_, kind, _, size) in zip(names, shapes, heads, strict=True):
        if kind == FLOAT32:
            found[name] = np.frombuffer(data, np.float32, np.prod(shape), at).reshape(shape)
        elif kind == INT8 and not name.endswith("_QuantMultA"):  # what inputs are multiplied by where they are rounded
            codes = np.frombuffer(data, np.int8, np.prod(shape), at)
            codes = codes.reshape(shape) if name == "Wemb" else codes.reshape(shape[::-1]).T
            found[name] = codes.astype(np.float32) / np.frombuffer(data, np.float32, 1, at + codes.size)
        at += size
    return found


class Translator:
    def __init__(self, model: Path, lists: Path, words: Path) -> None:
        from tokenizers import Tokenizer

        self.at, self.tokenizer = tensors(model), Tokenizer.from_file(str(words))
        raw = lists.read_bytes()
        magic, _, self.first, _, places, entries = struct.unpack_from("<6Q", raw)
        if magic != MAGIC:
            raise MalformedFileError(f"{lists} is no shortlist of Marian's")
        self.places = np.frombuffer(raw, np.uint64, places, 48).astype(np.int64)
        self.entries = np.frombuffer(raw, np.uint32, entries, 48 + 8 * places)

    def tokens(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False).ids, END]

    def shortlist(self, tokens: list[int]) -> Any:
        named = [self.entries[self.places[token] : self.places[token + 1]] for token in set(tokens)]
        return np.unique(np.concatenate([np.arange(self.first), *named])).astype(np.int64)

    def translated(self, tokens: list[int]) -> tuple[list[int], Any]:
        """The tokens, and the hidden vectors ``[n, 256]`` that they come from."""
        at, x = self.at, 16 * self.at["Wemb"][tokens] + self._places(0, len(tokens))
        for layer in range(1, 7):
            x = self._product(f"encoder_l{layer}_ffn", self._attended(f"encoder_l{layer}_self", x, x))
        source, cells, said, hidden = x, [np.zeros(1, np.float32)] * 2, list[int](), list[Any]()
        while (not said or said[-1] != END) and len(said) < 2.5 * len(tokens):
            x = self._places(len(said), 1) + (16 * at["Wemb"][said[-1:]] if said else 0)
            for layer in (1, 2):
                name = f"decoder_l{layer}"
                keep = 1 / (1 + np.exp(-(x @ at[f"{name}_rnn_Wf"] + at[f"{name}_rnn_bf"])))
                cells[layer - 1] = keep * cells[layer - 1] + (1 - keep) * (x @ at[f"{name}_rnn_W"])
                x = self._normed(f"{name}_rnn_ffn", x + cells[layer - 1].clip(0))
                x = self._product(f"{name}_ffn", self._attended(f"{name}_context", x, source))
            hidden.append(x[0])
            said.append(int((x[0] @ at["Wemb"].T + at["decoder_ff_logit_out_b"][0]).argmax()))
        return said, np.array(hidden, np.float32)

    def _places(self, start: int, count: int) -> Any:
        waves = np.arange(start, start + count)[:, None] * np.exp(-np.log(1e4) / 127 * np.arange(128))
        return np.concatenate([np.sin(waves), np.cos(waves)], 1).astype(np.float32)

    def _normed(self, name: str, x: Any) -> Any:
        x = x - x.mean(1, keepdims=True)
        return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * self.at[f"{name}_ln_scale"] + self.at[f"{name}_ln_bias"]

    def _product(self, name: str, x: Any) -> Any:
        at = self.at
        inner = (x @ at[f"{name}_W1"] + at[f"{name}_b1"]).clip(0)
        return self._normed(f"{name}_ffn", x + inner @ at[f"{name}_W2"] + at[f"{name}_b2"])

    def _attended(self, name: str, x: Any, source: Any) -> Any:
        def heads(letter: str, rows: Any) -> Any:
            return (rows @ self.at[f"{name}_W{letter}"] + self.at[f"{name}_b{letter}"]).reshape(len(rows), 8, 32).swapaxes(0, 1)

        scores = heads("q", x) @ heads("k", source).swapaxes(1, 2) / np.float32(32**0.5)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        mixed = (shares / shares.sum(2, keepdims=True) @ heads("v", source)).swapaxes(0, 1).reshape(len(x), 256)
        return self._normed(f"{name}_Wo", x + mixed @ self.at[f"{name}_Wo"] + self.at[f"{name}_bo"])

    def hidden(self, texts: dict[str, list[str]]) -> dict[str, Any]:
        """Vectors of the translations of each list, and ``of``: the sentence that each of ``valid`` belongs to."""
        made = {split: [self.translated(self.tokens(text))[1] for text in some] for split, some in texts.items()}
        of = np.repeat(np.arange(len(made["valid"])), [len(part) for part in made["valid"]])
        return {**{split: np.concatenate(parts) for split, parts in made.items()}, "of": of}


def opened() -> Translator:
    return Translator(*(model_file(f"bergamot-enpt{part}") for part in ("", "-shortlist", "-words")))


def shortlisted(model: Translator, texts: list[str], hidden: Any, of: Any) -> tuple[float, float]:
    """Has the shortlist take part: PyTorch's product over those rows alone that the sentences of a batch name, which are put
    side by side before, as the program does once a sentence. How often it lacks the likeliest token, and its mean length."""
    lists = [model.shortlist(model.tokens(text)) for text in texts]
    weight, bias = model.at["Wemb"], model.at["decoder_ff_logit_out_b"][0]
    likeliest = (hidden @ weight.T + bias).argmax(1)
    lost = np.mean([one not in lists[sentence] for one, sentence in zip(likeliest, of, strict=True)])
    known = {row.tobytes(): sentence for row, sentence in zip(hidden, of, strict=True)}

    @rival("lexical shortlist", "torch")
    def build(layer: Any, k: int, threads: int) -> Contestant:
        import torch

        torch.set_num_threads(threads)

        def prepare(rows: Any) -> Any:
            ids = np.unique(np.concatenate([lists[known[row.tobytes()]] for row in rows]))
            return *map(torch.from_numpy, (rows.copy(), weight[ids], bias[ids])), torch.from_numpy(ids)

        @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
        def call(given: Any) -> tuple[Any, Any]:
            rows, some, add, ids = given
            places, log_probs = best(torch.nn.functional.linear(rows, some, add), k)
            return ids[places], log_probs

        return Contestant("lexical shortlist", call, prepare, found, {"reads": "rows that the source's words name"})

    return float(lost), float(np.mean([len(one) for one in lists]))
