"""Every class of transformers with logits over words that can be built small, and how its head is read.

    python tests/helpers/tiny_classes.py --json results/transformers-heads.json

Each class is built with random weights, saved, and read from its folder: link(hidden @ weight.T + bias) has to be the logits
that the class itself computes from the hidden vectors that enter its output layer, or the folder is refused. ``tweak`` sets
numbers in the configuration that a family may do something with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
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
VOCAB, MOST = 96, 60_000_000
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


OF_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global"], 2]], "attention_layers": ["global"] * 2, "num_layers": 2},
    "mamba2": {"num_heads": 8}, "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 4], "num_hidden_layers": 2},
    "xmod": {"default_language": "en_XX"}, "esm": {"vocab_size": VOCAB},
}  # fmt: skip
"""What else a family has to be told."""


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
    config = transformers.CONFIG_MAPPING[family]()
    wanted = cls.config_class
    if wanted is not None and not isinstance(config, wanted):
        part = config.get_text_config()
        config = part if isinstance(part, wanted) else wanted()
    shrink(config, small, depth)
    for name, value in OF_FAMILIES.get(family, {}).items():
        setattr(config, name, value)
    if family == "reformer":
        config.is_decoder = "LMHead" in cls.__name__
    for name, value in tweak.items():
        for part in (config, getattr(config, "text_config", None), getattr(config, "decoder", None)):
            if hasattr(part, name):
                setattr(part, name, value)
    return config


def build(family: str, name: str, tweak: dict[str, Any]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The model, what entered its output layer, and its logits."""
    cls = getattr(transformers, name)
    first: Exception | None = None
    for left in LEFT_OUT:
        for depth in (2, 4):
            try:
                config = configured(family, cls, {k: v for k, v in SMALL.items() if k not in left}, depth, tweak)
                with torch.device("meta"):
                    size = sum(part.numel() for part in cls(config).parameters())
                if size > MOST:
                    raise ValueError(f"{size:,} weights at the least")
                torch.manual_seed(0)
                return run(cls(config).eval())
            except Exception as error:  # whatever a family says to sizes that it does not like
                first = first or error
    assert first is not None
    raise first


class Stood(MoeModelOutputWithPast):
    """What a body gives that was not run: nothing but the hidden vectors."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def run(model: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise TypeError(f"its output layer is a {type(head).__name__}")
    with torch.no_grad():
        head.weight.mul_(20.0)  # logits that a cap or a scale changes visibly
        for bias in (head.bias, getattr(model, "final_logits_bias", None)):
            if bias is not None:
                bias.normal_()
    entered: list[torch.Tensor] = []
    hook = head.register_forward_hook(lambda _, given, __: entered.append(given[0].detach()))
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    given = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    with torch.no_grad(), hook:
        try:
            logits = model(**given).logits
        except Exception:  # the body does not run at these sizes: vectors of its own accord will do for the head
            body = getattr(model, model.base_model_prefix, model)
            if body is model:
                raise
            hidden = torch.randn(1, 5, head.weight.shape[1])
            body.forward = lambda *_, **__: Stood(last_hidden_state=hidden)
            logits = model(**given).logits
    return model, entered[-1], logits


def outcome(family: str, name: str, tweak: dict[str, Any] | None = None) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        try:
            model, hidden, logits = build(family, name, tweak or {})
            model.save_pretrained(folder)
        except Exception as error:
            said = " ".join(str(error).split())[:120]
            return Outcome(family, name, "not built", f"{type(error).__name__}: {said}")
        try:
            layer = headlong.Layer.load(folder)
        except HeadlongError as error:
            return Outcome(family, name, "refused", str(error).replace(folder, "").strip(" /:"))
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
    found = [(group, *outcome(family, name)) for group, family, name in classes()]
    rows = [dict(zip(("group", *Outcome._fields), row, strict=True)) for row in found]
    path.write_text(json.dumps({"transformers": transformers.__version__, "classes": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
