"""What llama.cpp does to the logits of each architecture after the product, from the facts of a GGUF file.

::

    times   z * logit_scale        over   z / logit_scale        cap   c tanh(z / c), c = final_logit_softcapping

The graph of each architecture in llama.cpp is what says so, not the name of the fact: Cohere multiplies by what Granite
divides by, and Gemma 2 and 3n cap at 30 where the file is silent. A fact about logits that no graph here is known to read
is refused, since a guess would be called proved.
"""

from __future__ import annotations

from headlong.errors import MalformedFileError, OptionError, an
from headlong.layers.gguf_header import GgufHeader
from headlong.links import IDENTITY, Affine, Link, SoftCap

TIMES = {"command-r", "cohere2", "cohere2moe", "grok", "muse-glimmer", "talkie"}
OVER = {"granite", "granitemoe", "granitehybrid", "graniteswitch", "granite_swa", "minicpm"}
CAPPED = {"gemma2": 30.0, "gemma3n": 30.0, "gemma3": 0.0, "gemma4": 0.0, "grok": 0.0, "muse-glimmer": 0.0}
"""The cap where the file has none; 0: no cap."""
SCALED_WITHOUT_A_WORD = {"grok": 0.5773502691896257}
CUT = {
    "chameleon": "sets the logits of image tokens to -inf",
    "dflash": "drafts for another model and reads logits as that one does",
    "eagle3": "drafts for another model, whose vocabulary it may cut",
}
"""What else a graph does to logits, which is no link."""
SCALE, CAP = "logit_scale", "final_logit_softcapping"
OF_OTHER_LOGITS = ("attn_logit", "router_logit", "attention.", "shift_logits")


def gguf_link(header: GgufHeader, name: str) -> Link:
    """The link on the logits; OptionError where what the file says of them has no known meaning."""
    architecture = str(header.value("general.architecture") or "")
    prefix = f"{architecture}."
    if architecture in CUT:
        raise OptionError(f"{name} is {an(architecture)} model, which {CUT[architecture]}; pass link= for one without")
    for key in header.keys:
        about = key.removeprefix(prefix)
        if "logit" in about and about not in (SCALE, CAP) and not any(other in about for other in OF_OTHER_LOGITS):
            raise OptionError(f"{name}: what {key}={header.value(key)!r} does to logits is not known here; pass link=")
    scale, cap = _number(header, prefix + SCALE, name), _number(header, prefix + CAP, name)
    if scale and architecture not in TIMES | OVER:
        raise OptionError(f"{name}: what {prefix}{SCALE}={scale} does is not known here; pass link=")
    if cap and architecture not in CAPPED:
        raise OptionError(f"{name}: what {prefix}{CAP}={cap} does is not known here; pass link=")
    if architecture == "minicpm" and scale is None:
        raise OptionError(
            f"{name}: older MiniCPM files leave {prefix}{SCALE} out, and programs differ in what they assume; pass link="
        )
    scale = SCALED_WITHOUT_A_WORD.get(architecture, 0.0) if scale is None else scale
    cap = CAPPED.get(architecture, 0.0) if cap is None or architecture == "gemma3n" else cap
    links: list[Link] = []
    try:
        if scale:  # 0 stands for none
            links.append(Affine(scale) if architecture in TIMES else Affine.temperature(scale))
        if cap:
            links.append(SoftCap(cap))
    except OptionError as error:
        raise MalformedFileError(f"{name}: its facts about logits are no link: {error}; pass link=") from error
    links = [link for link in links if link != IDENTITY]
    if len(links) > 1:
        raise OptionError(f"{name} scales its logits and then caps them, which is not one of headlong's links; pass link=")
    return links[0] if links else IDENTITY


def _number(header: GgufHeader, key: str, name: str) -> float | None:
    found = header.value(key)
    if found is not None and type(found) not in (int, float):
        raise MalformedFileError(f"{name}: {key} is {found!r}; expected a number")
    return None if found is None else float(found)
