"""The time of one training step on many ranks, and the share of it that is the work of one (docs/cost-model.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.errors import UsageError
from hpcai500.methodology.cost.collectives import AllReduce
from hpcai500.methodology.cost.gradients import Gradients, exposed_seconds
from hpcai500.methodology.cost.waiting import expected_excess

# fp32 gradients as they travel: docs/communication-reducer.md.
TRAVELLING = {"none": 1.0, "fp16": 0.5, "bf16": 0.5, "int8": 0.254}
# With the last sum, ranks add up who used which parameter and a few numbers of the engine, in fp64.
_STATUS_BYTES, _STATUS_NUMBERS = 8, 8


@dataclass(frozen=True)
class Work:
    """What a rank does in a step by itself.

    Attributes:
        forward_seconds: everything up to the last backward pass.
        backward_seconds: the last backward pass, under which sums may run.
        update_seconds: of the optimizer.
        buckets: of gradients, in the order of sending.
        jitter_seconds: standard deviation of these times from step to step, each rank for itself.
    """

    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    buckets: tuple[Gradients, ...]
    jitter_seconds: float = 0.0

    def __post_init__(self) -> None:
        times = (self.forward_seconds, self.backward_seconds, self.update_seconds, self.jitter_seconds)
        if any(not math.isfinite(time) or time < 0 for time in times) or self.seconds == 0:
            raise UsageError(f"cost model: expected times of a step of 0 s or more, and some work, got {times}")

    @property
    def seconds(self) -> float:
        """Of a step without any communication."""
        return self.forward_seconds + self.backward_seconds + self.update_seconds

    @property
    def gradient_bytes(self) -> float:
        """In fp32."""
        return sum(bucket.size_bytes for bucket in self.buckets)


@dataclass(frozen=True)
class Exchange:
    """How sums are made.

    Attributes:
        all_reduce: `collectives.all_reduce`.
        compression: as in a recipe.
        packing_bytes_per_second: memory traffic of packing and unpacking; None leaves it out.
        overlap: whether sums run under the backward pass; without it, they begin when it has ended.
        overhead_seconds: of each step, whatever its size: before the last sum, and never hidden.
        processor_seconds_per_byte: that summing a byte of gradients takes from the backward pass that it runs under:
            where both need the same cores. 0 where a device computes.
    """

    all_reduce: AllReduce
    compression: str = "none"
    packing_bytes_per_second: float | None = None
    overlap: bool = True
    overhead_seconds: float = 0.0
    processor_seconds_per_byte: float = 0.0

    def sending_seconds(self, size_bytes: float) -> float:
        """Pack, sum and unpack gradients of `size_bytes` in fp32.

        Packing reads fp32 and writes what travels, unpacking the other way: 2 (1 + c) b bytes of memory, c from
        `TRAVELLING`; without compression averages stay where they are, so it is 2 b.
        """
        share = TRAVELLING[self.compression]
        packed = self.all_reduce(share * size_bytes)
        if self.packing_bytes_per_second is None:
            return packed
        moved = 2 * size_bytes if self.compression == "none" else 2 * (1 + share) * size_bytes
        return packed + moved / self.packing_bytes_per_second

    def status_seconds(self, buckets: Sequence[Gradients]) -> float:
        """The small sum that ends each update."""
        return self.all_reduce(_STATUS_BYTES * (_STATUS_NUMBERS + sum(bucket.parameters for bucket in buckets)))


@dataclass(frozen=True)
class StepCost:
    """A step, predicted; all in seconds.

    Attributes:
        alone_seconds: the work of one rank.
        communication_seconds: all sums, hidden or not.
        exposed_seconds: the part of them that follows the backward pass.
        jitter_seconds: waiting for the slowest rank.
        overhead_seconds: as `Exchange.overhead_seconds`; 0 for one rank.
    """

    alone_seconds: float
    communication_seconds: float
    exposed_seconds: float
    jitter_seconds: float
    overhead_seconds: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.alone_seconds + self.exposed_seconds + self.jitter_seconds + self.overhead_seconds

    @property
    def efficiency(self) -> float:
        """Against one rank that talks to nobody, 0 to 1: weak scaling, as in V2.0 Fig. 12."""
        return self.alone_seconds / self.seconds


def predict_step(work: Work, exchange: Exchange, ranks: int) -> StepCost:
    """One step of `ranks` ranks, each doing `work`.

        step = forward + backward + exposed + update + jitter E(max of n) + overhead

    where `exposed` is what `gradients.exposed_seconds` says of buckets that become ready at `ready` x backward. Where
    sums take processor time c a byte, the share h of them that runs under the backward pass lengthens it by c h b; that
    counts as exposed.
    """
    if ranks == 1:
        return StepCost(work.seconds, 0.0, 0.0, 0.0, 0.0)
    sending = [exchange.sending_seconds(bucket.size_bytes) for bucket in work.buckets]
    sending.append(exchange.status_seconds(work.buckets))
    total = math.fsum(sending)
    exposed = _exposed(work, exchange, sending, work.backward_seconds)
    if exchange.processor_seconds_per_byte and total:
        hidden = max(0.0, 1 - exposed / total)
        taken = exchange.processor_seconds_per_byte * work.gradient_bytes * hidden
        exposed = taken + _exposed(work, exchange, sending, work.backward_seconds + taken)
    return StepCost(
        alone_seconds=work.seconds,
        communication_seconds=total,
        exposed_seconds=exposed,
        jitter_seconds=work.jitter_seconds * expected_excess(ranks),
        overhead_seconds=exchange.overhead_seconds,
    )


def _exposed(work: Work, exchange: Exchange, sending: Sequence[float], backward: float) -> float:
    ready = [bucket.ready * backward if exchange.overlap else backward for bucket in work.buckets]
    return exposed_seconds([*ready, backward], sending, backward)
