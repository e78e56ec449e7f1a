"""GGUF models under lm-evaluation-harness: log-probabilities with a bound, prompts that begin alike decoded once.

::

    python -m headlong.integrations.llama_cpp.lm_eval --model headlong_gguf --model_args pretrained=model.gguf --tasks piqa

is ``lm_eval`` itself, which finds the model by that name once this module is imported. ``model_args`` are the arguments of
:class:`HeadlongGguf`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headlong.errors import MissingPackageError, OptionError, UnsupportedError
from headlong.number_checks import whole

try:
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise MissingPackageError("evaluating models needs a package: pip install 'headlong[eval]'") from error

from tqdm import tqdm

from headlong.integrations.llama_cpp.model import Model

HARNESS = ("batch_size", "max_batch_size", "device")
"""What the harness hands to every model: as many texts are decoded at once as there are sequences, on the CPU."""


@register_model("headlong_gguf")
class HeadlongGguf(TemplateLM):  # type: ignore[misc]  # the harness ships no types
    """A GGUF file as a model of the harness, with ``loglikelihood``, ``loglikelihood_rolling`` and ``generate_until``.

    ``pretrained``    the file
    ``n_ctx``         tokens of a text at most; longer ones lose their beginning, as with the harness's own models
    ``sequences``     texts decoded at once
    ``max_gen_toks``  tokens of an answer at most, where the task does not say
    ``options``       of :class:`headlong.integrations.llama_cpp.Model`: ``n_threads``, ``eps``, ``delta``, ...
    ``errors``        after a task: how far the log-probabilities of the texts that were scored can be off, at most
    """

    def __init__(
        self, pretrained: str, n_ctx: int = 2048, sequences: int = 8, max_gen_toks: int = 256, **options: Any
    ) -> None:
        super().__init__()
        for name in HARNESS:
            options.pop(name, None)
        self.model = Model(pretrained, n_ctx=n_ctx, sequences=sequences, **options)
        self.max_length, self._sequences = self.model.n_ctx(), sequences
        self.max_gen_toks = whole(max_gen_toks, "max_gen_toks", 1, self.max_length - 1)
        self.errors = 0.0

    @property
    def eot_token_id(self) -> int:
        return self.model.token_eos()

    @property
    def prefix_token_id(self) -> int:
        return self.model.token_eos() if self.model.token_bos() == -1 else self.model.token_bos()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """As the file's tokenizer has it; a text that begins with its first token has no other one put before it."""
        tokens = self.model.tokenize(string.encode(), add_bos=False, special=True)
        first = self.model.tokenize(b"", add_bos=True)[:1] if add_special_tokens is not False else []
        return tokens if tokens[:1] == first else [*first, *tokens]

    def _loglikelihood_tokens(self, requests: Sequence[Any], disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        texts = []
        for _names, context, continuation in requests:
            if not 0 < len(continuation) <= self.max_length:
                raise OptionError(f"a continuation has {len(continuation):,} tokens; expected 1 to n_ctx, {self.max_length}")
            tokens = [*context, *continuation][-self.max_length - 1 :]
            texts.append((tokens, len(tokens) - len(continuation)))
        found: list[tuple[float, bool]] = [(0.0, True)] * len(texts)
        with tqdm(total=len(texts), desc="Scoring", disable=disable_tqdm) as bar:
            for place, score in self.model.scores(texts):
                found[place] = float(score.log_probs.sum()), bool(score.likeliest.all())
                self.errors = max(self.errors, float(score.errors.sum()))
                if requests[place][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[place][0], found[place])
                bar.update()
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows, texts = [], [one.args[0] for one in requests]
        for place, text in enumerate(texts):
            parts = utils.get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False), self.prefix_token_id, self.max_length, 1
            )
            windows += [(place, *utils.make_disjoint_window(part)) for part in parts]
        asked = [(None, context, continuation) for _, context, continuation in windows]
        sums = np.zeros(len(texts))
        for (place, *_), (value, _) in zip(windows, self._loglikelihood_tokens(asked, disable_tqdm), strict=True):
            sums[place] += value
        for text, value in zip(texts, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), float(value))
        return [float(value) for value in sums]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        found = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for place, one in enumerate(requests):
            groups.setdefault(repr(one.args[1]), []).append(place)
        with tqdm(total=len(requests), desc="Generating", disable=disable_tqdm) as bar:
            for places in groups.values():
                most, how = self._how(requests[places[0]].args[1])
                prompts = {place: self.tok_encode(requests[place].args[0])[most - self.max_length :] for place in places}
                places.sort(key=lambda place: prompts[place])
                for at in range(0, len(places), self._sequences):
                    some = places[at : at + self._sequences]
                    texts = self.model.generate([prompts[place] for place in some], most, **how)
                    for place, text in zip(some, texts, strict=True):
                        found[place] = text.text
                        self.cache_hook.add_partial("generate_until", requests[place].args, text.text)
                    bar.update(len(some))
        return found

    def _how(self, asked: Any) -> tuple[int, dict[str, Any]]:
        """Tokens at most, and the options of ``Model.generate``."""
        how = dict(asked)
        names = [name for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens") if name in how]
        most = [how.pop(name) for name in names][:1] or [self.max_gen_toks]
        stops = how.pop("until", None) or []
        drawn = how.pop("do_sample", None)
        if drawn is False or (drawn is None and "temperature" not in how):
            how["temperature"] = 0.0
        stop = [one for one in ([stops] if isinstance(stops, str) else stops) if one]
        return whole(most[0], "max_gen_toks", 1, self.max_length - 1), how | {"stop": stop}

    @property
    def tokenizer_name(self) -> str:
        return self.model.model_path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if isinstance(chat_template, str):
            raise OptionError(f"chat_template is {chat_template!r}; a GGUF file has one: pass true")
        return self.model.metadata.get("tokenizer.chat_template") if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that the file's template makes of messages."""
        if not add_generation_prompt:
            raise UnsupportedError("an answer's beginning (gen_prefix) is not supported with a chat template; leave one out")
        return self.model.chat_text(chat_history)


def main() -> None:
    """The harness's own command line."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
