"""An output layer for any PyTorch model: trained as ``nn.Linear``, asked through an engine.

::

    model.lm_head = OutputLayer.of(model.lm_head)     # the same parameters, names and forward
    model.lm_head(hidden)                             # hidden @ weight.T + bias: training, losses, torch.compile, DDP
    model.lm_head.topk(hidden, k=10)                  # TopK, with its proof; also log_prob, sample, lse
    model.lm_head.refresh()                           # after the weights have changed

The engine is made when it is first asked for, belongs to the weights of that moment, and is no part of ``state_dict``, of a
pickle or of a copy. Where ``fully_shard`` has spread the parameters over processes, ``refresh`` gathers them: every process
calls it, or asks for the first time, at once, and each holds an engine over all classes.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

import headlong
from headlong.arrays import is_linear
from headlong.errors import InputError, named
from headlong.integrations.generation.fingerprint import KeptEngine, Refreshed
from headlong.links import Link


class OutputLayer(Refreshed, nn.Linear):
    """``nn.Linear`` with ``topk``, ``log_prob``, ``sample`` and ``lse`` over ``hidden [batch, dim]``.

    ``link``  what the model does to the scores before its softmax; ``options`` go to :func:`headlong.compile`
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        link: Link | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.link, self.options = link, options
        self._versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, linear: nn.Linear, *, link: Link | None = None, **options: Any) -> OutputLayer:
        """Over the parameters of ``linear``, which stay its own, too."""
        if not is_linear(linear) or not isinstance(linear.weight, nn.Parameter):
            raise InputError(f"{named(linear)} was given; expected torch.nn.Linear over all classes, its weight a parameter")
        sizes = (linear.in_features, linear.out_features, linear.bias is not None, "meta")  # nothing is allocated or drawn
        made = cls(*sizes, link=link, **options)
        made.weight, made.bias = linear.weight, linear.bias
        return made.train(linear.training)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refresh(self, calibration: ArrayLike | None = None) -> OutputLayer:
        """Compile for the current weights; with ``calibration [n, dim]`` hidden vectors a query reads less."""
        if calibration is not None:
            self.options["calibration"] = calibration
        bias = None if self.bias is None else _whole(self.bias)
        layer = headlong.Layer(_whole(self.weight), bias, self.link)
        self._kept = KeptEngine(headlong.compile(layer, **self.options), self._own())
        self._versions = self._spread_versions()
        return self

    def _own(self) -> tuple[Tensor, ...]:
        """The parameters, or what of them this process holds."""
        return tuple(part.to_local() if hasattr(part, "to_local") else part for part in self.parameters())

    def _spread_versions(self) -> tuple[int, ...]:
        return tuple(part._version for part in self.parameters() if hasattr(part, "to_local"))  # noqa: SLF001

    @property
    def engine(self) -> Any:
        """The engine over the current weights; InputError if they have changed since it was compiled."""
        kept, now = self._kept_engine(), self._spread_versions()
        if now != self._versions:  # writes to a spread parameter are counted there, not in the part that this process holds
            kept.suspect = True
        found = kept.of(self._own())
        self._versions = now
        return found

    def topk(self, hidden: Tensor, k: int = 10, **options: Any) -> headlong.TopK:
        """The ``k`` likeliest classes; see ``headlong.engines.base.Engine.topk``."""
        return _asked(self, "topk", hidden, k, **options)  # type: ignore[no-any-return]

    def log_prob(self, hidden: Tensor, ids: Tensor, **options: Any) -> headlong.LogProb:
        """The log-probabilities of ``ids [batch, m]``."""
        return _asked(self, "log_prob", hidden, ids, **options)  # type: ignore[no-any-return]

    def lse(self, hidden: Tensor, **options: Any) -> headlong.Lse:
        """The log-normaliser."""
        return _asked(self, "lse", hidden, **options)  # type: ignore[no-any-return]

    def sample(self, hidden: Tensor, n: int = 1, **options: Any) -> headlong.Sample:
        """``n`` exact draws; ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``seed``."""
        return _asked(self, "sample", hidden, n, **options)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {'no engine yet' if self._kept is None else self._kept.engine!r}"


def _whole(parameter: Tensor) -> Tensor:
    """All of a parameter that may be spread over processes."""
    gathered: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return gathered.detach()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _asked(layer: OutputLayer, verb: str, hidden: ArrayLike | Tensor, *given: Any, **options: Any) -> Any:
    """One break in a compiled graph: what is read depends on the numbers."""
    return getattr(layer.engine, verb)(hidden.detach() if isinstance(hidden, Tensor) else hidden, *given, **options)
