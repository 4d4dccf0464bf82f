"""What the devices of a run could not have done."""

from __future__ import annotations

import pytest
from builders.events import log_of, uninterrupted

from hpcai500.methodology.events import Ceilings, EpochStop, ParallelEfficiency
from hpcai500.methodology.integrity import (
    Pass,
    ceiling_faults,
    evaluation_rate,
    fast_epochs,
    fast_steps,
    last_passes,
    training_rate,
)


def epoch(number: int, seconds: float, steps: int = 100) -> Pass:
    done = EpochStop(
        epoch=number, steps=steps, samples=800, padded_samples=200, loss=1.0, seconds=seconds, data_wait_seconds=0.0,
        coverage="800-0",
    )  # fmt: skip
    return Pass(number, done, seconds, 0.0)


def test_a_rate_counts_padding_and_takes_the_time_of_the_clock() -> None:
    one = epoch(1, 10.0)
    assert training_rate(one, 2e9) == pytest.approx(1000 * 2e9 / 10)
    assert training_rate(epoch(1, 0.0), 2e9) == float("inf")
    assert evaluation_rate(one, 1e9) == 0
    evaluated = last_passes(log_of(uninterrupted()))[1]
    assert evaluation_rate(evaluated, 1e9) == pytest.approx(50_000 * 1e9 / 0.501, rel=1e-3)


def test_ceilings_are_of_the_runs_precision_and_a_sum_over_its_ranks() -> None:
    good = Ceilings(precision="bf16", flops=4e12, slowest_flops=1.9e12, ranks=2, seconds=0.5)
    assert list(ceiling_faults([good], "bf16")) == []
    assert "in bf16, the run computes in fp32" in next(iter(ceiling_faults([good], "fp32")))
    bad = good.model_copy(update={"flops": 3e12})
    assert "2 ranks of 1.9e+12 FLOPS at least are told to reach 3e+12" in next(iter(ceiling_faults([bad], "bf16")))


def test_an_epoch_much_faster_than_the_usual_one_is_told() -> None:
    usual = [epoch(number, 30.0) for number in range(1, 6)]
    assert list(fast_epochs(usual)) == []
    assert "epoch 6 took 20.0 s; the median of the run is 30.0 s" in next(iter(fast_epochs([*usual, epoch(6, 20.0)])))
    # Of a tiny run, differences are noise; of a short one there is no usual epoch.
    assert list(fast_epochs([epoch(number, 0.5) for number in range(1, 6)] + [epoch(6, 0.1)])) == []
    assert list(fast_epochs([*usual[:2], epoch(6, 5.0)])) == []


def test_steps_faster_than_in_the_warm_up_are_told() -> None:
    timed = [ParallelEfficiency(step_seconds_alone=0.28, step_seconds=0.3)]
    assert list(fast_steps([epoch(1, 30.0)], timed)) == []
    assert "a step took 0.14 s on average" in next(iter(fast_steps([epoch(1, 14.0)], timed)))
    assert list(fast_steps([epoch(1, 14.0)], [])) == []
