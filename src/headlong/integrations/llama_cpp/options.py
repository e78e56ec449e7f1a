"""The options of ``llama_cpp.Llama`` as a context of llama.cpp takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llama_cpp

from headlong.errors import OptionError, UnsupportedError

ABSENT: dict[str, tuple[Any, str]] = {
    "n_gpu_layers": (0, "layers on a GPU"),
    "tensor_split": (None, "a model on several GPUs"),
    "vocab_only": (False, "a model without weights"),
    "kv_overrides": (None, "facts that are not the file's"),
    "embedding": (False, "embeddings"),
    "lora_base": (None, "another model beneath an adapter"),
    "draft_model": (None, "speculative decoding"),
    "spm_infill": (False, "infilling"),
}
"""Options that are not supported: their defaults, and what they are."""
UNUSED = (
    "split_mode", "main_gpu", "use_mmap", "use_mlock", "logits_all", "numa", "pooling_type", "cache_prompt",
)  # fmt: skip
"""Options that change nothing here: log-probabilities are always available, files are always mapped."""
FIELDS = {field[0] for field in llama_cpp.llama_context_params._fields_} - {"embeddings", "pooling_type", "n_seq_max"}


def refuse_absent(options: Mapping[str, Any], absent: Mapping[str, tuple[Any, str]]) -> None:
    """UnsupportedError for an option that is ``absent`` here and not at its default."""
    for name, (default, what) in absent.items():
        if options.get(name, default) not in (default, None):
            came = options[name]
            raise UnsupportedError(f"{name} is {came!r}; {what} is not supported: leave it out, or use llama_cpp.Llama")


def context_options(options: Mapping[str, Any], sequences: int, threads: int, trained: int) -> dict[str, Any]:
    """Fields of ``llama_context_params`` for ``sequences`` texts of ``n_ctx`` positions each."""
    refuse_absent(options, ABSENT)
    given = {name: value for name, value in options.items() if name not in UNUSED and name not in ABSENT}
    flash = given.pop("flash_attn", False)
    kind = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    given = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(set(given) - FIELDS)
    if unknown:
        raise OptionError(f"{unknown[0]} is no option; a model has those of llama_cpp.Llama, sequences, eps, delta, cache")
    length = given.pop("n_ctx", 512) or trained
    batch = min(given.pop("n_batch", 512), length * sequences)
    return {
        "flash_attn_type": kind, "n_threads": threads, "n_threads_batch": threads, **given,
        "n_ctx": length * sequences, "n_batch": batch, "n_ubatch": min(batch, given.get("n_ubatch", 512)),
        "n_seq_max": sequences,
    }  # fmt: skip
