"""A mixture of softmaxes over one matrix.

::

    h_k = tanh(project_k @ hidden + offset_k)         pi = softmax(prior @ hidden)            k < components
    p(x) = sum_k pi_k softmax_x(link(weight @ h_k + bias))
    p(x) = softmax_x(link(weight @ (sum_k pi_k h_k) + bias))                                  where pooled (MoC)

The finished form of the heads of Yang et al. (2018). Answers give log-probabilities as logits, and lse = 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from headlong.arrays import Array, as_numpy, to_host
from headlong.dtypes import Floats
from headlong.errors import DtypeError, NonFiniteError, OptionError, ShapeError, named
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer, register_layer
from headlong.links import link_from_dict
from headlong.number_checks import flag


@register_layer
class MixtureLayer(StructuredLayer):
    """``matrix`` [vocab, latent], ``project [components * latent, dim]``, ``offset [components * latent]``, ``prior
    [components, dim]``, the last three float32.
    """

    kind: ClassVar[str] = "mixture"

    def __init__(self, matrix: Layer, project: Any, offset: Any, prior: Any, *, pooled: bool = False) -> None:
        if not isinstance(matrix, Layer):
            raise OptionError(f"matrix is {named(matrix)}; expected headlong.Layer(weight, bias)")
        self.matrix, self.pooled, self.resident = matrix, flag(pooled, "pooled"), matrix.resident
        self.project, self.offset, self.prior = _floats(project, "project"), _floats(offset, "offset"), _floats(prior, "prior")
        if self.prior.ndim != 2 or not len(self.prior):
            raise ShapeError(f"prior has shape {list(self.prior.shape)}; expected [components, dim]")
        self.components, self.dim = (int(size) for size in self.prior.shape)
        self.vocab, self.latent = matrix.vocab, matrix.dim
        wanted = (self.components * self.latent, self.dim)
        if self.project.shape != wanted or self.offset.shape != wanted[:1]:
            raise ShapeError(
                f"project is {list(self.project.shape)} and offset {list(self.offset.shape)}; expected {list(wanted)} and "
                f"[{wanted[0]}]: {self.components} components of {self.latent} numbers"
            )

    def tensors(self) -> dict[str, Array]:
        found: dict[str, Array] = {"project": self.project, "offset": self.offset, "prior": self.prior}
        found["weight"] = self.matrix.weight
        return found if self.matrix.bias is None else found | {"bias": self.matrix.bias}

    def facts(self) -> dict[str, Any]:
        return {"pooled": self.pooled, "link": json.dumps(self.matrix.link.as_dict(), sort_keys=True)}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> MixtureLayer:
        matrix = Layer(tensors["weight"], tensors.get("bias"), link_from_dict(json.loads(facts["link"])))
        if type(facts["pooled"]) is not bool:
            raise OptionError(f"pooled is {facts['pooled']!r}; expected true or false")
        return cls(matrix, tensors["project"], tensors["offset"], tensors["prior"], pooled=facts["pooled"])

    def __repr__(self) -> str:
        what = "pooled contexts" if self.pooled else "components"
        return (
            f"MixtureLayer(vocab={self.vocab}, dim={self.dim}, {self.components} {what} of {self.latent}, "
            f"{self.matrix.dtype}, {self.matrix.link})"
        )


def _floats(value: Any, name: str) -> Floats:
    given = as_numpy(to_host(value), name)
    if given.dtype not in (np.float32, np.float64):
        raise DtypeError(f"{name} is {given.dtype}; expected float32")
    array = np.array(given, np.float32)
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; repair it")
    array.setflags(write=False)
    return array
