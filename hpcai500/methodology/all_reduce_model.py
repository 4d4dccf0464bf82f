"""What an all-reduce costs: its bandwidths as they are defined, and latency and bandwidth of a link from its times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.errors import UsageError

_ROUNDS = 100
# Huber's constant: 95 % as efficient as least squares where errors are normal. An error's scale is its median absolute
# deviation times 1.4826, which is one standard deviation of a normal distribution.
_HUBER = 1.345
_NORMAL = 1.4826
# Errors below this are rounding, not noise.
_EXACT = 1e-9
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class RingCost:
    """A link as a ring's neighbours see it (Hockney's model: latency + bytes / bandwidth)."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, message_bytes: float, ranks: int) -> float:
        """Seconds of a ring all-reduce of `message_bytes` over `ranks` (Thakur et al. 2005; Patarasuk and Yuan 2009).

        2 (n - 1) steps, in each of which every rank sends one n-th of the message to its neighbour:

            t(m) = 2 (n - 1) latency + 2 (n - 1) / n * m / bandwidth
        """
        steps = _steps(ranks)
        return steps * self.latency_seconds + steps / ranks * message_bytes / self.bytes_per_second


def algorithm_bandwidth(message_bytes: float, seconds: float) -> float:
    """Bytes of the message a second: what a caller sees."""
    return message_bytes / seconds


def bus_bandwidth(message_bytes: float, seconds: float, ranks: int) -> float:
    """Bytes a second that each rank must send, whatever the algorithm: 2 (n - 1) / n times the algorithm bandwidth.

    The definition of the NCCL tests (doc/PERFORMANCE.md): it can be compared with a link's rate, and does not depend on
    the number of ranks.
    """
    return algorithm_bandwidth(message_bytes, seconds) * _steps(ranks) / ranks


def fit_ring(ranks: int, measured: Sequence[tuple[float, float]]) -> RingCost:
    """The link whose ring comes closest to `measured` (bytes, seconds) in relative error.

    Least squares of the errors relative to the model, so that a message of a hundred bytes counts as much as one of a
    hundred megabytes, with Huber's weights: single sizes at which a library has another algorithm, or a neighbour was
    busy, do not bend it. Found by doing it again and again with the model and the weights of the time before. Neither
    latency nor the time of a byte can be below 0.

    Raises:
        UsageError: fewer than two sizes, times that are not positive, or times that do not grow with size.
    """
    if len({size for size, _ in measured}) < 2:
        raise UsageError(f"all-reduce: expected two sizes of message or more, got {len(measured)}")
    for size, seconds in measured:
        if size < 0 or not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"all-reduce: expected a positive time, got {seconds} s of {size} bytes")
    steps = _steps(ranks)
    terms = [(steps, steps / ranks * size, seconds) for size, seconds in measured]
    # There is no model yet: errors are relative to what was measured.
    latency, slope = _solve([(1 / seconds**2, x, y, seconds) for x, y, seconds in terms])
    for _ in range(_ROUNDS):
        # A model that has no cost at all for a size is no measure of an error.
        models = [max(latency * x + slope * y, _LEAST_SHARE * seconds) for x, y, seconds in terms]
        errors = [abs(seconds - model) / model for (_, _, seconds), model in zip(terms, models, strict=True)]
        cut = _HUBER * max(_NORMAL * statistics.median(errors), _EXACT)
        weights = [min(1.0, cut / error) if error else 1.0 for error in errors]
        latency, slope = _solve([(w / model**2, *term) for w, model, term in zip(weights, models, terms, strict=True)])
    if slope <= 0:
        raise UsageError("all-reduce: its time does not grow with the message, so no bandwidth follows")
    return RingCost(latency, 1 / slope)


def fit_error(cost: RingCost, ranks: int, measured: Sequence[tuple[float, float]]) -> float:
    """The median of |predicted - measured| / measured."""
    return statistics.median(abs(cost.seconds(size, ranks) - seconds) / seconds for size, seconds in measured)


def _steps(ranks: int) -> int:
    if ranks < 2:
        raise UsageError(f"all-reduce: expected two ranks or more, got {ranks}")
    return 2 * (ranks - 1)


def _solve(rows: Sequence[tuple[float, float, float, float]]) -> tuple[float, float]:
    """Latency and seconds a byte, neither below 0, of least squares over rows (w, x, y, t).

    What is least is sum w (t - latency x - slope y)^2.
    """
    sum_xx = math.fsum(w * x * x for w, x, _, _ in rows)
    sum_xy = math.fsum(w * x * y for w, x, y, _ in rows)
    sum_yy = math.fsum(w * y * y for w, _, y, _ in rows)
    sum_xt = math.fsum(w * x * t for w, x, _, t in rows)
    sum_yt = math.fsum(w * y * t for w, _, y, t in rows)
    determinant = sum_xx * sum_yy - sum_xy * sum_xy
    if determinant > 0:
        latency = (sum_xt * sum_yy - sum_yt * sum_xy) / determinant
        slope = (sum_yt * sum_xx - sum_xt * sum_xy) / determinant
        if latency >= 0 and slope >= 0:
            return latency, slope
    # The best corner: without latency, or without cost of a byte.
    corners = [(0.0, sum_yt / sum_yy if sum_yy else 0.0), (sum_xt / sum_xx, 0.0)]
    return min(
        corners, key=lambda corner: math.fsum(w * (t - corner[0] * x - corner[1] * y) ** 2 for w, x, y, t in rows)
    )
