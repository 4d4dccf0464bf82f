"""Where a median lies, whatever the distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

# 95 % of a normal distribution.
_Z = 1.96
# The range of n values holds the median with probability 1 - 2^(1-n): 94 % of five, 97 % of six.
LEAST_VALUES = 6


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median of `values`, by order statistics: it assumes no distribution.

    From the value of rank floor(n/2 - 1.96 sqrt(n)/2) to that of rank ceil(1 + n/2 + 1.96 sqrt(n)/2), the first being
    rank 1 (Hoefler and Belli, "Scientific benchmarking of parallel computing systems", SC15, section 3.1.3); the whole
    range for few values, which is the median's interval with less certainty for fewer than six.
    """
    ordered = sorted(values)
    half = _Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - half) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], ordered[high]
