"""Which gradients travel together, and when in a backward pass they are ready."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Where a recipe leaves the size to a measurement: what `comm.tuning` prefers of equally fast ones.
USUAL_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Gradients:
    """Gradients of one parameter, or of a bucket.

    Attributes:
        size_bytes: in fp32.
        ready: share of the backward pass after which all of them are there, 0 to 1.
        parameters: how many tensors.
    """

    size_bytes: float
    ready: float
    parameters: int = 1


def in_buckets(gradients: Sequence[Gradients], bucket_bytes: float) -> list[Gradients]:
    """Fuse `gradients`, which are in the order of sending, as `comm.buckets.make_buckets` does.

    A bucket takes as many of the next ones as fit; one that is larger than `bucket_bytes` has a bucket of its own. A
    bucket is ready when the last of its gradients is.
    """
    groups: list[list[Gradients]] = []
    room = 0.0
    for one in gradients:
        if not groups or one.size_bytes > room:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(one)
        room -= one.size_bytes
    return [
        Gradients(sum(one.size_bytes for one in group), max(one.ready for one in group), _count(group))
        for group in groups
    ]


def exposed_seconds(ready_seconds: Iterable[float], sending_seconds: Iterable[float], backward_seconds: float) -> float:
    """What of the sums is left when the backward pass has ended.

    Buckets leave strictly in order, each when it is ready and the one before it is there (`comm.reducer`):

        end(i) = max(ready(i), end(i - 1)) + sending(i)
        exposed = max(0, end(last) - backward)
    """
    end = 0.0
    for ready, sending in zip(ready_seconds, sending_seconds, strict=True):
        end = max(ready, end) + sending
    return max(0.0, end - backward_seconds)


def _count(group: Sequence[Gradients]) -> int:
    return sum(one.parameters for one in group)
