"""Goodput: every second of a run belongs to one part, and each part is what was done to the run."""

from __future__ import annotations

from typing import Any

import pytest
from builders.events import EventLog
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.goodput import PARTS, Goodput, contradictions, goodput, in_turn, total

ONE_RANK = {"world_size": 1, "nodes": 1}


def launched(log: EventLog, process_seconds: float | None = 4.0, **launch: Any) -> EventLog:
    """A process begins so many seconds before the event that is added."""
    value = {"boot_id": log.boot, "launch": {"process_seconds": process_seconds, **launch}}
    return log.add("init_start", value).after(6)


def trained(log: EventLog, epoch: int, **waits: float) -> EventLog:
    """An epoch of 100 s, of which 10 wait for data and 5 for communication; 20 s of evaluation, 3 of checkpoint."""
    log.add("epoch_start", {"epoch": epoch, "step": 0}).after(100)
    log.add("epoch_stop", {"epoch": epoch, "data_wait_seconds": 10.0, "communication_wait_seconds": 5.0, **waits})
    return evaluated(log, epoch)


def evaluated(log: EventLog, epoch: int) -> EventLog:
    log.after(1).add("replicas", {"epoch": epoch}).add("eval_start", {"epoch": epoch}).after(19)
    log.add("eval_accuracy", {"epoch": epoch}).add("eval_stop", {"epoch": epoch})
    return log.after(3).add("checkpoint", {"epoch": epoch + 1, "step": 0})


def wall_ms(log: EventLog, ago_seconds: float = 0.0) -> int:
    return round((log.wall_s - ago_seconds) * 1000)


def found(log: EventLog) -> Goodput:
    derived = goodput(log.events)
    assert derived is not None
    assert sum(filter(None, derived.seconds.model_dump().values())) == pytest.approx(derived.wall_seconds)
    return derived


def parts(log: EventLog) -> dict[str, float | None]:
    """The parts that are not zero."""
    return {name: pytest.approx(s) if s else s for name, s in found(log).seconds.model_dump().items() if s != 0}


def test_a_run_in_one_go() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK)
    for epoch in (1, 2):
        trained(log, epoch)
    log.add("run_stop").after(50).add("power")
    assert parts(log) == {
        "startup": 10, "input": 20, "steps": 170, "communication": 10, "evaluation": 40, "checkpoint": 6,
    }  # fmt: skip
    one = found(log)
    assert (one.wall_seconds, one.fraction) == (pytest.approx(256), pytest.approx(170 / 256))
    assert (one.interruptions, one.mean_between_interruptions_seconds, one.recovery_seconds) == (0, None, None)
    assert (one.checkpoints, one.checkpoint_seconds) == (2, pytest.approx(3))


def killed_in_the_second_epoch(**launch: Any) -> EventLog:
    """Killed 30 s into epoch 2, 2 s after its last sign of life; another process starts 60 s later."""
    log = launched(EventLog()).add("run_start", ONE_RANK)
    trained(log, 1).add("epoch_start", {"epoch": 2, "step": 0}).after(30)
    signed = {"alive_ms": wall_ms(log, 2), "pause_seconds": 2.0}
    log.after(60 + 4)
    launched(log, **{**signed, **launch}).add("run_resume", {"epoch": 2, "step": 0, **ONE_RANK})
    log.add("epoch_start", {"epoch": 2, "step": 0}).after(7).add("first_step", {"epoch": 2, "step": 1}).after(93)
    log.add("epoch_stop", {"epoch": 2, "data_wait_seconds": 10.0, "communication_wait_seconds": 5.0})
    return evaluated(log, 2).add("run_stop")


def test_what_was_trained_before_a_kill_is_lost_and_the_time_until_the_next_process_is_downtime() -> None:
    log = killed_in_the_second_epoch()
    assert parts(log) == {
        "startup": 20, "input": 20, "steps": 170, "communication": 10, "evaluation": 40, "checkpoint": 6,
        "lost": 28, "unknown": 2, "downtime": 60,
    }  # fmt: skip
    one = found(log)
    assert one.interruptions == 1
    assert one.mean_between_interruptions_seconds == pytest.approx(one.wall_seconds - 60)
    # From the last sign of life: 2 s, then down, then start-up, then the first step.
    assert one.recovery_seconds == pytest.approx(2 + 60 + 10 + 7)


def test_a_job_that_went_back_to_the_queue() -> None:
    """Requeued 5 s after the kill, started 40 s later; image and Python take the last 15 s."""
    log = killed_in_the_second_epoch()
    process = next(one for one in reversed(log.events) if one["key"] == "init_start")
    began = process["time_ms"] / 1000 - 4
    process["value"]["launch"] |= {"scheduler": True, "job_submitted_s": began - 55, "job_started_s": began - 15}
    assert parts(log) == {
        "startup": 35, "input": 20, "steps": 170, "communication": 10, "evaluation": 40, "checkpoint": 6,
        "lost": 28, "unknown": 2, "downtime": 5, "queue": 40,
    }  # fmt: skip


def test_a_restart_in_the_same_job_waits_in_no_queue() -> None:
    same = {"scheduler": True, "job_submitted_s": 10.0, "job_started_s": 990.0}
    assert parts(killed_in_the_second_epoch(**same)) == parts(killed_in_the_second_epoch())


@pytest.mark.parametrize(
    ("launch", "unknown"),
    [
        # A scheduler had the job, for how long is not known.
        ({"scheduler": True}, 2 + 60),
        # Nobody knows how long the killed process lived.
        ({"alive_ms": None}, 30 + 60),
        # Nobody knows when the next one began.
        ({"process_seconds": None}, 30 + 60 + 4),
    ],
)
def test_what_cannot_be_told_is_unknown(launch: dict[str, Any], unknown: float) -> None:
    assert parts(killed_in_the_second_epoch(**launch))["unknown"] == pytest.approx(unknown)


def test_the_first_start_begins_with_its_job() -> None:
    log = EventLog().after(100)
    launched(log, job_started_s=log.wall_s - 30.0, job_submitted_s=log.wall_s - 90.0).add("run_start", ONE_RANK)
    trained(log, 1).add("run_stop")
    assert parts(log)["startup"] == pytest.approx(30 + 6)
    assert "queue" not in parts(log)


def test_a_signal_that_leaves_a_checkpoint_loses_nothing() -> None:
    """The totals of an epoch include what was done before the interruption."""
    log = launched(EventLog()).add("run_start", ONE_RANK).add("epoch_start", {"epoch": 1, "step": 0}).after(40)
    log.add("interrupted", {"epoch": 1, "step": 4, "signal": "SIGTERM"}).after(2)
    log.add("checkpoint", {"epoch": 1, "step": 4}).add("run_error", {}).after(50 + 4)
    launched(log).add("run_resume", {"epoch": 1, "step": 4, **ONE_RANK})
    log.add("epoch_start", {"epoch": 1, "step": 4}).after(1).add("first_step").after(59)
    log.add("epoch_stop", {"epoch": 1, "data_wait_seconds": 10.0, "communication_wait_seconds": 5.0})
    evaluated(log, 1).add("run_stop")
    assert parts(log) == {
        "startup": 20, "input": 10, "steps": 85, "communication": 5, "evaluation": 20, "checkpoint": 5, "downtime": 50,
    }  # fmt: skip
    assert found(log).recovery_seconds == pytest.approx(50 + 10 + 1)


def test_a_kill_during_an_evaluation_loses_its_epoch() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK).add("epoch_start", {"epoch": 1, "step": 0}).after(100)
    log.add("epoch_stop", {"epoch": 1, "data_wait_seconds": 9.0, "communication_wait_seconds": 0.0}).after(1)
    log.add("eval_start", {"epoch": 1}).after(8)
    alive = wall_ms(log)
    log.after(24)
    launched(log, alive_ms=alive, pause_seconds=2.0).add("run_resume", {"epoch": 1, "step": 0, **ONE_RANK})
    trained(log, 1).add("run_stop")
    assert parts(log) == {
        "startup": 20, "input": 10, "steps": 85, "communication": 5, "evaluation": 20, "checkpoint": 3,
        "lost": 109, "unknown": 2, "downtime": 18,
    }  # fmt: skip


def test_a_damaged_checkpoint_loses_also_the_epoch_before_it() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK)
    trained(trained(log, 1), 2).add("run_error", {}).after(14)
    launched(log).add("run_resume", {"epoch": 2, "step": 0, **ONE_RANK})
    trained(log, 2).add("run_stop")
    assert parts(log)["lost"] == pytest.approx(100 + 20 + 3)
    assert parts(log)["steps"] == pytest.approx(2 * 85)


def test_a_start_that_is_killed_before_it_trains_is_part_of_the_recovery() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK)
    trained(log, 1).add("run_error", {}).after(10 + 4)
    launched(log)
    alive = wall_ms(log)
    log.after(20 + 4)
    launched(log, alive_ms=alive, pause_seconds=0.0).add("run_resume", {"epoch": 2, "step": 0, **ONE_RANK})
    log.add("epoch_start", {"epoch": 2, "step": 0}).after(1).add("first_step").after(99)
    log.add("epoch_stop", {"epoch": 2, "data_wait_seconds": 0.0, "communication_wait_seconds": 0.0}).add("run_stop")
    one = found(log)
    assert (one.interruptions, one.recovery_seconds) == (2, pytest.approx(10 + 10 + 20 + 10 + 1))
    assert (one.seconds.downtime, one.seconds.startup) == (pytest.approx(30), pytest.approx(30))


def suspended(log: EventLog, seconds: float) -> EventLog:
    """Stopped for so long since the last event."""
    return log.after(seconds).add("suspended", {"seconds": seconds})


def test_time_in_which_the_run_was_suspended_is_none_of_its_work() -> None:
    """Half of an epoch's waits and steps lie in a stop of the same length; another one is in a checkpoint."""
    log = launched(EventLog()).add("run_start", ONE_RANK).add("epoch_start", {"epoch": 1, "step": 0}).after(100)
    suspended(log, 100).add("epoch_stop", {"epoch": 1, "data_wait_seconds": 20.0, "communication_wait_seconds": 110.0})
    suspended(evaluated(log, 1), 42).add("run_stop")
    assert parts(log) == {
        "startup": 10, "input": 10, "steps": 35, "communication": 55, "evaluation": 20, "checkpoint": 3,
        "suspended": 142,
    }  # fmt: skip
    one = found(log)
    assert (one.interruptions, one.checkpoint_seconds) == (0, pytest.approx(3))
    assert one.seconds.without_machine == pytest.approx(142)


def test_a_stop_before_a_kill_is_not_lost_and_leaves_the_epoch_that_counts_alone() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK).add("epoch_start", {"epoch": 1, "step": 0}).after(30)
    suspended(log, 50).add("first_step").after(10)
    alive = wall_ms(log)
    launched(log.after(4), alive_ms=alive, pause_seconds=0.0)
    trained(log.add("run_resume", {"epoch": 1, "step": 0, **ONE_RANK}), 1).add("run_stop")
    assert parts(log) == {
        "startup": 20, "input": 10, "steps": 85, "communication": 5, "evaluation": 20, "checkpoint": 3,
        "lost": 40, "suspended": 50,
    }  # fmt: skip


def test_an_unfinished_run_that_failed_has_lost_what_no_checkpoint_holds() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK)
    trained(log, 1).add("epoch_start", {"epoch": 2, "step": 0}).after(33).add("diverged", {}).add("run_error", {})
    assert parts(log)["lost"] == pytest.approx(33)


def test_a_run_that_still_trains_cannot_tell_the_waits_of_its_epoch() -> None:
    log = launched(EventLog()).add("run_start", ONE_RANK)
    trained(log, 1).add("epoch_start", {"epoch": 2, "step": 0}).after(33).add("an_event_of_a_later_version")
    assert (parts(log)["unknown"], parts(log)["steps"]) == (pytest.approx(33), pytest.approx(85))


def test_an_older_record_of_many_ranks_does_not_tell_steps_from_communication() -> None:
    log = EventLog().add("init_start", {"boot_id": "x"}).after(9).add("run_start", {"world_size": 2, "nodes": 1})
    log.add("epoch_start", {"epoch": 1}).after(100).add("epoch_stop", {"epoch": 1, "data_wait_seconds": 10.0})
    evaluated(log, 1).add("run_stop")
    assert parts(log) == {
        "startup": 9, "input": None, "steps": None, "communication": None, "evaluation": 20, "checkpoint": 3,
        "unknown": 100,
    }  # fmt: skip
    assert found(log).fraction is None


def test_runs_are_summed() -> None:
    one, other = found(killed_in_the_second_epoch()), found(trained_once())
    both = total([one, other, one])
    assert both is not None
    assert both.wall_seconds == pytest.approx(2 * one.wall_seconds + other.wall_seconds)
    assert (both.interruptions, both.recovery_seconds) == (2, one.recovery_seconds)
    assert both.fraction == pytest.approx((170 + 85 + 170) / both.wall_seconds)
    assert both.checkpoint_seconds == pytest.approx(3)
    assert total([one, None]) is None
    untold = one.model_copy(update={"seconds": one.seconds.model_copy(update={"steps": None, "unknown": 172.0})})
    mixed = total([untold, other])
    assert mixed is not None
    assert (mixed.fraction, mixed.seconds.steps, mixed.seconds.unknown) == (None, None, pytest.approx(172 + 85))


def test_time_between_the_runs_of_a_campaign_is_downtime_or_queue() -> None:
    first, second = trained_once(), trained_once()
    one = found(first)
    later = shifted(second, one.wall_seconds + 500)
    together = in_turn([found(later), one])
    assert together is not None
    assert together.seconds.downtime == pytest.approx(500)
    assert together.wall_seconds == pytest.approx(2 * one.wall_seconds + 500)
    assert together.fraction == pytest.approx(170 / together.wall_seconds)
    at_once = in_turn([one, one])
    assert at_once == total([one, one]), "runs at the same time have no time between them"
    assert in_turn([one, None]) is None
    queued = shifted(second, 0, job_submitted_s=(one.began_s or 0) + one.wall_seconds + 200)
    waited = in_turn([one, found(queued)])
    assert waited is not None
    assert (waited.seconds.downtime, waited.seconds.queue) == (pytest.approx(200), pytest.approx(300))


def shifted(log: EventLog, seconds: float, **launch: Any) -> EventLog:
    """The events of `log`, so much later."""
    for event in log.events:
        event["time_ms"] += round(1000 * seconds)
        if event["key"] == "init_start":
            event["value"]["launch"] |= launch
    return log


def trained_once() -> EventLog:
    return trained(launched(EventLog()).add("run_start", ONE_RANK), 1).add("run_stop")


# ----------------------------------------------------------------------------------------------------


moments = st.floats(0, 1e5)
attempts = st.lists(
    st.fixed_dictionaries(
        {
            "process_seconds": st.none() | moments,
            "alive": st.none() | st.floats(-1e4, 1e5),
            "pause_seconds": st.floats(0, 60),
            "job_started_s": st.none() | st.floats(1, 1e5),
            "job_submitted_s": st.none() | moments,
            "scheduler": st.booleans(),
            "epochs": st.integers(0, 3),
            "back": st.integers(0, 2),
            "ends": st.sampled_from(["killed", "error", "signal", "evaluation", "start"]),
            "pauses": st.lists(st.floats(0, 1e4), min_size=3, max_size=3),
            "waits": st.lists(st.floats(0, 1e4), min_size=2, max_size=2),
            "stopped": st.none() | st.floats(0, 2e4),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(attempts)
def test_parts_are_never_negative_and_add_up_to_the_time_of_any_sequence_of_starts(made: list[dict[str, Any]]) -> None:
    """Also where what a start says about the one before it is nonsense."""
    log, epoch = EventLog(), 1
    for number, one in enumerate(made):
        log.after(one["pauses"][0])
        alive = None if one["alive"] is None else wall_ms(log, -one["alive"])
        names = ("pause_seconds", "job_started_s", "job_submitted_s", "scheduler")
        launched(log, one["process_seconds"], alive_ms=alive, **{name: one[name] for name in names})
        if one["ends"] == "start":
            continue
        waits = dict(zip(("data_wait_seconds", "communication_wait_seconds"), one["waits"], strict=True))
        epoch = max(1, epoch - one["back"])
        begin = {"epoch": epoch, "step": 0, **ONE_RANK}
        log.add("run_resume" if number else "run_start", begin)
        for _ in range(one["epochs"]):
            trained(log, epoch, **waits)
            epoch += 1
        log.add("epoch_start", {"epoch": epoch, "step": 0}).after(one["pauses"][1])
        if one["stopped"] is not None:
            log.add("suspended", {"seconds": one["stopped"]})
        if one["ends"] == "signal":
            log.add("interrupted", {"epoch": epoch, "step": 3}).after(1).add("checkpoint", {"epoch": epoch, "step": 3})
        elif one["ends"] == "evaluation":
            log.add("epoch_stop", {"epoch": epoch, **waits}).add("eval_start", {"epoch": epoch})
        if one["ends"] == "error":
            log.add("run_error", {})
        log.after(one["pauses"][2])
    derived = goodput(log.events)
    assert derived is not None
    seconds = derived.seconds.model_dump()
    assert list(seconds) == list(PARTS)
    assert all(value >= 0 for value in seconds.values())
    first = log.events[0]["value"]["launch"]
    begun = max(first["process_seconds"] or 0, log.events[0]["time_ms"] / 1000 - (first["job_started_s"] or 1e9))
    elapsed = log.events[-1]["clock_s"] - log.events[0]["clock_s"] + begun
    assert sum(seconds.values()) == pytest.approx(elapsed, rel=1e-9, abs=1e-6)
    assert derived.wall_seconds == pytest.approx(elapsed, rel=1e-9, abs=1e-6)
    assert derived.fraction is None or 0 <= derived.fraction <= 1
    assert derived.interruptions == len(made) - 1


# ----------------------------------------------------------------------------------------------------


def contradicted(**launch: Any) -> list[str]:
    log = killed_in_the_second_epoch()
    process = next(one for one in reversed(log.events) if one["key"] == "init_start")
    process["value"]["launch"] |= {name: change(process["time_ms"] / 1000) for name, change in launch.items()}
    return list(contradictions(log.events))


def test_honest_times_do_not_contradict_each_other() -> None:
    assert contradicted() == []
    assert contradicted(job_submitted_s=lambda now: now - 60, job_started_s=lambda now: now - 20) == []


@pytest.mark.parametrize(
    ("launch", "told"),
    [
        ({"alive_ms": lambda now: (now + 9) * 1000}, "the last sign of life of the process before it was 9.0 s after"),
        ({"alive_ms": lambda now: (now - 900) * 1000}, "after the last sign of life of the process before it"),
        ({"job_started_s": lambda now: now + 50}, "the start of its job was 54.0 s after the start of its process"),
        (
            {"job_submitted_s": lambda now: now - 5, "job_started_s": lambda now: now - 50},
            "the submission of its job was 45.0 s after the start of its job",
        ),
    ],
)
def test_times_that_overlap_are_found(launch: dict[str, Any], told: str) -> None:
    (found_one,) = contradicted(**launch)
    assert found_one.startswith("line 11: init_start: ")
    assert told in found_one


def test_more_waiting_than_training_is_found() -> None:
    log = trained_once()
    epoch = next(one for one in log.events if one["key"] == "epoch_stop")
    epoch["value"] |= {"seconds": 100.0, "data_wait_seconds": 99.0}
    assert list(contradictions(log.events)) == ["line 4: epoch_stop: 104.0 s of waiting in 100.0 s of training"]
