"""From samples to curves over time: how busy cores and devices were, and how many bytes a second went where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from hpcai500.measure.profile.sampling import INTERVAL_SECONDS, Sample

# Two samples that came together, as the last ones may, say little about a rate.
_SHORTEST_SECONDS = INTERVAL_SECONDS / 2

Point = dict[str, Any]
T = TypeVar("T")
# Of something that is counted, what came between two samples.
Amount = Callable[[Sample, Sample], T]


def processor_utilisation(samples: Sequence[Sample], cores: int) -> list[list[float]]:
    """[seconds since the first sample, busy fraction of `cores` since the sample before] at each sample."""
    return [
        [round(t, 6), min(1.0, busy / (cores * seconds))]
        for t, seconds, busy in _steps(samples, lambda one, two: two.processor_seconds - one.processor_seconds)
    ]


def driver_utilisation(samples: Sequence[Sample]) -> list[list[float]]:
    """The same as the device's driver tells it; empty where it does not."""
    start = samples[0].moment if samples else 0.0
    return [[round(one.moment - start, 6), one.device] for one in samples if one.device is not None]


def busy_windows(intervals: Iterable[tuple[float, float]], seconds: float, window_seconds: float) -> list[list[float]]:
    """[begin, fraction in which one or more of `intervals` (start, end) lay] of each window from 0 to `seconds`."""
    count = max(1, round(seconds / window_seconds))
    length = seconds / count
    busy, reached = [0.0] * count, 0.0
    for start, end in sorted(intervals):
        begin, reached = max(start, reached), max(end, reached)
        for number in range(int(begin / length), min(count, int(reached / length) + 1)):
            low, high = number * length, (number + 1) * length
            busy[number] += max(0.0, min(reached, high) - max(begin, low))
    return [[round(number * length, 6), min(1.0, one / length)] for number, one in enumerate(busy)]


def network_points(samples: Sequence[Sample]) -> list[Point]:
    """Bytes a second over all interfaces that lead to other hosts."""
    return _points(samples, _over_network)


def loopback_points(samples: Sequence[Sample]) -> list[Point]:
    """Bytes a second that processes of this host sent to each other by TCP: what one sends, another receives."""
    return _points(samples, _over_loopback)


def link_points(samples: Sequence[Sample]) -> list[Point]:
    """Bytes a second over the links of this rank's device."""
    return _points(samples, _over_links)


def _over_network(one: Sample, two: Sample) -> tuple[float, float] | None:
    if one.network is None or two.network is None:
        return None
    difference = two.network.since(one.network)
    return float(sum(difference["sent_bytes"].values())), float(sum(difference["received_bytes"].values()))


def _over_loopback(one: Sample, two: Sample) -> tuple[float, float] | None:
    if one.network is None or two.network is None:
        return None
    amount = two.network.since(one.network)["loopback_sent_bytes"]
    return None if amount is None else (float(amount), float(amount))


def _over_links(one: Sample, two: Sample) -> tuple[float, float] | None:
    if one.links is None or two.links is None:
        return None
    return float(two.links.sent - one.links.sent), float(two.links.received - one.links.received)


def _points(samples: Sequence[Sample], amount: Amount[tuple[float, float] | None]) -> list[Point]:
    found = []
    for t, seconds, amounts in _steps(samples, amount):
        if amounts is not None:
            sent, received = amounts
            found.append(
                {
                    "t_s": round(t, 6),
                    "sent_bytes_per_second": sent / seconds,
                    "received_bytes_per_second": received / seconds,
                }
            )
    return found


def _steps(samples: Sequence[Sample], amount: Amount[T]) -> list[tuple[float, float, T]]:
    """(time since the first sample, time since the one before, amount) at each sample but the first."""
    start = samples[0].moment if samples else 0.0
    return [
        (two.moment - start, two.moment - one.moment, amount(one, two)) for one, two in pairwise(_far_apart(samples))
    ]


def _far_apart(samples: Sequence[Sample]) -> list[Sample]:
    """Without those that come too soon after another; the first and the last stay, so that nothing goes uncounted."""
    kept = list(samples[:1])
    for sample in samples[1:-1]:
        if sample.moment - kept[-1].moment >= _SHORTEST_SECONDS:
            kept.append(sample)
    if len(kept) > 1 and samples[-1].moment - kept[-1].moment < _SHORTEST_SECONDS:
        kept.pop()
    return [*kept, *samples[1:][-1:]]
