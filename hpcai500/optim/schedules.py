"""Learning-rate policies (V2.0 section 5.1.2): linear scaling, warm-up, and the schedule after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcai500.layers import SLOW_START_SHARE, Hyperparameters

# Akiba, Suzuki and Fukuda 2017, "Slow-Start": (first epoch of 90, share of the scaled rate).
_SLOW_START = ((0, SLOW_START_SHARE), (40, 0.075), (70, 0.01), (85, 0.001))
_SLOW_START_EPOCHS = 90


@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a function of the step alone, so that a resumed run needs no state.

    Warm-up grows linearly from `warmup_start` x peak to the peak; the schedule covers the remaining steps. The
    epochs of `step` and `slow-start` are counted from the start of the run.
    """

    policy: Hyperparameters
    global_batch: int
    steps_per_epoch: int
    epochs: int

    @property
    def peak(self) -> float:
        """Rate after the warm-up."""
        return self.policy.peak_learning_rate(self.global_batch)

    def at(self, step: int) -> float:
        """Rate of update `step` (from 0) of the whole run."""
        warmup_steps = self.policy.warmup_epochs * self.steps_per_epoch
        if step < warmup_steps:
            start = self.policy.warmup_start
            return self.peak * (start + (1 - start) * step / warmup_steps)
        total_steps = self.epochs * self.steps_per_epoch
        progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
        return self._after_warmup(progress, step / self.steps_per_epoch)

    def _after_warmup(self, progress: float, epoch: float) -> float:
        end, peak = self.policy.end_learning_rate, self.peak
        match self.policy.schedule:
            case "cosine":
                return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))
            case "polynomial":
                return end + (peak - end) * math.pow(1 - progress, self.policy.polynomial_power)
            case "step":
                return peak * self.policy.step_factor ** sum(epoch >= boundary for boundary in self.policy.step_epochs)
            case "slow-start":
                done = epoch * _SLOW_START_EPOCHS / self.epochs
                share = [share for begin, share in _SLOW_START if done >= begin][-1]
                return peak * share / _SLOW_START[0][1]
            case "constant":
                return peak
