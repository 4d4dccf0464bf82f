"""Keeps of all spans what tables need, in a space that does not grow with the run, and all of the first steps'."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from hpcai500.comm.timeline.spans import BucketSpan, StepSpan
from hpcai500.comm.timeline.stages import MEASURED_STAGES, stage_seconds
from hpcai500.methodology.reservoir import Reservoir
from hpcai500.methodology.stages import StageTally

# Every step of a short run; of a long one enough that a median is within a percent of the rank.
_STEP_SAMPLES = 4096


@dataclass
class BucketTotals:
    """One bucket over all steps; seconds and bytes."""

    stages: StageTally = field(default_factory=lambda: StageTally(MEASURED_STAGES))
    gradient_bytes: int = 0
    sent_bytes: int = 0


@dataclass
class StepTotals:
    """All steps; seconds. `samples` are (step, data wait, compute, communication wait)."""

    count: int = 0
    seconds: float = 0.0
    communication_wait_seconds: float = 0.0
    samples: Reservoir[tuple[float, float, float, float]] = field(default_factory=lambda: Reservoir(_STEP_SAMPLES))


class Timeline:
    """Takes the spans of one rank, from the thread that communicates and from that of the training loop.

    Args:
        trace_steps: first steps of which all spans are kept, from the first step that is seen: a resumed run traces its
            own beginning.

    Attributes:
        lock: for whoever reads the totals while training goes on.
        steps: all steps.
        buckets: totals of each bucket.
    """

    def __init__(self, trace_steps: int) -> None:
        self.lock = threading.Lock()
        self.steps = StepTotals()
        self.buckets: dict[int, BucketTotals] = {}
        self._all_reduce_seconds = 0.0
        self._trace_steps = trace_steps
        self._step_of_sums: int | None = None
        self._sums: list[tuple[float, float]] = []
        self._traced_until: int | None = None
        self._traced_buckets: list[BucketSpan] = []
        self._traced_steps: list[StepSpan] = []

    @property
    def sent_bytes(self) -> int:
        """What this rank has sent since the start, by the topology's count."""
        with self.lock:
            return sum(bucket.sent_bytes for bucket in self.buckets.values())

    def bucket(self, span: BucketSpan) -> None:
        """A bucket is done."""
        with self.lock:
            totals = self.buckets.get(span.bucket)
            if totals is None:
                totals = self.buckets[span.bucket] = BucketTotals()
            totals.stages.add(stage_seconds(span))
            totals.gradient_bytes += span.gradient_bytes
            totals.sent_bytes += span.sent_bytes
            if span.step != self._step_of_sums:
                self._add_up_sums()
                self._step_of_sums = span.step
            self._sums.append((span.sent, span.received))
            if self._is_traced(span.step):
                self._traced_buckets.append(span)

    def step(self, span: StepSpan) -> None:
        """A step is done."""
        with self.lock:
            steps, wait = self.steps, span.communication_wait_seconds
            steps.count += 1
            steps.seconds += span.seconds
            steps.communication_wait_seconds += wait
            steps.samples.add((span.seconds, span.data_wait_seconds, span.compute_seconds, wait))
            if self._is_traced(span.step):
                self._traced_steps.append(span)

    @property
    def all_reduce_seconds(self) -> float:
        """Time in which at least one bucket was being summed. The caller holds `lock`."""
        self._add_up_sums()
        return self._all_reduce_seconds

    def _add_up_sums(self) -> None:
        """The union of one step's sums: several may be on their way at once, and end in any order."""
        busy_until = 0.0
        for sent, received in sorted(self._sums):
            self._all_reduce_seconds += max(0.0, received - max(sent, busy_until))
            busy_until = max(busy_until, received)
        self._sums.clear()

    def traced(self) -> tuple[list[StepSpan], list[BucketSpan]]:
        """The spans of the first steps."""
        with self.lock:
            return list(self._traced_steps), list(self._traced_buckets)

    def _is_traced(self, step: int) -> bool:
        if self._traced_until is None:
            self._traced_until = step + self._trace_steps
        return step < self._traced_until
