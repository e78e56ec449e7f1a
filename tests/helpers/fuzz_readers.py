"""Feed the file readers damaged files: every refusal has to be one of ours, and nothing may crash.

    python tests/helpers/fuzz_readers.py --inputs 1000000 --seed 1

Each input is a good file, damaged in one to three ways: bits flipped, bytes cut off or added, the header's text edited,
its length, offsets, shapes and types changed, its numbers poisoned. What the readers still accept is read to the last byte,
and the safetensors library has to accept it too. No input may take more than five seconds, nor four times its file's memory.
Input number n of a seed is always the same; a failing one is kept, with its number.
A reader joins by adding a function that returns its :class:`Target` to ``TARGETS``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import signal
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

import headlong
from headlong.errors import HeadlongError
from headlong.layers.checkpoint import Checkpoint
from headlong.layers.conventions import link_of_config
from headlong.layers.matrix import Layer
from headlong.links import SoftCap
from headlong.store import DTYPES, open_file, write_file

NUMBERS = [0, 1, -1, 2, 7, 63, 64, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 0.5, True]
WORDS = [b"null", b"true", b"[]", b"{}", b'""', b"NaN", b"1e999", b"-0", b'"\\ud800"', b"\xff", b"\0", b"[" * 2000, b"9" * 5000]
POISONS = [
    *(struct.pack("<f", x) for x in (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, -1.0, 1e30)),
    *(struct.pack("<d", x) for x in (math.nan, math.inf, -1e300, 5e-324)),
    *(struct.pack("<H", x) for x in (0x7C00, 0x7E00, 0xFC00, 0x7F80, 0x7FC0, 0xFFFF)),
    b"\0",
    b"\xff",
]
"""NaN, infinities, extremes in every float type; as code bytes, whatever they come to."""
SECONDS, TIMES, SPARE = 5.0, 4, 32 << 20
"""Processor time that an input may take; times its file's size that it may take of memory, and what else is needed."""


class Target(NamedTuple):
    """Good files to damage, and the reader that gets them: ``read(path)`` of the damaged file in its own folder."""

    name: str
    seeds: list[bytes]
    file: str
    read: Callable[[Path], object]
    is_safetensors: bool = True


def layer_target(folder: Path) -> Target:
    """Layer files of every type, with and without bias and link."""
    rng = np.random.default_rng(1)
    seeds = []
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        for bias, link in ((None, None), (rng.standard_normal(5).astype(np.float32), SoftCap(30.0))):
            Layer(rng.standard_normal((5, 4)).astype(dtype), bias, link).save(folder / "seed")
            seeds.append((folder / "seed").read_bytes())
    return Target("layer", seeds, "layer.safetensors", lambda path: Layer.load(path).checksum())


def tensors_target(folder: Path) -> Target:
    """One file with a tensor of every type; all of them are read."""
    rng = np.random.default_rng(2)
    tensors = {name: rng.integers(0, 2, (3, i % 3)).astype(dtype) for i, (name, dtype) in enumerate(DTYPES.items())}
    write_file(folder / "seed", tensors, {"format": "pt"})

    def read(path: Path) -> None:
        file = open_file(path)
        for name in file.tensors:
            file.read(name).tobytes()

    return Target("tensors", [(folder / "seed").read_bytes()], "tensors.safetensors", read)


def index_target(folder: Path) -> Target:
    """The index of a sharded checkpoint; its shards are good files beside it."""
    names = {"model.embed_tokens.weight": "a.safetensors", "lm_head.bias": "b.safetensors"}
    write_file(folder / "a.safetensors", {"model.embed_tokens.weight": np.ones((5, 4), np.float16)})
    write_file(folder / "b.safetensors", {"lm_head.bias": np.ones(5, np.float32)})
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    seed = json.dumps({"metadata": {"total_size": 60}, "weight_map": names}).encode()
    return Target("index", [seed], "model.safetensors.index.json", lambda path: Layer.load(path).checksum(), False)


def config_target(folder: Path) -> Target:
    """``config.json`` beside a tied head."""
    write_file(folder / "model.safetensors", {"model.embed_tokens.weight": np.ones((5, 4), np.float16)})
    texts = [
        {"model_type": "gemma4", "tie_word_embeddings": True, "text_config": {"final_logit_softcapping": 30.0}},
        {"model_type": "cohere", "logit_scale": 0.0625, "logits_scaling": None, "hidden_size": 4},
    ]
    seeds = [json.dumps(text).encode() for text in texts]

    def read(path: Path) -> None:
        Layer.load(path.parent).checksum()
        link_of_config(Checkpoint(path.parent).config())

    return Target("config", seeds, "config.json", read, False)


def quantised_target(folder: Path) -> Target:
    """Output layers stored as codes and scales: packed, by rows, with zero points, bitsandbytes'."""
    rng = np.random.default_rng(3)
    words, codes = rng.integers(-(2**31), 2**31, (6, 2)).astype(np.int32), rng.integers(-128, 128, (6, 16)).astype(np.int8)
    scale, zero = np.full((6, 2), 0.5, np.float16), rng.integers(-8, 8, (6, 2)).astype(np.int8)
    shape, packed_zero = np.array([6, 16]), words[:1]
    forms: list[dict[str, Any]] = [
        {"weight_packed": words, "weight_scale": scale, "weight_shape": shape, "weight_zero_point": packed_zero},
        {"weight": codes, "weight_scale": scale, "weight_zero_point": zero},
        {"weight": codes, "SCB": np.ones(6, np.float32)},
        {"_weight_qdata": codes.astype(ml_dtypes.float8_e4m3fn), "_weight_scale": scale[:, :1]},
    ]
    seeds = []
    for form in forms:
        write_file(folder / "seed", {f"lm_head.{name}": part for name, part in form.items()}, {"format": "pt"})
        seeds.append((folder / "seed").read_bytes())
    return Target("quantised", seeds, "model.safetensors", lambda path: Layer.load(path).checksum())


def gguf_target(folder: Path) -> Target:
    """GGUF files with facts of every kind and tensors that are mapped and written out; the header is most of them."""
    import gguf

    from tiny_gguf import gguf_file

    rng = np.random.default_rng(4)
    seeds, words = [], {"tokenizer.ggml.tokens": ["a", "b", ""], "tokenizer.ggml.scores": [0.5, 1.0]}
    for fact, kind in (("gemma2.final_logit_softcapping", "F16"), ("granite.logit_scale", "Q8_0")):
        data = gguf.quants.quantize(rng.standard_normal((5, 32)).astype(np.float32), gguf.GGMLQuantizationType[kind])
        tensors = {"token_embd.weight": (data, kind), "output.bias": np.ones(5, np.float32)}
        seeds.append(gguf_file(folder / "seed", fact.partition(".")[0], tensors, {fact: 8.0, **words}).read_bytes())
    return Target("gguf", seeds, "model.gguf", lambda path: Layer.load(path).checksum(), False)


def engine_target(folder: Path) -> Target:
    """Saved engines of every method over one level of codes, or none."""
    layer, _ = small_layer()
    made = [headlong.compile(layer, method, threads=1) for method in ("full", "codes", "svd")]
    return asked("engine", made, folder)


def small_layer() -> tuple[Layer, Any]:
    """A layer small enough that most damage falls on what describes it, and hidden vectors that it may see."""
    rng = np.random.default_rng(3)
    layer = Layer(rng.standard_normal((70, 8)).astype(np.float16), rng.standard_normal(70).astype(np.float32))
    return layer, rng.standard_normal((30, 8))


def asked(name: str, engines: list[headlong.Engine], folder: Path) -> Target:
    """Whatever loads is asked every question, so that native code meets what the reader let through."""
    seeds = []
    for engine in engines:
        engine.save(folder / "seed")
        seeds.append((folder / "seed").read_bytes())
    hidden = small_layer()[1][:2]

    def read(path: Path) -> None:
        engine = headlong.load(path, threads=1, verify=False)  # the checksum would refuse all alike
        engine.topk(hidden, k=3)
        engine.lse(hidden, eps=1e-3)
        engine.log_prob(hidden, [[0], [69]])
        engine.sample(hidden, n=2, seed=1, top_p=0.9)

    return Target(name, seeds, "engine.safetensors", read)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "layer": layer_target, "tensors": tensors_target, "index": index_target, "config": config_target,
    "quantised": quantised_target, "gguf": gguf_target, "engine": engine_target,
}  # fmt: skip


# ---- damage: each takes the bytes of a file and gives others ----


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # the header decides most, so half of the flips go there
        end = len(damaged) if rng.random() < 0.5 else min(len(damaged), 400)
        if end:
            damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] if rng.random() < 0.7 else data[:start] + data[start + rng.randrange(1, 20) :]


def add(data: bytes, rng: random.Random) -> bytes:
    place = rng.choice((len(data), rng.randrange(len(data) + 1)))
    return data[:place] + rng.randbytes(rng.choice((1, 8, 64))) + data[place:]


def edit_text(data: bytes, rng: random.Random) -> bytes:
    """Put an odd word in place of some characters of the header, or of a JSON file."""
    head, text, rest = split(data)
    if not text:
        return data
    start = rng.randrange(len(text))
    text = text[:start] + rng.choice(WORDS) + text[start + rng.choice((0, 1, 4)) :]
    return joined(head, text, rest, rng)


def edit_values(data: bytes, rng: random.Random) -> bytes:
    """Change one value of the header: an offset, a size, a type, a name, a whole entry."""
    head, text, rest = split(data)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return data
    return joined(head, json.dumps(changed(value, rng)).encode(errors="surrogatepass"), rest, rng)


def changed(value: Any, rng: random.Random) -> Any:
    """The same JSON value with one part of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.15:  # renamed, dropped, or doubled under another name
            part = value.get(key)
            left = {k: v for k, v in value.items() if k != key or rng.random() < 0.3}
            return {**left, rng.choice([*value, "bias", "weight", "__metadata__", "x"]): part}
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        put = [changed(value[place], rng)] if rng.random() < 0.8 else rng.choice(([], [1], [0, 0], [1] * 70))
        return value[:place] + put + value[place + 1 :]
    if isinstance(value, int) and rng.random() < 0.6:
        return value + rng.choice((-64, -2, -1, 1, 2, 64, value))
    if isinstance(value, str) and value.startswith("{") and rng.random() < 0.9:  # a record within the metadata
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(changed(json.loads(value), rng))
    if isinstance(value, str) and rng.random() < 0.6:
        return rng.choice([*DTYPES, "F4", "F99", "", "1", "999", "headlong layer", "../a.safetensors", "a.safetensors"])
    return rng.choice([*NUMBERS, None, [], {}, "text", [0, 4], {"kind": "affine", "scale": 1, "shift": 0}])


def retell(data: bytes, rng: random.Random) -> bytes:
    """A header that still adds up: another shape or type of the same size, two names swapped, or a poisoned number."""
    head, text, rest = split(data)
    try:
        entries = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        name, other = rng.choice(list(entries)), rng.choice(list(entries))
        entry = entries[name]
        kind, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        size = DTYPES[kind].itemsize
        same = [key for key, dtype in DTYPES.items() if dtype.itemsize == size]
        count = (stop - start) // size
        shapes = [shape[::-1], [count], [1, count], [count, 1], [*shape, 1], [0, *shape], shape]
        changes = [{"shape": rng.choice(shapes)}, {"dtype": rng.choice(same)}, {"dtype": "U8", "shape": [stop - start]}]
        entries[name] = {**entry, **rng.choice(changes)}
        if rng.random() < 0.2:
            entries[name], entries[other] = entries[other], entries[name]
        if rng.random() < 0.3:  # infinity or NaN in any 16- or 32-bit type
            rest = rest[:start] + rng.choice((b"\0\0\x80\x7f", b"\xff\xff\xff\xff", b"\0\x7c\0\x7c")) + rest[start + 4 :]
        return joined(head, json.dumps({**json.loads(text), **entries}).encode(), rest, rng)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, ZeroDivisionError):
        return data  # no header of tensors, or one that an earlier damage took apart


def poison(data: bytes, rng: random.Random) -> bytes:
    """Odd numbers among the tensors, the header as it was: what native code meets when a reader looks at shapes alone."""
    head, text, rest = split(data)
    if not rest:
        return data
    body = bytearray(rest)
    for _ in range(rng.choice((1, 2, 16, 200))):
        place, number = rng.randrange(len(body)), rng.choice(POISONS)
        place -= place % len(number) if rng.random() < 0.9 else 0
        body[place : place + len(number)] = number[: len(body) - place]
    return joined(head, text, bytes(body), rng)


def edit_length(data: bytes, rng: random.Random) -> bytes:
    number = rng.choice([*range(20), 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 10**8, 10**8 + 1, len(data), len(data) - 8])
    return struct.pack("<Q", number % 2**64) + data[8:]


DAMAGES = (flip_bits, cut, add, edit_text, edit_values, edit_values, edit_values, retell, retell, poison, poison, edit_length)


def split(data: bytes) -> tuple[bool, bytes, bytes]:
    """``(has a length, header, the rest)``; a JSON file is all header."""
    if data[:1] == b"{" or len(data) < 8:
        return False, data, b""
    length = min(struct.unpack("<Q", data[:8])[0], len(data) - 8)
    return True, data[8 : 8 + length], data[8 + length :]


def joined(head: bool, text: bytes, rest: bytes, rng: random.Random) -> bytes:
    if not head:
        return text
    length = len(text) if rng.random() < 0.95 else len(text) + rng.choice((-1, 1, 8))
    return struct.pack("<Q", max(0, length)) + text + rest


def damaged(target: Target, seed: int, number: int) -> bytes:
    """Input ``number`` of ``seed``, always the same."""
    rng = random.Random(f"{target.name} {seed} {number}")
    data = rng.choice(target.seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(DAMAGES)(data, rng)
    return data


class FaultError(AssertionError):
    """A reader failed in another way than it may."""


@contextlib.contextmanager
def limits(size: int) -> Iterator[None]:
    """TimeoutError or MemoryError for what takes longer, or more, than a file of ``size`` bytes may; on Linux."""
    if sys.platform != "linux":
        yield
        return
    import resource

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s of processor time")

    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGVTALRM, late)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (used + TIMES * size + SPARE, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def check_one(target: Target, path: Path, data: bytes) -> str:
    """The outcome of one input: ``"accepted"`` or the name of our exception; FaultError for everything else."""
    path.write_bytes(data)
    try:
        with limits(len(data)):
            target.read(path)
    except HeadlongError as error:
        str(error).encode()  # printable as it is
        return type(error).__name__
    except BaseException as error:
        raise FaultError(f"{type(error).__name__}: {error}") from error
    if target.is_safetensors:
        try:
            safetensors.deserialize(data)
        except Exception as error:
            raise FaultError(f"accepted here, refused by the safetensors library: {error}") from error
    return "accepted"


def fuzz(name: str, inputs: int, seed: int, keep: Path | None = None, first: int = 0) -> Counter[str]:
    """Inputs ``first`` to ``first + inputs - 1`` of a target, by outcome; a FaultError names the input, ``keep`` gets it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        target = TARGETS[name](Path(folder))
        path = Path(folder) / target.file
        for good in target.seeds:
            assert check_one(target, path, good) == "accepted"
        outcomes: Counter[str] = Counter()
        for number in range(first, first + inputs):
            data = damaged(target, seed, number)
            try:
                outcomes[check_one(target, path, data)] += 1
            except FaultError as fault:
                if keep:
                    (keep / f"{name}-{seed}-{number}.bin").write_bytes(data)
                raise FaultError(f"target {name}, seed {seed}, input {number}: {fault}") from fault
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all, shared out among the targets")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in TARGETS:  # which ends at the first exception that is not ours
        outcomes = fuzz(name, -(-options.inputs // len(TARGETS)), options.seed, Path.cwd())
        print(f"{name}: {outcomes.total()} inputs, seed {options.seed}: {dict(outcomes.most_common())}")


if __name__ == "__main__":
    main()
