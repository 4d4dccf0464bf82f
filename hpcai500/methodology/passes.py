"""The clock of a run over restarts (V2.0 section 5.3.2), each epoch as it was last trained, and its target quality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

# ----------------------------------------------------------------------------------------------------
# The clock of a run, over restarts.


Event = Mapping[str, Any]

# A time server corrects a clock by less.
_MOST_DISAGREEMENT_SECONDS = 5.0


class Timeline:
    """Elapsed seconds between events.

    While a machine is up, its own clock counts: it cannot be set, and continues while the machine sleeps. Between two
    machines, or over a reboot, only the wall clock is available. Downtime counts: the paper's clock has no pause.

    Attributes:
        downtime_seconds: from the last event before each interruption to the moment when training resumed. It includes
            training after the last checkpoint, which was lost.
        doubts: reasons why the clock cannot be trusted; empty for an honest run.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.downtime_seconds = 0.0
        self.doubts: list[str] = []
        self._elapsed: dict[int, float] = {}
        elapsed, boot = 0.0, None
        before: Event | None = None
        stopped_at: float | None = None
        for event in events:
            same_clock = True
            if event["key"] == "init_start":
                boot_before, boot = boot, event["value"].get("boot_id")
                same_clock = boot is not None and boot == boot_before
                stopped_at = elapsed if stopped_at is None else stopped_at
            if before is not None:
                elapsed += self._gap(before, event, same_clock=same_clock)
            self._elapsed[event["seq"]] = elapsed
            if event["key"] == "run_resume" and stopped_at is not None:
                self.downtime_seconds += elapsed - stopped_at
            if event["key"] in ("run_start", "run_resume"):
                stopped_at = None
            before = event

    def between(self, start: Event, stop: Event) -> float:
        return self._elapsed[stop["seq"]] - self._elapsed[start["seq"]]

    def _gap(self, before: Event, event: Event, *, same_clock: bool) -> float:
        wall_seconds: float = (event["time_ms"] - before["time_ms"]) / 1000
        seconds: float = event["clock_s"] - before["clock_s"] if same_clock else wall_seconds
        if seconds < 0:
            self.doubts.append(f"the clock ran backwards before event {event['seq']}")
        elif abs(seconds - wall_seconds) > _MOST_DISAGREEMENT_SECONDS:
            disagreement = abs(seconds - wall_seconds)
            self.doubts.append(
                f"wall clock and machine clock disagree by {disagreement:.0f} s before event {event['seq']}"
            )
        return max(seconds, 0.0)


# ----------------------------------------------------------------------------------------------------
# Epochs over restarts: what was trained again replaces what was lost.


# A kill between an evaluation and its checkpoint, about a second later, loses an epoch whose quality was already known.
MOST_LOST_EVALUATIONS = 1


def last_pass(events: Iterable[Event], key: str) -> dict[int, Event]:
    """Epoch (from 1) -> its last event named `key`, without those that a restart has lost."""
    return _passes(events, key)[0]


def lost_evaluations(events: Iterable[Event]) -> list[Event]:
    """Evaluations whose epoch was trained again: a bad one may have been discarded on purpose."""
    return _passes(events, "eval_accuracy")[1]


def _passes(events: Iterable[Event], key: str) -> tuple[dict[int, Event], list[Event]]:
    """The events named `key` that count, by epoch; and those that a restart went back over."""
    kept: dict[int, Event] = {}
    lost: list[Event] = []
    for event in events:
        if event["key"] == "run_resume":
            resumed = event["value"]["epoch"]
            lost += [old for epoch, old in kept.items() if epoch >= resumed]
            kept = {epoch: old for epoch, old in kept.items() if epoch < resumed}
        elif event["key"] == key:
            kept[event["value"]["epoch"]] = event
    return kept, lost


# ----------------------------------------------------------------------------------------------------
# The target quality: of which values it is reached, and when.


Better = Literal["higher", "lower"]


def better_of(problem: Mapping[str, Any]) -> Better:
    """Whether a higher or a lower quality is better, by the table `problem` of a recipe: lower if it says so."""
    return "lower" if problem.get("better") == "lower" else "higher"


def reaches(value: float, target: float, better: Better) -> bool:
    """Whether the quality `value` is as good as `target`, or better; never, if it is not a number."""
    return value <= target if better == "lower" else value >= target


def goal(target: float, better: Better) -> str:
    """The target in words: `0.763`, or `0.5 or less`."""
    return f"{target:g}{' or less' if better == 'lower' else ''}"


def first_reaching(events: Iterable[Event], problem: Mapping[str, Any]) -> Event | None:
    """The first evaluation that counts and reached the target of the recipe's `problem`; None if none did."""
    target, better = float(problem["target_quality"]), better_of(problem)
    evaluations = last_pass(events, "eval_accuracy").values()
    reached = (event for event in evaluations if reaches(event["value"]["value"], target, better))
    return min(reached, key=lambda event: event["seq"], default=None)


def target_checkpoint(events: Sequence[Event], problem: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The value of the checkpoint with the first weights at the target of `problem`; None without one."""
    reached = first_reaching(events, problem)
    if reached is None:
        return None
    after = (event for event in events if event["key"] == "checkpoint" and event["seq"] > reached["seq"])
    saved = next(after, None)
    return saved["value"] if saved else None
