"""One update on its way: which gradients are there, which were used, and when each bucket passed each stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from hpcai500.comm.buckets import Bucket, Readiness
from hpcai500.comm.lanes import ExchangeLane, Mark, Queue
from hpcai500.comm.timeline.spans import BucketSpan
from hpcai500.errors import RunError


class GradientUpdate:
    """What the training thread and the exchange thread know about one update.

    Once a bucket has left, its gradients, `norms`, `stages`, `sums` and `exchange_end` are the exchange threads' until
    the end.

    Attributes:
        used: 1 for each parameter that a backward pass of this rank has reached.
        backward_start: the last backward pass begins.
        backward_end: it has ended.
        last_ready: of each bucket, when its last gradient was there: a mark of each queue that gradients came on.
        stages: of each bucket, the marks of `copy_start`, `sent`, `received`, `done`.
        norms: of each bucket, the L2 norms of this rank's own gradients, before any sum (float64, on their device).
        sums: over all ranks, of `used` and of the caller's numbers behind it.
        exchange_end: the sums are there.
    """

    def __init__(self, step: int, parameters: Sequence[Tensor], buckets: Sequence[Bucket], lane: ExchangeLane) -> None:
        self._step, self._parameters, self._lane = step, parameters, lane
        self._readiness = Readiness(buckets)
        self._absent: dict[int, Tensor] = {}
        self._first_ready: dict[int, Mark] = {}
        self._queues: defaultdict[int, set[Queue]] = defaultdict(set)
        self.used = bytearray(len(parameters))
        self.backward_start = self.backward_end = self.exchange_end = lane.mark()
        self.last_ready: dict[int, tuple[Mark, ...]] = {}
        self.stages: dict[int, list[Mark]] = {}
        norms = torch.empty(len(parameters), dtype=torch.float64, device=parameters[0].device)
        self.norms = norms.split([len(bucket.members) for bucket in buckets])
        self.sums: list[float] = []

    def arrive(self, index: int, *, leaving: bool) -> list[Bucket]:
        """A backward pass has added to the gradient of parameter `index`; returns the buckets that leave now.

        Args:
            index: of the parameter.
            leaving: whether this is the last pass.

        Raises:
            RunError: it has arrived before in the last pass, so it may have left incomplete.
        """
        self.used[index] = 1
        if not leaving:
            return []
        if not self._readiness.awaits(index):
            raise RunError(
                f"the gradient of trained parameter {index} {list(self._parameters[index].shape)} came twice in the "
                "last backward pass of an update: call the passes before it inside Reducer.accumulate()"
            )
        self._keep_layout(index)
        bucket = self._readiness.bucket_of(index)
        buckets = self._readiness.arrive(index)
        self._note(bucket)
        return buckets

    def end(self) -> list[Bucket]:
        """The last backward pass has ended; returns the buckets that leave now, with zeros for what is missing."""
        rest = self._readiness.rest()
        for bucket in rest:
            for index in bucket.members:
                if not self.used[index]:
                    self._absent[index] = torch.zeros_like(self._parameters[index])
                elif self._readiness.awaits(index):
                    self._keep_layout(index)
        # After the zeros: the exchange of these buckets waits for this mark.
        self.backward_end = self._lane.mark()
        for bucket in rest:
            self._first_ready.setdefault(bucket.number, self.backward_end)
            if not self._readiness.complete(bucket):
                self.last_ready[bucket.number] = (self.backward_end,)
        return rest

    def gradients(self, bucket: Bucket) -> list[Tensor]:
        """The gradients of a bucket that leaves, in its order."""
        found = []
        for index in bucket.members:
            gradient = self._absent.get(index, self._parameters[index].grad)
            assert gradient is not None
            found.append(gradient)
        return found

    def replace(self, bucket: Bucket, tensors: Sequence[Tensor]) -> None:
        """The averages of `bucket` come to be in `tensors`."""
        for index, tensor in zip(bucket.members, tensors, strict=True):
            if index in self._absent:
                self._absent[index] = tensor
            else:
                self._parameters[index].grad = tensor

    def hand_over(self) -> None:
        """All sums are there: parameters that only other ranks used get theirs."""
        for index, gradient in self._absent.items():
            if self.sums[index]:
                self._parameters[index].grad = gradient

    def waited_seconds(self) -> float:
        """From the end of the backward pass to the last sum, once the lane has settled."""
        ends = [self.exchange_end, *(marks[-1] for marks in self.stages.values())]
        return max(0.0, max(map(self._lane.seconds, ends)) - self._lane.seconds(self.backward_end))

    def span(self, bucket: Bucket, sent_bytes: int) -> BucketSpan:
        """When `bucket` passed each stage, once the lane has settled."""
        number = bucket.number
        copy_start, sent, received, done = map(self._lane.seconds, self.stages[number])
        return BucketSpan(
            step=self._step,
            bucket=number,
            backward_start=self._lane.seconds(self.backward_start),
            first_ready=self._lane.seconds(self._first_ready[number]),
            last_ready=max(map(self._lane.seconds, self.last_ready[number])),
            copy_start=copy_start,
            sent=sent,
            received=received,
            done=done,
            gradient_bytes=bucket.gradient_bytes,
            sent_bytes=sent_bytes,
        )

    def _note(self, bucket: Bucket) -> None:
        """A gradient of `bucket` is there, or in the queue of the calling thread."""
        queues = self._queues[bucket.number]
        queues.add(self._lane.queue())
        if bucket.number not in self._first_ready:
            self._first_ready[bucket.number] = self._lane.mark()
        if self._readiness.complete(bucket):
            # Autograd gives a gradient on the stream on which its parameter's node was made, which is that of a CUDA
            # graph's capture for some: the last one to come is not after those on another stream.
            self.last_ready[bucket.number] = tuple(self._lane.mark(queue) for queue in queues)

    def _keep_layout(self, index: int) -> None:
        """A buffer holds gradients in memory order, which must be the same on all ranks: the parameter's."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.stride() != parameter.stride() and not _lie_alike(gradient, dense := torch.empty_like(parameter)):
            parameter.grad = dense.copy_(gradient)


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether elements are in the same order in memory: the stride of an axis of length 1 does not matter."""
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(length == 1 or stride == theirs for length, stride, theirs in strides)
