"""Whisper base out of the CTranslate2 file that ``python benchmarks/fetch_models.py whisper-base`` fetched, for transformers.

::

    model.bin:  version, name of the specification, revision, number of tensors; of each: name, sizes, type, bytes; aliases

Weights are float16 there, and float32 here. The queries, keys and values of a layer lie one under the other. Speech is the wav
files in the wheel ``moonshine-voice`` (0.1.5).
"""

from __future__ import annotations

import math
import struct
import wave
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headlong.demo.language_model import package_folder
from headlong.errors import MalformedFileError

from .models import model_file  # noqa: TID252 - common.models in a script, benchmarks.common.models here

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
RATE = 16_000
SAID = {"language": "en", "task": "transcribe"}
WINDOW, WINDOWS = 10, {"train": ("endgame_nagg_nell", "beckett"), "valid": ("two_cities",)}
"""Seconds that are heard at once for vectors, from each second of these recordings on."""


def _text(file: BinaryIO) -> str:
    (size,) = struct.unpack("<H", file.read(2))
    return file.read(size).rstrip(b"\0").decode()


def tensors(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with path.open("rb") as file:
        (version,) = struct.unpack("<I", file.read(4))
        kind = _text(file)
        _, count = struct.unpack("<II", file.read(8))
        if version != 6 or kind != "WhisperSpec":
            raise MalformedFileError(f"{path} is version {version} of {kind!r}; expected CTranslate2's 6 of WhisperSpec")
        for _ in range(count):
            name, (rank,) = _text(file), struct.unpack("<B", file.read(1))
            shape = struct.unpack(f"<{rank}I", file.read(4 * rank))
            of, size = struct.unpack("<BI", file.read(5))
            found[name] = np.frombuffer(file.read(size), TYPES[of]).reshape(shape)
    return found


def opened() -> Any:
    """The model in float32, as its makers configured it."""
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration
    from transformers.models.whisper.configuration_whisper import NON_SPEECH_TOKENS_MULTI
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    found = tensors(model_file("whisper-base"))
    vocab, dim = found["decoder/embeddings/weight"].shape
    sizes = {"vocab_size": vocab, "d_model": dim, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8}
    sizes |= {"decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_target_positions": 448}
    config = WhisperConfig(**sizes)
    model = WhisperForConditionalGeneration(config).eval()
    ends = {"eos_token_id": 50257, "pad_token_id": 50257, "bos_token_id": 50257, "decoder_start_token_id": 50258}
    said = {"is_multilingual": True, "no_timestamps_token_id": 50363, "prev_sot_token_id": 50361, "max_length": 448}
    languages = {f"<|{code}|>": 50259 + place for place, code in enumerate(list(LANGUAGES)[:99])}
    model.generation_config = GenerationConfig(
        **ends, **said, lang_to_id=languages, task_to_id={"transcribe": 50359, "translate": 50358},
        suppress_tokens=list(NON_SPEECH_TOKENS_MULTI), begin_suppress_tokens=[220, 50257], max_initial_timestamp_index=50,
    )  # fmt: skip
    state = {f"model.{name}": torch.tensor(array.astype(np.float32)) for name, array in _renamed(found)}
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def _renamed(found: dict[str, Any]) -> Any:
    for part in ("encoder", "decoder"):
        yield f"{part}.embed_positions.weight", found[f"{part}/position_encodings/encodings"]
        yield from _norm(found, f"{part}/layer_norm", f"{part}.layer_norm")
        for place in range(6):
            old, new = f"{part}/layer_{place}", f"{part}.layers.{place}"
            yield from _norm(found, f"{old}/self_attention/layer_norm", f"{new}.self_attn_layer_norm")
            yield from _attention(found, f"{old}/self_attention", f"{new}.self_attn", {"linear_0": "qkv", "linear_1": "o"})
            if part == "decoder":
                yield from _norm(found, f"{old}/attention/layer_norm", f"{new}.encoder_attn_layer_norm")
                parts = {"linear_0": "q", "linear_1": "kv", "linear_2": "o"}
                yield from _attention(found, f"{old}/attention", f"{new}.encoder_attn", parts)
            yield from _norm(found, f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")
            for place_in, name in enumerate(("fc1", "fc2")):
                for kind in ("weight", "bias"):
                    yield f"{new}.{name}.{kind}", found[f"{old}/ffn/linear_{place_in}/{kind}"]
    yield "decoder.embed_tokens.weight", found["decoder/embeddings/weight"]
    for name in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            yield f"encoder.{name}.{kind}", found[f"encoder/{name}/{kind}"]


def _norm(found: dict[str, Any], old: str, new: str) -> Any:
    yield f"{new}.weight", found[f"{old}/gamma"]
    yield f"{new}.bias", found[f"{old}/beta"]


def _attention(found: dict[str, Any], old: str, new: str, parts: dict[str, str]) -> Any:
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    for linear, letters in parts.items():
        for kind in ("weight", "bias"):
            pieces = np.split(found[f"{old}/{linear}/{kind}"], len(letters))
            for letter, piece in zip(letters, pieces, strict=True):
                if (letter, kind) != ("k", "bias"):  # which Whisper has not
                    yield f"{new}.{names[letter]}.{kind}", piece


def speech(name: str = "two_cities") -> Any:
    """A recording as floats at Whisper's rate."""
    from scipy.signal import resample_poly

    with wave.open(str(package_folder("moonshine_voice", "moonshine-voice==0.1.5") / f"assets/{name}.wav"), "rb") as file:
        if file.getsampwidth() != 2:
            raise MalformedFileError(f"{name}.wav has samples of {file.getsampwidth()} bytes; expected two")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, file.getnchannels())
        rate = file.getframerate()
    shared = math.gcd(rate, RATE)
    mono = samples.astype(np.float32).mean(1) / 2**15
    return resample_poly(mono, RATE // shared, rate // shared).astype(np.float32)


def features(sound: Any) -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor()(sound, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True)


def heard(model: Any, sounds: Any) -> Any:
    """The hidden vectors ``[n, dim]`` of which the model writes each sound, greedily."""
    import torch

    vectors: list[Any] = []
    keeping = model.proj_out.register_forward_pre_hook(lambda _, given: vectors.append(given[0][:, -1]))
    for sound in sounds:
        model.generate(**features(sound), **SAID)
    keeping.remove()
    return torch.cat(vectors)


def windows() -> dict[str, Any]:
    model, found = opened(), {}
    for split, names in WINDOWS.items():
        sounds = [speech(name) for name in names]
        starts = [(sound, at) for sound in sounds for at in range(0, max(len(sound) - WINDOW * RATE, 0) + 1, RATE)]
        found[split] = heard(model, (sound[at : at + WINDOW * RATE] for sound, at in starts)).numpy()
    return found
