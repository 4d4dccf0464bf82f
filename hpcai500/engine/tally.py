"""What one epoch has done so far: counted as it happens, kept in checkpoints, written to the record at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcai500.methodology.coverage import Coverage
from hpcai500.workloads.base import TrainingBatch

_SUMMED = ("samples", "padded_samples", "warnings", "indexed_samples")
_SPENT = ("seconds", "data_wait_seconds", "compute_seconds", "communication_wait_seconds")
_AVERAGED = ("loss_sum", *_SPENT)


@dataclass
class EpochTally:
    """Counts and times of one epoch, on one rank or, once merged, on all of them; times in seconds.

    Merged, samples are those of all ranks; loss and times are the mean over ranks.
    """

    steps: int = 0
    samples: int = 0
    padded_samples: int = 0
    warnings: int = 0
    indexed_samples: int = 0
    loss_sum: float = 0.0
    losses_seen: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    communication_wait_seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, batch: TrainingBatch) -> None:
        """Count one backward pass; the step that it belongs to is counted, and timed, when it is done."""
        self.samples += len(batch.samples)
        self.padded_samples += batch.padded
        self.warnings += batch.warnings
        self.indexed_samples += batch.indexed
        self.data_wait_seconds += batch.wait_seconds
        self.coverage = self.coverage.add(batch.samples)

    def spend(self, compute_seconds: float, communication_wait_seconds: float = 0.0) -> None:
        """Where time of a step went, beside the wait for data, which comes with the batches."""
        self.compute_seconds += compute_seconds
        self.communication_wait_seconds += communication_wait_seconds

    def merged(self, ranks: Sequence[dict[str, Any]]) -> EpochTally:
        """This tally and, after it, what all `ranks` did together (their `state()`)."""
        whole = EpochTally.from_state(self.state())
        parts = [EpochTally.from_state(state) for state in ranks]
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + sum(getattr(part, name) for part in parts))
        for name in _AVERAGED:
            setattr(whole, name, getattr(whole, name) + sum(getattr(part, name) for part in parts) / len(parts))
        for part in parts:
            whole.coverage = whole.coverage.merge(part.coverage)
        whole.steps += parts[0].steps
        whole.losses_seen += parts[0].losses_seen
        return whole

    def state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "coverage"}
        return {**numbers, "coverage": self.coverage.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> EpochTally:
        """The tally of a checkpoint."""
        return cls(**{**state, "coverage": Coverage.from_state(state["coverage"])})

    def summary(self) -> dict[str, Any]:
        """The value of the record's `epoch_stop`."""
        return {
            "steps": self.steps,
            "samples": self.samples,
            "padded_samples": self.padded_samples,
            "warnings": self.warnings,
            "indexed_samples": self.indexed_samples,
            "loss": self.loss_sum / self.steps if self.steps else None,
            **{name: round(getattr(self, name), 6) for name in _SPENT},
            "coverage": self.coverage.digest,
        }
