"""Language models of a few thousand weights in GGUF files that llama.cpp runs, one for each family; weights are random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

VOCAB, DIM, HEADS, GROUPS, PER_HEAD, INNER, LAYERS = 1000, 64, 4, 2, 16, 96, 2
SSM = {"conv_kernel": 4, "inner_size": 64, "state_size": 16, "time_step_rank": 4, "group_count": 1}
Shapes = dict[str, tuple[int, ...]]
FAMILIES: dict[str, dict[str, float]] = {
    "llama": {}, "mistral3": {}, "qwen2": {}, "qwen3": {}, "gemma": {},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, "gemma3": {}, "phi3": {}, "smollm3": {},
    "granite": {"logit_scale": 8.0, "embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.015625},
    "falcon-h1": {},
}  # fmt: skip
"""And the facts of each that move embeddings, attention or logits."""
TIED = {"gemma", "gemma2", "gemma3"}
SHOWN = [chr(place) for place in (*range(33, 127), *range(161, 173), *range(174, 256))]
LETTERS = SHOWN + [chr(256 + place) for place in range(256 - len(SHOWN))]
"""GPT-2's 256 bytes as letters; a space is the letter 0x120."""


def of_layer(family: str) -> Shapes:
    """The matrices and vectors of one layer."""
    wide, narrow = HEADS * PER_HEAD, GROUPS * PER_HEAD
    found: Shapes = {"attn_norm": (DIM,), "attn_output": (DIM, wide), "ffn_norm": (DIM,), "ffn_down": (DIM, INNER)}
    if family == "phi3":
        return found | {"attn_qkv": (wide + 2 * narrow, DIM), "ffn_up": (2 * INNER, DIM)}
    found |= {"attn_q": (wide, DIM), "attn_k": (narrow, DIM), "attn_v": (narrow, DIM)}
    found |= {"ffn_gate": (INNER, DIM), "ffn_up": (INNER, DIM)}
    if family in ("qwen3", "gemma3"):
        found |= {"attn_q_norm": (PER_HEAD,), "attn_k_norm": (PER_HEAD,)}
    if family in ("gemma2", "gemma3"):
        found |= {"post_attention_norm": (DIM,), "post_ffw_norm": (DIM,)}
    if family == "falcon-h1":
        inner, state, heads = SSM["inner_size"], SSM["state_size"], SSM["time_step_rank"]
        conv = inner + 2 * state
        found |= {"ssm_in": (inner + conv + heads, DIM), "ssm_conv1d": (conv, SSM["conv_kernel"])}
        found |= {"ssm_out": (DIM, inner), "ssm_norm": (1, inner)}
    return found


def finished(writer: Any) -> None:
    """All that was added stands in the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_file(path: Path, architecture: str, tensors: dict[str, Any], facts: dict[str, Any] | None = None) -> Path:
    """Any GGUF file: ``tensors`` are arrays, or ``data, the name of ggml's type``; ``facts`` by their whole names."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (facts or {}).items():
        kind = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    for name, stored in tensors.items():
        data, of = stored if isinstance(stored, tuple) else (stored, None)
        writer.add_tensor(name, data, raw_dtype=of and gguf.GGMLQuantizationType[of])
    finished(writer)
    return path


def write(path: Path, family: str = "llama", *, vocab: int = VOCAB, head: str = "F32", seed: int = 0, **facts: Any) -> Path:
    """A model of ``family``; its embedding and head are of ggml's type ``head``."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, family)
    _facts(writer, family, vocab, facts)
    kind = gguf.GGMLQuantizationType[head]

    def add(name: str, shape: tuple[int, ...], kind: Any = gguf.GGMLQuantizationType.F32) -> None:
        size = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        values = rng.standard_normal(shape) * size if len(shape) > 1 else 1 + 0.1 * rng.standard_normal(shape)
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)

    add("token_embd.weight", (vocab, DIM), kind)
    if family not in TIED:
        add("output.weight", (vocab, DIM), kind)
    add("output_norm.weight", (DIM,))
    for layer in range(LAYERS):
        for name, shape in of_layer(family).items():
            bare = family == "falcon-h1" and name == "ffn_norm"
            add(f"blk.{layer}.{name}" + ("" if bare else ".weight"), shape)
        if family == "qwen2":
            for name, shape in (("attn_q", DIM), ("attn_k", GROUPS * PER_HEAD), ("attn_v", GROUPS * PER_HEAD)):
                add(f"blk.{layer}.{name}.bias", (shape,))
        if family == "falcon-h1":
            heads, conv = SSM["time_step_rank"], SSM["inner_size"] + 2 * SSM["state_size"]
            add(f"blk.{layer}.ssm_conv1d.bias", (conv,))
            writer.add_tensor(f"blk.{layer}.ssm_a", -np.exp(rng.standard_normal((heads, 1))).astype(np.float32))
            writer.add_tensor(f"blk.{layer}.ssm_d", np.ones((heads, 1), np.float32))
            writer.add_tensor(f"blk.{layer}.ssm_dt.bias", rng.standard_normal(heads).astype(np.float32))
    finished(writer)
    return path


def opened(folder: Path, family: str = "qwen3", **options: Any) -> Any:
    """A :class:`Model` of such a file, with its cache beside it."""
    from headlong.integrations.llama_cpp import Model

    path = write(folder / f"{family}.gguf", family, head="Q8_0")
    return Model(path, cache=folder, **{"n_threads": 1, "n_ctx": 256, "eps": 1e-4, **options})


def _facts(writer: Any, family: str, vocab: int, facts: dict[str, Any]) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(PER_HEAD)
    writer.add_value_length(PER_HEAD)
    writer.add_rope_dimension_count(PER_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    for key, value in (FAMILIES.get(family, {}) | facts).items():
        writer.add_float32(f"{family}.{key}", value)
    if family == "falcon-h1":
        for key, number in SSM.items():
            writer.add_uint32(f"{family}.ssm.{key}", number)
    words = [f"w{number}" for number in range(vocab - len(LETTERS) - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*LETTERS, *words, "ab", "<s>", "</s>"])
    writer.add_token_types([1] * (vocab - 2) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(vocab - 2)
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:")
