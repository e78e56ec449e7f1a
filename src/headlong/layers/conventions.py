"""What each family of transformers does to the logits after the product, from the model's ``config.json``.

::

    times   z * config[key]        over   z / config[key]        cap   c tanh(z / c), c = config[key]

The code of each family says so, not the name of the key: Cohere multiplies by what Granite divides by, HyperCLOVA X
multiplies by a key that Granite divides by, and a vision model around Cohere leaves its key out. So the table goes by
``model_type``, with what the family assumes where its configuration is silent; tests hold it against transformers' own
logits, class by class. In every other family a key that may be about final logits is refused: a guess would be called proved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from headlong.errors import MalformedFileError, OptionError, an
from headlong.links import IDENTITY, Affine, Link, SoftCap


class Convention(NamedTuple):
    """``make(config[key])`` is the link; ``silent`` is the number where the configuration has none."""

    make: Callable[[Any], Link]
    key: str
    silent: float | None = None


_COHERE = Convention(Affine, "logit_scale", 0.0625)
_GRANITE = Convention(Affine.temperature, "logits_scaling")
_CLOVA = Convention(Affine, "logits_scaling")
_GEMMA = Convention(SoftCap, "final_logit_softcapping", 30.0)
_CAPPED = Convention(SoftCap, "final_logit_softcapping")
_GRANITES = (
    "granite",
    "granite4_vision",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
)

CONVENTIONS: dict[str, Convention] = {
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), _COHERE),
    **dict.fromkeys(("cohere_compass", "cohere_compass_text"), _COHERE._replace(silent=None)),
    **dict.fromkeys(_GRANITES, _GRANITE),
    "granite_docling": _GRANITE._replace(silent=4.0),
    **dict.fromkeys(("hyperclovax", "hyperclovax_vision_v2"), _CLOVA),
    "falcon_h1": Convention(Affine, "lm_head_multiplier"),
    **dict.fromkeys(("gemma2", "vaultgemma", "gemma3n", "gemma3n_text", "beam", "mistral_large4", "diffusion_gemma"), _GEMMA),
    "t5gemma": _GEMMA,
    "nanochat": _GEMMA._replace(silent=15.0),
    **dict.fromkeys(("gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "t5gemma2"), _CAPPED),
    "recurrent_gemma": Convention(SoftCap, "logits_soft_cap", 30.0),
    "xlstm": Convention(SoftCap, "output_logit_soft_cap", 30.0),
}
HALVES = ("text_config", "decoder", "llm_config", "language_config", "thinker_config")
"""Where the configuration of a model of several parts keeps that of the part with the head."""
AROUND = (
    "blip-2", "instructblip", "instructblipvideo", "nemotron_h_omni", "encoder-decoder", "speech-encoder-decoder",
    "vision-encoder-decoder",
)  # fmt: skip
"""Families whose logits are those of the language model that they hold, whatever it is."""
NO_LINK = {
    "gemma4_assistant": "may set the logits outside of some clusters to one number",
    "gemma4_unified_assistant": "may set the logits outside of some clusters to one number",
    "chameleon": "sets the logits of its image tokens to the least number",
    "muse_glimmer": "multiplies its logits and then caps them",
    "muse_spark": "multiplies its logits and then caps them",
    "inkling2": "caps its logits and leaves padding out of the vocabulary",
    "inkling2_text": "caps its logits and leaves padding out of the vocabulary",
}
SUSPECT = re.compile(r"logit|scal|soft_?cap|_cap$|unpadded|mup|multiplier")
OF_OTHER_THINGS = re.compile(
    r"attn|attention|rope|rotary|rout|expert|moe|mlp|ffn|emb|residual|depth|norm|init|loss|query|key|qk|ssm|mamba|vision|image"
    r"|audio|logits_to_keep|layer_?scale|gate|scale_factor|rescale|floor_scale|log_scaling|sampling|decoder_outputs|mm_"
)


def link_of_config(config: Mapping[str, Any], name: str = "config.json") -> Link:
    """The link of the family that ``config["model_type"]`` names; OptionError where a key about logits has no known meaning."""
    family, half = str(config.get("model_type", "")), half_with_head(config)
    while family in AROUND and half is not config:
        config, family = half, str(half.get("model_type", ""))
        half = half_with_head(config)
    if family in NO_LINK:
        raise OptionError(f"{name}: {an(family)} model {NO_LINK[family]}, which is not one of headlong's links; pass link=")
    _refuse_a_cut_vocabulary(half, name)
    if family not in CONVENTIONS:
        for key, value in _suspects(config):
            kind = f"{an(family)} model" if family else "a model without a model_type"
            raise OptionError(f"{name}: what {key}={value!r} does to the logits of {kind} is not known here; pass link=")
        return IDENTITY
    make, key, silent = CONVENTIONS[family]
    value = half[key] if key in half else config.get(key, silent)
    try:
        return IDENTITY if value is None else make(value)
    except OptionError as error:
        raise MalformedFileError(f"{name}: the configuration's {key}={value!r} is not a link: {error}; pass link=") from error


def half_with_head(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the part with the head: a part of its own, or all of it."""
    for part in HALVES:
        if isinstance(found := config.get(part), dict):
            return half_with_head(found)
    return config


def _suspects(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys that may be about final logits, and are not at a value that does nothing."""
    parts = [config, *(found for part in HALVES if isinstance(found := config.get(part), dict))]
    for part in parts:
        for key, value in part.items():
            idle = (
                value is None
                or value is False
                or (type(value) in (int, float) and value == 1)
                or isinstance(value, (dict, list))
            )
            if not idle and SUSPECT.search(key) and not OF_OTHER_THINGS.search(key):
                yield key, value


def _refuse_a_cut_vocabulary(half: Mapping[str, Any], name: str) -> None:
    cut, whole = half.get("unpadded_vocab_size"), half.get("vocab_size")
    if cut is not None and cut != whole:
        raise OptionError(
            f"{name}: the model leaves all but the first {cut} of its {whole} classes out; pass link= for the layer with all "
            "of them, and allowed= to its engine"
        )
