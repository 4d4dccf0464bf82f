"""What one epoch has done so far: counted as it happens, kept in checkpoints, written to the record at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcai500.data.coverage import Coverage
from hpcai500.workloads.base import TrainingBatch


@dataclass
class EpochTally:
    """Counts and times of one epoch; times in seconds."""

    steps: int = 0
    samples: int = 0
    padded_samples: int = 0
    warnings: int = 0
    loss_sum: float = 0.0
    losses_seen: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, batch: TrainingBatch) -> None:
        """Count one step; its whole time is added to `seconds` when it is known."""
        self.steps += 1
        self.samples += len(batch.samples)
        self.padded_samples += batch.padded
        self.warnings += batch.warnings
        self.data_wait_seconds += batch.wait_seconds
        self.coverage = self.coverage.add(batch.samples)

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
            "loss": self.loss_sum / self.steps if self.steps else None,
            "seconds": round(self.seconds, 6),
            "data_wait_seconds": round(self.data_wait_seconds, 6),
            "coverage": self.coverage.digest,
        }
