"""The order of a run's events: honest ones pass, and any that is dropped, doubled or moved is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders.events import interrupted, log_of, uninterrupted, with_last

from hpcai500.methodology.events import order_violations, unknown_keys
from hpcai500.record import Event

# Those that some runs do not write: of several nodes, of several ranks, of newer versions, of the end.
OPTIONAL = {"system_differences", "ceilings", "rehearsal", "parallel_efficiency", "replicas", "steps", "communication"}
LAST = {"power", "run_error"}


def violations(events: list[Event]) -> list[str]:
    return list(order_violations(log_of(events).moments, 3))


@pytest.mark.parametrize("events", [uninterrupted(), interrupted()], ids=["whole", "interrupted"])
def test_honest_runs_keep_the_order(events: list[Event]) -> None:
    assert violations(events) == []
    assert unknown_keys(log_of(events).moments) == []


def test_a_run_that_stopped_anywhere_keeps_it_so_far() -> None:
    events = uninterrupted()
    for end in range(1, len(events) + 1):
        assert violations(events[:end]) == []


@pytest.mark.parametrize("make", [uninterrupted, interrupted])
def test_each_event_that_is_dropped_is_missed(make: Callable[[], list[Event]]) -> None:
    events = make()
    for number, event in enumerate(events):
        is_needed = event["key"] not in OPTIONAL | LAST
        # What a killed process did not come to say, nobody can miss.
        before_silence = number + 1 < len(events) and events[number + 1]["key"] == "run_error"
        if is_needed and not before_silence:
            assert violations(events[:number] + events[number + 1 :]), f"{number}: {event['key']}"


def test_each_event_that_is_doubled_is_told() -> None:
    # The first alone may come twice: a process that was killed at once said nothing else.
    for number, event in list(enumerate(uninterrupted()))[1:]:
        events = uninterrupted()
        events.insert(number, event)
        assert violations(events), f"{number}: {event['key']}"


def test_neighbours_that_are_exchanged_are_told() -> None:
    for number in range(len(uninterrupted()) - 1):
        events = uninterrupted()
        events[number], events[number + 1] = events[number + 1], events[number]
        assert violations(events), f"{number}: {events[number + 1]['key']}"


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (with_last(uninterrupted(), "epoch_stop", epoch=2), "epoch_stop of epoch 2, expected 3"),
        (with_last(uninterrupted(), "eval_accuracy", epoch=1), "eval_accuracy of epoch 1, expected 3"),
        (with_last(uninterrupted(), "epoch_start", step=7), "epoch_start at epoch 3, step 7, expected epoch 3, step 0"),
        (with_last(uninterrupted(), "checkpoint", epoch=3), "checkpoint at epoch 3, step 0, expected epoch 4, step 0"),
        (with_last(interrupted(), "run_resume", step=101), "run_resume at epoch 2, step 101, where no checkpoint was"),
        (with_last(interrupted(), "interrupted", epoch=3), "interrupted of epoch 3, expected 2"),
    ],
)
def test_numbers_go_on_where_the_run_was(events: list[Event], told: str) -> None:
    assert told in violations(events)[0]


def test_a_process_that_a_signal_ended_does_nothing_more() -> None:
    events = [event for event in interrupted() if event["key"] != "run_error"]
    start = next(number for number, event in enumerate(events) if event["key"] == "interrupted") + 2
    resume = next(number for number, event in enumerate(events) if event["key"] == "run_resume")
    assert "in a process that a signal has interrupted" in violations(events[:start] + events[resume + 1 :])[0]


def test_training_after_the_end_is_told() -> None:
    events = uninterrupted()
    stop = next(number for number, event in enumerate(events) if event["key"] == "run_stop")
    assert "init_start after run_stop" in violations(events[: stop + 1] + events)[0]


def test_events_of_newer_versions_break_no_order() -> None:
    events = uninterrupted()
    events.append({**events[-1], "key": "weather"})
    assert violations(events) == []
    assert unknown_keys(log_of(events).moments) == ["weather"]
