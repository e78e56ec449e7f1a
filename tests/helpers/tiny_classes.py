"""Every class of transformers with logits over words that can be built small, and how its head is read.

    python tests/helpers/tiny_classes.py --json results/transformers-heads.json

Each class is built with random weights, saved, and read from its folder: link(hidden @ weight.T + bias) has to be the logits
that the class itself computes from the hidden vectors that enter its output layer, or the folder is refused. ``tweak`` sets
numbers in the configuration that a family may do something with.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.models.auto import modeling_auto

import headlong
from headlong.errors import HeadlongError
from headlong.layers.conventions import CONVENTIONS, OF_OTHER_THINGS, SUSPECT

GROUPS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "sequence to sequence": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "image and text to text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
VOCAB, MOST, ALL = 96, 60_000_000, 700_000_000
"""Classes, and weights of a model at the most: in a test, and in the record."""
WIDTHS = dict.fromkeys(
    ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "word_embed_proj_dim", "model_dim", "embedding_size", "emb_dim"),
    32,
)
DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers",
)  # fmt: skip
HEADS = dict.fromkeys(
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4
)
INNER = dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner"), 48)
OTHERS = {
    "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 64, "n_positions": 64, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "d_head": 8, "image_size": 16, "patch_size": 8, "n_group": 1,
    "topk_group": 1, "unpadded_vocab_size": VOCAB,
}  # fmt: skip
FILLED_IN = ("head_dim", "num_key_value_heads")
"""Set although a configuration leaves them open."""
SMALL = WIDTHS | HEADS | INNER | OTHERS
MAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_d_ssm")
LEFT_OUT = (
    (), MAMBA, ("head_dim",), ("head_dim", "num_key_value_heads", *HEADS, *MAMBA), ("head_dim", *WIDTHS, *HEADS, *MAMBA),
    tuple({*SMALL} - {"vocab_size", "vocab_size_per_layer_input"}),
)  # fmt: skip
"""What is left as it is in one try after another: families have rules of their own about sizes."""


OF_INPUTS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")
INDEXER = {"n_heads": 2, "kv_heads": 1, "head_dim": 8, "budget": 8, "compress_ratio": 2}
OF_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global"], 2]], "attention_layers": ["global"] * 2, "num_layers": 2},
    "mamba2": {"num_heads": 8}, "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 4], "num_hidden_layers": 2},
    "xmod": {"default_language": "en_XX"}, "esm": {"vocab_size": VOCAB}, "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0, "ffn_config.ffn_hidden_size": 48},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0}, "gemma4_unified_assistant": {"text_config.num_kv_shared_layers": 0},
    "gemma4_assistant": {f"text_config.{key}": 0 for key in ("num_kv_shared_layers", *OF_INPUTS)},
    "qwen4_exp": {f"text_config.indexer_{key}": value for key, value in INDEXER.items()},
    "qwen4_exp_text": {f"indexer_{key}": value for key, value in INDEXER.items()},
    "dots3_note": {
        "text_config.num_key_value_heads": 4, "vision_config.adapter_in_dim": 32, "vision_config.adapter_out_dim": 32,
        "audio_config.adapter_out_dim": 32,
    },
    "zaya": {"num_experts_per_tok": 1}, "esmc": {"num_key_value_heads": 4}, "luke": {"entity_vocab_size": 64},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2, "num_self_attention_heads": 4,
                  "num_cross_attention_heads": 4},
    "chameleon": {"vocabulary_map": {"<image>": 9}}, "emu3": {"vocabulary_map": {"<image>": 9, "<|extra_200|>": 10}},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense"] * 4, "text_config.num_experts_per_tok": 2},
    "diffusion_gemma": {"text_config.num_experts": 4, "text_config.top_k_experts": 2, "text_config.moe_intermediate_size": 16},
    "ernie4_5_vl_moe": {
        "text_config.rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    },
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2"},
    "muse_spark": {"audio_config.out_hidden_size": 32},
    "granite_docling": {"vision_config.out_hidden_size": 32},
    "inkling2": {"vision_config.text_hidden_size": 32}, "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
}  # fmt: skip
"""What else a family has to be told: of the configuration, or of a part of it."""
MADE_OF = {"gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **dict.fromkeys(OF_INPUTS, 0)}}}
"""What families are made of that refuse their own defaults."""


class Outcome(NamedTuple):
    """``read``: the folder's layer is the model's; ``refused``; ``wrong``; ``not built``."""

    family: str
    model: str
    outcome: str
    said: str


def classes() -> Iterator[tuple[str, str, str]]:
    """``group, model_type, class``, each class once."""
    known: set[tuple[str, str]] = set()
    for group, names in GROUPS.items():
        for family, name in names.items():
            if (family, name) not in known and isinstance(name, str):
                known.add((family, name))
                yield group, family, name


def shrink(config: Any, small: dict[str, int], depth: int) -> None:
    for part in list(vars(config).values()):
        if isinstance(part, transformers.PretrainedConfig):
            shrink(part, small, depth)
    for name, value in {**small, **dict.fromkeys(DEPTHS, depth)}.items():
        with contextlib.suppress(Exception):  # a name that can be neither read nor set in this family
            found = getattr(config, name)
            if type(found) is int or name in FILLED_IN or (found is not None and name.endswith("token_id")):
                setattr(config, name, value)
    for name in ("layer_types", "mlp_layer_types"):
        with contextlib.suppress(Exception):
            kinds = getattr(config, name)
            different = list(dict.fromkeys(kinds))
            setattr(config, name, (different * depth)[:depth] if len(different) > 1 else kinds[:depth])


def configured(family: str, cls: Any, small: dict[str, int], depth: int, tweak: dict[str, Any]) -> Any:
    config = transformers.CONFIG_MAPPING[family](**MADE_OF.get(family, {}))
    wanted = cls.config_class
    if wanted is not None and not isinstance(config, wanted):
        config = next((part for part in vars(config).values() if isinstance(part, wanted)), None) or wanted()
    shrink(config, small, depth)
    for place, value in OF_FAMILIES.get(family, {}).items():
        *parts, name = place.split(".")
        setattr(functools.reduce(lambda whole, part: getattr(whole, part, whole), parts, config), name, value)
    if family == "reformer":
        config.is_decoder = "LMHead" in cls.__name__
    for name, value in tweak.items():
        for part in (config, getattr(config, "text_config", None), getattr(config, "decoder", None)):
            if hasattr(part, name):
                setattr(part, name, value)
    return config


def build(family: str, name: str, tweak: dict[str, Any], most: int = MOST) -> Any:
    """The model: as small as the family allows, and if possible so that it runs."""
    cls = getattr(transformers, name)
    made, first = None, None
    for left in LEFT_OUT:
        for depth in (2, 4):
            try:
                config = configured(family, cls, {k: v for k, v in SMALL.items() if k not in left}, depth, tweak)
                with torch.device("meta"):
                    size = sum(part.numel() for part in cls(config).parameters())
                if size > most:
                    raise ValueError(f"{size:,} weights at the least")
                torch.manual_seed(0)
                model = cls(config).eval()
                made = made or model
                run(model)
                return model
            except NoHead:
                return made
            except Exception as error:  # whatever a family says to sizes that it does not like
                first = first or error
    if made is None:
        assert first is not None
        raise first
    return made


class Stood(MoeModelOutputWithPast):
    """What a body gives that was not run: nothing but the hidden vectors."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Entered(TorchFunctionMode):
    """``hidden``: what was last multiplied with ``weight``."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.hidden = weight, weight.new_zeros(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear and args[1] is self.weight:
            self.hidden = args[0].detach()
        return func(*args, **(kwargs or {}))


def owner_of_head(model: Any) -> tuple[Any, Any]:
    """The part of a model that has an output layer of its own, and that layer."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel) and (head := part.get_output_embeddings()) is not None:
            return part, head
    raise NoHead("no output layer")


class NoHead(TypeError):  # noqa: N818  # what a class is like, and no fault
    """A class whose logits are not those of one matrix."""


def run(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What entered the output layer, and the logits."""
    owner, head = owner_of_head(model)
    if not isinstance(head, (torch.nn.Linear, torch.nn.Embedding)):
        raise NoHead(f"its output layer is a {type(head).__name__}")
    with torch.no_grad():
        head.weight.mul_(20.0 / head.weight.std() * 0.02)  # logits that a cap or a scale changes visibly
        for bias in (getattr(head, "bias", None), getattr(model, "final_logits_bias", None)):
            if bias is not None:
                bias.normal_(generator=torch.Generator().manual_seed(1))
    ids, first = torch.tensor([[3, 4, 5, 6, 7]]), None
    words = {"input_ids": ids} | ({"decoder_input_ids": ids} if owner.config.is_encoder_decoder else {})
    side = getattr(getattr(model.config, "vision_config", getattr(model.config, "encoder", None)), "image_size", 16)
    pictures = torch.zeros(1, 3, *(side if isinstance(side, (list, tuple)) else (side, side)))
    more: list[dict[str, torch.Tensor]] = [
        {}, {"bbox": torch.zeros(1, 5, 4)}, {"pixel_values": pictures}, {"pixel_values": pictures, "qformer_input_ids": ids},
        {"pixel_values": pictures[None], "qformer_input_ids": ids},
    ]  # fmt: skip
    if width := getattr(getattr(model.config, "vision_config", None), "patch_embed_hidden_size", 0):
        more.append({"flattened_patches": torch.ones(1, 4, 2 + width), "attention_mask": torch.ones(1, 4)})
    with torch.no_grad(), Entered(head.weight) as seen:
        for extra in more:
            try:
                given = words | extra if "flattened_patches" not in extra else {"decoder_input_ids": ids} | extra
                logits = model(**given).logits
                if len(seen.hidden):
                    return seen.hidden, logits
            except Exception as error:  # what a family says to inputs that are not all it wants
                first = first or error
        for part in dict.fromkeys((model, owner)):
            # the body does not run at these sizes: vectors of its own accord will do for the head
            body, hidden = getattr(part, part.base_model_prefix or " ", part), torch.randn(1, 5, head.weight.shape[1])
            stood = mock.patch.object(body, "forward", lambda *_, hidden=hidden, **__: Stood(last_hidden_state=hidden))
            for way in (contextlib.nullcontext(),) * (part is not model) + (stood,) * (body is not part):
                try:
                    with way:
                        logits = part(**words).logits
                    if len(seen.hidden):
                        return seen.hidden, logits
                except Exception as error:
                    first = first or error
    raise first or NoHead("its logits are not those of one product")


def said(error: Exception) -> str:
    """By transformers, in a few words."""
    words = " ".join(str(error).replace("Class validation error for validator 'validate_architecture':", "").split())
    return words.partition(". ")[0][:120] or type(error).__name__


def outcome(family: str, name: str, tweak: dict[str, Any] | None = None, most: int = MOST) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = build(family, name, tweak or {}, most)
            model.save_pretrained(folder)
        except Exception as error:
            return Outcome(family, name, "not built", said(error))
        try:
            layer = headlong.Layer.load(folder)
        except HeadlongError as error:
            return Outcome(family, name, "refused", str(error).replace(folder, "").strip(" /:"))
        try:
            hidden, logits = run(model)
        except NoHead as error:
            return Outcome(family, name, "wrong", f"{layer.name} was read, but {error}")
        except Exception as error:
            return Outcome(family, name, "not built", f"does not run: {said(error)}")
        product = hidden.double().numpy() @ np.asarray(layer.weight, np.float64).T
    mine = layer.link(product if layer.bias is None else product + layer.bias)
    theirs = logits.double().numpy()
    if mine.shape != theirs.shape:
        return Outcome(family, name, "wrong", f"{layer.name}: {list(mine.shape)} for logits {list(theirs.shape)}")
    error = float(np.abs(mine - theirs).max())
    fine = error <= 1e-4 * max(1.0, float(np.abs(theirs).max()))
    return Outcome(
        family, name, "read" if fine else "wrong", f"{layer.name}, {layer.link}" + ("" if fine else f": {error:.3g} off")
    )


def tweaks(family: str) -> list[dict[str, Any]]:
    """Nothing, and every number that may be about logits at a value that changes them."""
    found: set[str] = set()
    with contextlib.suppress(Exception):
        config = transformers.CONFIG_MAPPING[family]()
        parts = [config, getattr(config, "text_config", None), getattr(config, "decoder", None)]
        names = {name for part in parts if part is not None for name in vars(part) if not name.startswith("_")}
        found = {name for name in names if SUSPECT.search(name) and not OF_OTHER_THINGS.search(name)}
    if family in CONVENTIONS:
        found.add(CONVENTIONS[family].key)
    return [{}, *({name: VOCAB - 6 if name == "unpadded_vocab_size" else 1.75} for name in sorted(found))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="the record to write")
    path = parser.parse_args().json
    found = [(group, *outcome(family, name, most=ALL)) for group, family, name in classes()]
    rows = [dict(zip(("group", *Outcome._fields), row, strict=True)) for row in found]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f'{{"transformers": "{transformers.__version__}", "classes": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
