"""Times and rates that a run tells: what its clocks do not bear out, and what its devices could not have done."""

from __future__ import annotations

import pytest
from builders.events import interrupted, log_of, uninterrupted, with_last

from hpcai500.errors import RecordError
from hpcai500.methodology.events import Ceilings, EpochStop, ParallelEfficiency
from hpcai500.methodology.integrity import (
    Pass,
    ceiling_faults,
    clock_faults,
    drift_seconds,
    evaluation_rate,
    fast_epochs,
    fast_steps,
    last_passes,
    pauses,
    step_faults,
    time_faults,
    training_rate,
    unreported_times,
)
from hpcai500.record import Event

# --- Clocks with each other, and the times that are told with them.


def told(events: list[Event]) -> list[str]:
    log = log_of(events)
    passes = list(last_passes(log).values())
    return [
        *clock_faults(log),
        *time_faults(passes),
        *unreported_times(passes),
        *step_faults(log, passes),
        *pauses(log),
    ]


def moved(events: list[Event], key: str, clock_s: float = 0.0, wall_s: float = 0.0) -> list[Event]:
    """Events from the second one named `key` on, moved in time."""
    start = [number for number, event in enumerate(events) if event["key"] == key][1]
    for event in events[start:]:
        event["clock_s"] += clock_s
        event["time_ms"] += round(wall_s * 1000)
    return events


def noted(events: list[Event], key: str) -> list[Event]:
    """Events with the note of a stop before the second one named `key`."""
    at = [number for number, event in enumerate(events) if event["key"] == key][1]
    return [*events[:at], {**events[at], "key": "suspended", "value": {"seconds": 40.0}}, *events[at:]]


@pytest.mark.parametrize(
    "events", [uninterrupted(), interrupted(), interrupted(boot="another")], ids=["one", "two", "boots"]
)
def test_honest_clocks_agree(events: list[Event]) -> None:
    assert told(events) == []
    assert abs(drift_seconds(log_of(events))) < 0.01


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (moved(uninterrupted(), "eval_start", clock_s=-50), "the machine's clock went back by 50.0"),
        (moved(uninterrupted(), "epoch_stop", clock_s=9), "the machine's clock advanced by 41."),
        (moved(uninterrupted(), "epoch_stop", wall_s=-9), "the wall clock by 23."),
        (moved(uninterrupted(), "epoch_stop", -3, -3), "epoch 2: reports 32."),
        (moved(uninterrupted(), "eval_accuracy", -0.4, -0.4), "epoch 2: reports 0.5"),
        (moved(uninterrupted(), "epoch_stop", 20, 20), "epoch 2: training: reports 32."),
        (
            moved(uninterrupted(), "epoch_start", 40, 40),
            "40.0 s from checkpoint to epoch_start: nothing there takes long",
        ),
        (
            noted(moved(uninterrupted(), "epoch_start", 40, 40), "epoch_start"),
            "40.0 s from checkpoint to epoch_start: nothing there takes long",
        ),
        (with_last(uninterrupted(), "epoch_stop", compute_seconds=40.0), "epoch 3: parts of its steps add up to 41."),
        (
            with_last(interrupted(), "communication", steps=7),
            "the event communication reports 7 steps, the epochs 526",
        ),
    ],
)
def test_what_does_not_fit_is_told(events: list[Event], words: str) -> None:
    assert any(words in one for one in told(events)), told(events)


def test_many_small_steps_of_a_clock_are_one_large_one() -> None:
    events = uninterrupted()
    for number, event in enumerate(events):
        event["time_ms"] += 1000 * number // 4
    assert any("the machine's clock advanced by" in one for one in told(events))


def test_two_machines_may_disagree_and_none_may_end_before_it_began() -> None:
    events = interrupted(boot="another", down_seconds=-60.0)
    assert any("the wall clock went back by" in one for one in told(events))


def test_an_epoch_of_two_processes_has_the_time_of_both() -> None:
    passes = last_passes(log_of(interrupted()))
    assert passes[2].elapsed_seconds == pytest.approx(passes[2].done.seconds, abs=0.1)
    assert passes[2].done.seconds > 40
    assert passes[2].evaluation
    assert sorted(passes) == [1, 2, 3]


def test_other_ranks_may_train_while_the_first_saves() -> None:
    """Rank 0 writes a checkpoint while others have begun the next epoch: their mean time is longer than its own."""
    events = uninterrupted()
    last = [event for event in events if event["key"] == "epoch_stop"][-1]["value"]
    last["seconds"] += 0.7
    assert [one for one in told(events) if one.startswith("epoch 3")] == []
    last["seconds"] += 0.3
    assert [one for one in told(events) if one.startswith("epoch 3")] != []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epoch_stop", {"seconds": float("nan")}, "epoch_stop: seconds: Input should be a finite number"),
        ("epoch_stop", {"samples": "many"}, "epoch_stop: samples: Input should be a valid integer"),
        ("eval_accuracy", {"samples": True}, "eval_accuracy: samples: Input should be a valid integer"),
        ("checkpoint", {"epoch": -1}, "checkpoint: epoch: Input should be greater than or equal to 1"),
    ],
)
def test_values_of_wrong_types_are_refused_with_their_line(key: str, value: dict[str, float], words: str) -> None:
    events = with_last(uninterrupted(), key, **value)
    with pytest.raises(RecordError, match=words):
        log_of(events)


# --- What the devices of a run could not have done.


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
    (fault,) = ceiling_faults([bad], "bf16")
    assert fault == "the ceiling of 2 ranks is reported as 3e+12 FLOPS, less than 2 x the slowest rank's 1.9e+12"


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
