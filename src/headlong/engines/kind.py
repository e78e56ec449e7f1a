"""What a kind of engine is: a layer, a promise, and a reader that answers questions about it.

Matrices, structured layers, several engines as one and a GPU's memory are kinds. What is made of questions alone is written
over these: verbs (``contract.py``), draws, entropies, rankings, certificates.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np

from headlong.answers import Answer
from headlong.dtypes import Doubles, Ids
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.promise_failures import ROUNDING, float64_error, longest_row, normalised
from headlong.errors import InputError
from headlong.layers.written_to import WrittenTo
from headlong.native import NativeReader
from headlong.promise import Promise
from headlong.question import Mask, Question


class Facts(Protocol):
    """What every layer, and what is known of several as a whole, says of itself."""

    @property
    def vocab(self) -> int: ...

    @property
    def dim(self) -> int: ...


class Kind(ABC):
    """A ``layer``, a ``promise`` and :meth:`ask`; what else a kind may have to say of its reader has defaults here."""

    layer: Facts
    promise: Promise
    name: str
    """How the layer is read, in one word."""
    seed: int
    reason: str

    may_be_shard: ClassVar[bool] = False
    """Whether its classes can be numbered from another than 0: those of a matrix, which may be part of a larger one."""
    exact_at: ClassVar[float] = math.inf
    """The ``eps`` at which logits are exact but for rounding: any, unless normalisers of parts are summands of them."""
    draws_say_log_probs: ClassVar[bool] = True
    """Whether draws come with log-probabilities without being asked: not from a GPU, where that would wait for the CPU."""
    draws_whole: bool = False
    """Whether the reader draws each row by a rule of its own, and says log-probabilities."""
    reads_every_logit: ClassVar[bool] = False
    """Whether ``every_logit`` gives all classes of a row sooner than ``topk`` an eighth of them."""
    reads_entropies: bool = False
    """Whether the reader answers the entropy by itself."""
    _takes_callers: NativeReader | None = None
    """The native reader, which takes a caller's arrays as they come, where a kind has that."""
    _watch: WrittenTo | None = None
    """What sees writes to borrowed arrays, where a kind has some."""

    @abstractmethod
    def ask(self, hidden: Doubles, question: Question) -> Answer:
        """The answer of the reader to a question about vectors, both of which were checked."""

    def check_weights(self) -> None:
        """InputError where a look at the layer's borrowed arrays shows that they were written to since the plan was made."""
        if self._watch is not None and self._watch.found():
            raise self._written_to()

    def _written_to(self) -> InputError:
        return InputError(
            f"the weights of {self.layer!r} have changed since this engine was compiled; compile again, or let the layer "
            "take a copy: Layer(..., copy=True)"
        )

    def agree(self, question: tuple[Any, ...]) -> None:  # noqa: B027  # most have nobody to agree with
        """Where others have to ask the same at the same time: that they do."""

    def _fresh_seed(self) -> int:
        return secrets.randbits(64)

    def exponents(self, logits: Doubles) -> Doubles:
        """``f(z)``; -inf for what is not there."""
        link = getattr(self.layer, "link", None)
        gone = np.isneginf(logits)
        return logits if link is None else np.where(gone, -np.inf, link(np.where(gone, 0.0, logits)))

    def normaliser_of_every_class(self, hidden: Doubles, question: Question) -> Answer:
        """That of ``f(z) / temperature``, for kinds whose reader knows no temperature."""
        logits, _ = self.every_class(hidden)
        mask, temperature, vocab = 1 if question.mask is None else question.mask, question.temperature, self.layer.vocab
        lse = lse_of(np.where(mask, self.exponents(logits) / temperature, -np.inf))
        count = len(hidden)
        read = np.full(count, 4.0 * vocab * self.layer.dim)
        lost = ROUNDING + float64_error(self.layer, longest_row(self.layer), hidden, logits) / temperature
        return Answer(lse=lse, error=lost, rows=np.full(count, vocab), bytes=read, full=np.ones(count, bool), path=self.name)

    def every_class(self, hidden: Doubles) -> tuple[Doubles, Doubles]:
        """The logits of all classes and their log-probabilities ``[n, vocab]``, to float64's rounding."""
        ids = np.tile(np.arange(self.layer.vocab), (len(hidden), 1))
        # A mixture's logits are as good as the normalisers of its components, which any eps would leave where they are guessed.
        logits = self.ask(hidden, Question("given", ids=ids, eps=self.exact_at)).logits
        return normalised(logits, self.exponents(logits))

    def every_logit(self, hidden: Doubles, mask: Mask) -> tuple[Ids, Doubles]:
        """The classes that one query may be answered with, ascending, and their logits: where ``reads_every_logit``."""
        raise NotImplementedError

    def scanned_entropy(self, hidden: Doubles, mask: Mask) -> Answer | None:
        """By a full scan, where a kind has one that is sooner than every class's log-probability."""
        return None
