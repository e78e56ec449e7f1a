"""``generate`` from candidates: no ``[batch, vocab]`` scores, no sort, the same law.

::

    model.generate(**inputs, max_new_tokens=20)                               set by accelerate(model): pipelines call it, too
    generate(model, **inputs, max_new_tokens=20)                              the same, with a seed of its own

What a step picks is in ``picking.py``; transformers' own loops do the rest, so caches, padding and stopping are theirs.
"""

from __future__ import annotations

import copy
import inspect
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GENERATION_MODES_MAPPING, GenerationMode

from headlong.errors import InputError, OptionError, an, named
from headlong.integrations.generation.beams import BeamScores
from headlong.integrations.generation.fast_head import CHANGED, FastHead, Reading
from headlong.integrations.generation.picking import Picks
from headlong.integrations.generation.processors import ProcessorRecipe, recipe
from headlong.integrations.generation.speculation import Draft, Verifier
from headlong.integrations.graphs.hosts import AGAIN, CutHead

ACCELERATED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Models that accelerate() has seen and restore() has not."""


def generate(model: GenerationMixin, *inputs: Any, headlong_seed: int | None = None, **options: Any) -> Any:
    """``model.generate(*inputs, **options)`` from candidates, on a model that :func:`accelerate` has seen.

    ``headlong_seed``  the same seed gives the same noise to each (step, row, token); None: drawn from torch's generator
    Beam sampling, returned scores, processors that need every score, and output layers that something was wrapped around
    take the model's own path over the dense layer: counted in ``head.paths``, said once in a RuntimeWarning.
    """
    if not isinstance(model, GenerationMixin):
        raise InputError(f"model is {named(model)}; expected a model of transformers that generates")
    call = stock_generate(model)
    inputs, options = _by_name(call, inputs, options)
    if "custom_generate" in options:
        raise OptionError("custom_generate was given; this is one itself: call model.generate(...) for another")
    head, _ = accelerated(model)
    check_generate(model)
    given = {name: options[name] for name in _DROPPED if options.get(name) is not None}
    asked = 0

    def decode(
        model: GenerationMixin, input_ids: Tensor, logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList, generation_config: GenerationConfig,
        inputs_tensor: Tensor | None = None, **kept: Any,
    ) -> Any:  # fmt: skip
        nonlocal asked
        asked += 1
        criteria = {"stopping_criteria": stopping_criteria, "generation_config": generation_config, **kept}
        dropped = dict.fromkeys(_DROPPED) | given | {"inputs_tensor": inputs_tensor}
        return _from_candidates(model, input_ids, logits_processor, criteria, dropped, headlong_seed)

    with _stop_strings(model, options) as known:
        found = call(*inputs, custom_generate=decode, **known)
    if not asked:
        head.fall_back(f"{_owner(model).__name__}.generate, which does not hand custom_generate on")
    return found


class Generate:
    """What :func:`accelerate` sets as ``model.generate``: the model's own, decoding from candidates."""

    def __init__(self, model: GenerationMixin) -> None:
        self.model = model

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(stock_generate(self.model))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        call = stock_generate(self.model)
        inputs, options = _by_name(call, inputs, options)
        if options.get("custom_generate") is None and self.model in ACCELERATED:
            return generate(self.model, *inputs, **{name: it for name, it in options.items() if name != "custom_generate"})
        return call(*inputs, **options)  # as asked for, or a copy of the model, whose head is plain


def _by_name(call: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments by the names that ``call`` has for them; those of ``*args`` stay where they are."""
    signature = inspect.signature(call)
    signature.bind_partial(*inputs, **options)  # TypeError for an argument that is given twice
    names = [name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    return inputs[len(names) :], dict(zip(names, inputs, strict=False)) | options


def stock_generate(model: GenerationMixin) -> Any:
    """``model.generate`` as its class has it."""
    found = vars(model).get("generate") if isinstance(model, GenerationMixin) else None
    return types.MethodType(type(model).generate, model) if isinstance(found, Generate) else model.generate


HANDING_ON = frozenset({
    "CsmGenerationMixin",
    "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechPlusForConditionalGeneration",
    "JanusForConditionalGeneration",
    "Pop2PianoForConditionalGeneration",
    "SeamlessM4TForSpeechToText",
    "SeamlessM4TForTextToText",
    "SeamlessM4Tv2ForSpeechToText",
    "SeamlessM4Tv2ForTextToText",
    "WhisperGenerationMixin",
})  # fmt: skip
"""Transformers' classes whose own ``generate`` hands ``custom_generate`` on to the loop over this output layer."""


def _owner(model: GenerationMixin) -> type:
    """The class whose ``generate`` the model has."""
    return next(kind for kind in type(model).__mro__ if "generate" in vars(kind))


def check_generate(model: GenerationMixin) -> None:
    """InputError where the model's ``generate`` is known not to reach :func:`generate`'s loop, or cannot."""
    if not isinstance(vars(model).get("generate"), (Generate, types.NoneType)):
        raise InputError(
            f"model.generate is {named(model.generate)} that was set on this model, not a method of its class; pass "
            "generate=False to leave it, with the dense output layer"
        )
    owner = _owner(model)
    keywords = {one.kind for one in inspect.signature(vars(owner)["generate"]).parameters.values()}
    theirs = owner.__module__.partition(".")[0] == "transformers" and owner is not GenerationMixin
    if (theirs and owner.__name__ not in HANDING_ON) or inspect.Parameter.VAR_KEYWORD not in keywords:
        raise InputError(
            f"{owner.__name__} has a generate of its own, which no custom_generate reaches; expected that of transformers' "
            "GenerationMixin: accelerate the part that writes the tokens, if it is a model itself, or pass generate=False for "
            "an engine beside the dense output layer"
        )


_GONE = {
    GenerationMode.CONTRASTIVE_SEARCH: "penalty_alpha",
    GenerationMode.DOLA_GENERATION: "dola_layers",
    GenerationMode.GROUP_BEAM_SEARCH: "num_beam_groups",
    GenerationMode.CONSTRAINED_BEAM_SEARCH: "constraints or force_words_ids",
}
"""What transformers fetches the code of when it is asked for, and by which options it is."""
_DROPPED = ("streamer", "assistant_model", "tokenizer", "assistant_tokenizer")
"""What ``model.generate`` does not hand to a custom_generate."""


def _from_candidates(
    model: GenerationMixin, input_ids: Tensor, processors: LogitsProcessorList, asked: dict[str, Any],
    given: dict[str, Any], seed: int | None,
) -> Any:  # fmt: skip
    """One of transformers' loops; ``asked``: its arguments; ``given``: :data:`_DROPPED` and ``inputs_tensor``, None or as the
    caller gave them."""
    head, wrapped = accelerated(model)
    config = asked["generation_config"]
    mode = config.get_generation_mode(given["assistant_model"])
    if given["streamer"] is not None and config.num_beams > 1:
        raise InputError("a streamer was given, and beams end all at once; leave out streamer or num_beams")
    loop = str(GENERATION_MODES_MAPPING[mode])
    if "/" in loop:
        raise OptionError(
            f"{_GONE[mode]} asks for {mode.value}, which is no part of transformers any more; leave it out, or pass "
            f"custom_generate={loop!r}, trust_remote_code=True as well: its code is fetched, and reads the whole output layer"
        )
    method, assisted = getattr(type(model), loop), mode is GenerationMode.ASSISTED_GENERATION
    if assisted:
        asked |= given
    elif mode not in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE):
        asked["streamer"] = given["streamer"]
    found = wrapped or _answerable(model, head, mode, processors, config, given)
    if isinstance(found, str):
        head.fall_back(found)
        with head.dense(found):
            return method(model, input_ids, logits_processor=processors, **asked)
    noise = int(torch.randint(2**63 - 1, (1,))) if seed is None else seed
    greedy = copy.copy(config)  # the loops take the argmax of what was marked
    greedy.do_sample, greedy.temperature, greedy.top_k, greedy.top_p, greedy.min_p = False, None, None, None, None
    asked["generation_config"] = greedy
    with head.taking(head.out_features if assisted else 1) as taken:
        picks = Picks(head, taken, found, noise if config.do_sample else None, input_ids.shape[1])
        marks: LogitsProcessor = Picker(picks)
        if assisted:
            marks, asked["assistant_model"] = Verifier(processors, picks), _drafting(asked["assistant_model"], picks)
        elif mode is GenerationMode.BEAM_SEARCH:
            ends = 0 if config._eos_token_tensor is None else len(config._eos_token_tensor)  # noqa: SLF001
            marks = BeamScores(picks, max(2, 1 + ends) * config.num_beams)
        return method(model, input_ids, logits_processor=marks, **asked)


def accelerated(model: GenerationMixin) -> tuple[Reading, str]:
    """The head that :func:`accelerate` made, and why it may not be asked (empty: it may)."""
    if isinstance(head := ACCELERATED.get(model) if isinstance(model, GenerationMixin) else None, CutHead):
        return head, "" if head.host.current else AGAIN
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(layer, FastHead):
        return layer, "hooks on the output layer" if hooked(layer) else ""
    inner = [part for part in layer.modules() if isinstance(part, FastHead)] if isinstance(layer, nn.Module) else []
    kind = f"{type(layer).__module__}.{type(layer).__name__}"
    if inner:
        return inner[0], f"{an(kind)} was put around the output layer"
    if model in ACCELERATED:
        return ACCELERATED[model], f"the output layer was replaced by {an(kind)} since accelerate(); accelerate(model) again"
    raise InputError("the model's output layer is not accelerated; call headlong's accelerate(model) first")


def hooked(module: nn.Module) -> bool:
    """Whether something runs around ``module``: torch's hooks, or a ``forward`` of its own (the accelerate library's)."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # torch has no other way to ask
    own = getattr(vars(module).get("forward", module.forward), "__func__", None)
    return any(getattr(module, kind) for kind in kinds) or hasattr(module, "_hf_hook") or own is not type(module).forward


def _answerable(
    model: GenerationMixin, head: Reading, mode: GenerationMode, processors: LogitsProcessorList, config: GenerationConfig,
    given: dict[str, Any],
) -> ProcessorRecipe | str:  # fmt: skip
    if mode is GenerationMode.BEAM_SAMPLE:
        return "beams that are sampled"
    if config.return_dict_in_generate and (config.output_scores or config.output_logits):
        return "output_scores and output_logits"
    if mode is GenerationMode.ASSISTED_GENERATION and (why := _own_speculation(model, config, given)):
        return why
    if head.stale:  # all rows are looked at: nothing looks again until the last token
        return CHANGED
    found = recipe(processors, head.out_features)
    if mode is GenerationMode.BEAM_SEARCH and isinstance(found, ProcessorRecipe) and (found.filters or found.surprisals):
        return "beams with a filter"
    if mode is GenerationMode.BEAM_SEARCH and isinstance(found, ProcessorRecipe) and found.renormalised and found.edits:
        return "renormalize_logits after scores of beams were edited"
    return found


def _own_speculation(model: GenerationMixin, config: GenerationConfig, given: dict[str, Any]) -> str:
    """Why transformers has to verify drafts itself."""
    draft = given["assistant_model"]
    looked_up = config.prompt_lookup_num_tokens is not None
    if not looked_up and (draft is None or draft is model or given["assistant_tokenizer"] is not None):
        return "drafts of the model itself, or in other tokens"
    if config.assistant_ensemble_weight is not None or config.speculation_type is not None:
        return "drafts whose scores are mixed in"
    return "" if model._supports_logits_to_keep() else "drafts to a model without logits_to_keep"  # noqa: SLF001


def _drafting(assistant: Any, picks: Picks) -> Any:
    """The assistant, from candidates where it is accelerated, too."""
    try:
        head, wrapped = accelerated(assistant)
    except (AttributeError, InputError):  # none, or as transformers made it
        return assistant
    if wrapped or head.stale:
        head.fall_back(wrapped or CHANGED)
        return assistant
    return Draft(assistant, head, picks.seed, picks.first)


class Picker(LogitsProcessor):  # type: ignore[misc]  # transformers ships no types that are read here
    """Stands where the processors stood: picks from candidates, and marks the pick in a blank vector, as long as it takes."""

    def __init__(self, picks: Picks) -> None:
        self.picks = picks

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids = self.picks.of(self.picks.taken.hidden[:, -1].detach(), input_ids)
        return scores.new_zeros(len(ids), int(ids.max()) + 1).scatter_(1, ids[:, None], 1.0)


@contextmanager
def _stop_strings(model: GenerationMixin, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``options`` with ``stop_strings`` as the criterion that transformers would make of them, had it kept the tokenizer."""
    options, config, own = dict(options), options.get("generation_config"), model.generation_config
    tokenizer = options.get("tokenizer")
    configured: list[Any] = [part for part in (config, own) if getattr(part, "stop_strings", None) is not None]
    strings = options.pop("stop_strings", None) or next((part.stop_strings for part in configured), None)
    if strings is None:
        yield options
        return
    if tokenizer is None:
        raise OptionError("stop_strings without a tokenizer; pass tokenizer= as well")
    criteria = [*(options.get("stopping_criteria") or []), StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)]
    before = [(part, part.stop_strings) for part in configured]
    try:
        for part in configured:
            part.stop_strings = None
        yield options | {"stopping_criteria": StoppingCriteriaList(criteria)}
    finally:
        for part, value in before:
            part.stop_strings = value
