"""How far a product in finite precision may be from the exact one: what is further away is wrong, however fast."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hpcai500.measure.micro.precisions import Precision

# Operands are uniform in [-1, 1]: zero mean, this variance.
_VARIANCE = 1 / 3
# Six standard deviations of a sum of roundings: one in 5e8 entries is beyond.
_SIGMAS = 6.0
# How much larger the errors of Winograd's 4 x 4 tiles are than those of plain sums: Lavin and Gray, "Fast algorithms
# for convolutional neural networks", CVPR 2016, table 4 (2.84e-4 to 4.01e-5). Libraries choose them in fp32.
WINOGRAD = 7.1


def operand(shape: tuple[int, ...], precision: Precision, device: torch.device) -> Tensor:
    """Random values, uniform in [-1, 1]: zeros would take less power, and so run faster than training does."""
    return torch.empty(shape, device=device).uniform_(-1, 1).to(precision.dtype)


def entry_bound(exact: Tensor, inner: int, precision: Precision, loss: float = 1.0, parts: int = 1) -> Tensor:
    """The largest error of each entry of a product with the float64 entries `exact`, sums of `inner` products each.

    Of operands with zero mean, a sum of k products has the standard deviation S = sqrt(k) / 3. Its error is that of

    - the result's own rounding: u |c|; where sums of parts are rounded to 16 bits too, as a split sum is, a few u S;
    - each partial sum's rounding: k errors of at most u S, independent, so their sum is like sqrt(k) u S, which is
      free of the pessimism of k u (Higham and Mary, "Sharper probabilistic backward error analysis for basic linear
      algebra kernels with random data", SIAM J. Sci. Comput. 42(5), 2020);
    - each operand's rounding on its way in: sqrt(2) u S.

    An fp32 product that was computed in bf16 or tf32 is far beyond it. `loss` is a factor for the sums of an algorithm
    that needs fewer operations. `parts` is how many sums of parts are rounded to 16 bits one after the other, as a
    processor without instructions for them sums a weight gradient over images: the j-th of them has the deviation
    S sqrt(j / parts), and rounding is uniform, so that the errors amount to u S sqrt(parts / 6). How large the partial
    sums are, and so the variance of their roundings, differs from entry to entry, so that six deviations do not do: of
    ten million simulated entries the worst was 10.4 of them away, and twelve are allowed.
    """
    deviation = math.sqrt(inner) * _VARIANCE
    relative = loss * precision.sums * math.sqrt(inner) + math.sqrt(2) * precision.operand
    if precision.dtype != torch.float32:
        relative += precision.result * (1.0 if parts == 1 else max(1.0, 2 * math.sqrt(parts / 6)))
    return precision.result * exact.abs() + _SIGMAS * deviation * relative


def row_sum_bound(computed: Tensor, inner: int, precision: Precision) -> Tensor:
    """The largest error of each row's sum with random signs, from the row's float64 entries (rows, columns).

    As errors of entries are independent, their sum is no larger than six standard deviations of it; a bound of an entry
    is no less than its standard deviation.
    """
    return _SIGMAS * entry_bound(computed, inner, precision).square().sum(dim=-1).sqrt()
