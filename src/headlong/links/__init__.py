"""Links: strictly increasing maps from a raw logit ``z`` to the exponent of the softmax, ``log p = f(z) - lse(f(z))``.

``Affine``   f(z) = scale * z + shift                                   the identity, a temperature, a logit scale
``SoftCap``  f(z) = cap * tanh(z / cap)                                 Gemma's final soft-cap
``Gss``      f(z) = k (z - c) + c - (k - 1) softplus(z - c)             SigSoftmax (c = 0, k = 2) and its generalisation
``Table``    straight between equally spaced knots and beyond them      PLIF, monotone networks, any increasing curve

Being increasing, a link never changes a ranking, and the interval of f(z) is [f(lo), f(hi)]. NumPy in float64 is the
reference here; the native code and a GPU evaluate only what ``lowered()`` hands them: affine maps, soft-caps and tables,
whose largest error joins what an answer says of itself.
"""

from headlong.links.base import ROUNDING, Link, Lowered, lowering_error
from headlong.links.curves import IDENTITY, SIGSOFTMAX, Affine, Gss, SoftCap
from headlong.links.saved import link_from_dict
from headlong.links.table import Table, evaluated

__all__ = [
    "IDENTITY", "ROUNDING", "SIGSOFTMAX", "Affine", "Gss", "Link", "Lowered", "SoftCap", "Table", "evaluated", "link_from_dict",
    "lowering_error",
]  # fmt: skip
