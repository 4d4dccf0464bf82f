"""One of the exchanges that run beside each other: groups and buffers of its own, and one bucket at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpcai500.comm.base import Communicator
from hpcai500.comm.buckets import Bucket
from hpcai500.comm.gradient_update import GradientUpdate
from hpcai500.comm.lanes import ExchangeLane
from hpcai500.comm.topologies import make_topology
from hpcai500.comm.wire_choice import make_wire
from hpcai500.comm.working_memory import Buffers, Residuals
from hpcai500.layers import Communication


class Conversation:
    """Averages buckets over all ranks of `communicator`, whose members make it alike and use it in the same order.

    Raises:
        RecipeError: the topology cannot be laid over these ranks.
        RunError (also all methods): a rank is gone.
    """

    def __init__(
        self,
        communicator: Communicator,
        settings: Communication,
        lane: ExchangeLane,
        residuals: Residuals | None,
        *,
        device: torch.device,
        threads: int | None,
    ) -> None:
        group = communicator.group(range(communicator.size))
        assert group
        self._all, self._lane, self._device = group, lane, device
        buffers = Buffers(device)
        self._wire = make_wire(settings.compression, buffers, residuals, threads)
        self._topology = make_topology(settings, group, self._wire, buffers)

    def average(self, update: GradientUpdate, bucket: Bucket) -> None:
        """Replace the gradients of `bucket` by their average over all ranks, and note when each stage was passed."""
        number, gradients = bucket.number, update.gradients(bucket)
        with self._lane.after(*update.last_ready[number]):
            marks = [self._lane.mark()]
            packed = self._wire.pack(
                gradients,
                self._padded(bucket.elements),
                scale=1 / self._all.size,
                bucket=number,
                norms=update.norms[number],
            )
            targets = self._wire.targets(gradients, number)
            if targets is not gradients:
                self._lane.let_go(gradients)
                update.replace(bucket, targets)
                del gradients
            marks.append(self._lane.mark())
            packed = self._topology.sum(packed, number)
            marks.append(self._lane.mark())
            self._wire.unpack(packed, targets)
            marks.append(self._lane.mark())
        update.stages[number] = marks

    def add_up(self, update: GradientUpdate, numbers: Sequence[float]) -> None:
        """Leave the sum of `numbers` over all ranks in `update.sums`; what was given before is then done, and timed."""
        with self._lane.after(update.backward_end):
            tensor = torch.tensor(numbers, dtype=torch.float64, device=self._device)
            self._all.all_reduce(tensor)
            update.exchange_end = self._lane.mark()
            self._lane.settle()
            update.sums = tensor.tolist()

    def sent(self, bucket: Bucket) -> int:
        """Bytes that this rank sends for `bucket`, by the topology's count."""
        return self._topology.sent_bytes(self._packed_bytes(bucket), bucket.number)

    def sent_between_nodes(self, bucket: Bucket) -> int:
        """The part of `sent` that goes to other hosts."""
        return self._topology.sent_between_nodes(self._packed_bytes(bucket), bucket.number)

    def forget(self) -> None:
        """Other buckets come."""
        self._wire.forget()

    def close(self) -> None:
        """Leave the groups."""
        for group in [*self._topology.groups, self._all]:
            group.close()

    def _padded(self, elements: int) -> int:
        """The next number of elements that the topology can cut."""
        unit = self._topology.pieces * self._wire.grain
        return -(-elements // unit) * unit

    def _packed_bytes(self, bucket: Bucket) -> int:
        return self._wire.packed_bytes(self._padded(bucket.elements))
