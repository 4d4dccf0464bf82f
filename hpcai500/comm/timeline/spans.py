"""The facts that the timeline is made of: when each bucket passed each stage, and where each step's time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class BucketSpan:
    """One bucket of one step, on one rank. Times by `time.perf_counter`, in seconds.

    The stages are those of V2.0 Table 12: wait for data is `first_ready - backward_start`, wait for other data
    `last_ready - first_ready`, queuing `copy_start - last_ready`, memcpy in `sent - copy_start`, all-reduce
    `received - sent`, memcpy out `done - received`.

    Attributes:
        step: number of the update, from 0, over the whole run.
        bucket: number of the bucket, in the order of sending.
        backward_start: the backward pass begins.
        first_ready: the first gradient of the bucket is there.
        last_ready: the last one is there (or the backward pass has ended without it).
        copy_start: it is taken up: buckets before it are done.
        sent: packed and compressed.
        received: the sum is here.
        done: unpacked into the gradients.
        gradient_bytes: size of its gradients in fp32, before compression.
        sent_bytes: what this rank sends for it, by the topology's count, after compression.
    """

    step: int
    bucket: int
    backward_start: float
    first_ready: float
    last_ready: float
    copy_start: float
    sent: float
    received: float
    done: float
    gradient_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class StepSpan:
    """One update on one rank; seconds.

    Attributes:
        step: number of the update, from 0, over the whole run.
        start: when it began, by `time.perf_counter`.
        seconds: the whole step.
        data_wait_seconds: waiting for input.
        communication_wait_seconds: waiting for sums after the backward pass had ended: what was not overlapped.
    """

    step: int
    start: float
    seconds: float
    data_wait_seconds: float
    communication_wait_seconds: float

    @property
    def compute_seconds(self) -> float:
        """What is left: forward and backward pass, update."""
        return self.seconds - self.data_wait_seconds - self.communication_wait_seconds


class SpanSink(Protocol):
    """Whoever wants to know. Called from the thread that communicates and from that of the training loop."""

    def bucket(self, span: BucketSpan) -> None:
        """A bucket is done."""

    def step(self, span: StepSpan) -> None:
        """A step is done."""
