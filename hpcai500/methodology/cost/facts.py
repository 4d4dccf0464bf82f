"""What `hpcai500.measure.step_command` found out about a step of a recipe, read back from its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcai500.methodology.cost.gradients import Gradients, in_buckets
from hpcai500.methodology.cost.step import Work


@dataclass(frozen=True)
class StepFacts:
    """One step of one rank.

    Attributes:
        samples: of a step, on one rank.
        forward_flops: of a sample.
        training_flops: of a sample, forward and backward.
        gradients: in the order of sending.
        accumulation_steps: backward passes; sums run under the last one only.
    """

    samples: int
    forward_flops: float
    training_flops: float
    gradients: tuple[Gradients, ...]
    accumulation_steps: int = 1

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> StepFacts:
        """From the command's document."""
        passes = document["accumulation_steps"]
        return cls(
            document["batch_size"] * passes,
            document["forward_flops"],
            document["training_flops"],
            tuple(Gradients(**one) for one in document["gradients"]),
            passes,
        )

    @property
    def flops(self) -> float:
        """Of a step."""
        return self.samples * self.training_flops

    def buckets(self, bucket_bytes: float) -> tuple[Gradients, ...]:
        """How gradients travel."""
        return tuple(in_buckets(self.gradients, bucket_bytes))

    def work(self, seconds: float, bucket_bytes: float, jitter_seconds: float = 0.0) -> Work:
        """A step of `seconds` without communication, of which forward and backward have their share of the FLOPs."""
        backward = seconds * (1 - self.forward_flops / self.training_flops) / self.accumulation_steps
        return Work(seconds - backward, backward, 0.0, self.buckets(bucket_bytes), jitter_seconds)

    def timed_work(self, alone: Mapping[str, Any], bucket_bytes: float) -> Work:
        """A step whose phases were measured: `alone` of the command's document.

        Its time is that of the slowest rank, so waiting for others is in it already.
        """
        return Work(alone["forward"], alone["backward"], alone["update"] + alone["wait"], self.buckets(bucket_bytes))
