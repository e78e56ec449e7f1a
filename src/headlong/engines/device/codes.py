"""int8 codes of rows, and how far a logit that is computed from them can be off.

::

    s_i = max_j |w_ij| / 127 (float32)      c_i = round(w_i / s_i)      e_i = ‖w_i - s_i c_i‖, rounded up

    |<w_i, x> - s_i <c_i, x>|  =  |<w_i - s_i c_i, x>|  <=  e_i ‖x‖                          (Cauchy-Schwarz)

The query is not coded. What is added for the arithmetic of ``s_i <c_i, x>`` in float32 is that of any row, of length
``‖s_i c_i‖ <= ‖w_i‖ + e_i``: see :func:`headlong.engines.device.matrix.unit`. The codes of a row depend on that row alone.
"""

from __future__ import annotations

from typing import NamedTuple

from headlong.engines.device.memory import Tensor, rounded_up

AT_ONCE = 1 << 24
"""Weights that are held in float64 at once."""


class Codes(NamedTuple):
    """``codes [vocab, dim]`` int8, ``scale, error [vocab]`` float32: a row is within ``error`` of ``scale * codes``."""

    codes: Tensor
    scale: Tensor
    error: Tensor


def coded(torch: Tensor, weight: Tensor) -> Codes:
    """The codes of ``weight [vocab, dim]``, where it lies. A row of zeros, or one too small for a scale, is all error."""
    parts = []
    for rows in weight.split(max(1, AT_ONCE // weight.shape[1])):
        wide = rows.double()
        scale = (wide.abs().amax(dim=1) / 127).float()
        step = scale.double()[:, None]
        whole = torch.where(step > 0, wide / step, 0.0).clamp(-127, 127).round()
        # float64's own rounding: of each product, relative to the row
        error = torch.linalg.vector_norm(wide - step * whole, dim=1) + 1e-14 * torch.linalg.vector_norm(wide, dim=1)
        parts.append(Codes(whole.to(torch.int8), scale, rounded_up(error)))
    return Codes(*(torch.cat(part) for part in zip(*parts, strict=True)))
