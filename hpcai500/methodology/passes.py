"""Events of a run as they count: what was trained again after a restart replaces what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]

# A kill between an evaluation and the checkpoint after it, a second later, loses an epoch whose quality was seen.
MOST_LOST_EVALUATIONS = 1


def last_pass(events: Iterable[Event], key: str) -> dict[int, Event]:
    """Epoch (from 1) -> its event named `key`."""
    return _passes(events, key)[0]


def lost_evaluations(events: Iterable[Event]) -> list[Event]:
    """Evaluations whose epoch was trained again: whoever saw them could have thrown a bad one away."""
    return _passes(events, "eval_accuracy")[1]


def first_reaching(events: Iterable[Event], target: float) -> Event | None:
    """The first evaluation, of those that count, that reached the quality `target`; None where none did."""
    reached = (event for event in last_pass(events, "eval_accuracy").values() if event["value"]["value"] >= target)
    return min(reached, key=lambda event: event["seq"], default=None)


def target_checkpoint(events: Sequence[Event], target: float) -> Mapping[str, Any] | None:
    """What is told of the checkpoint with the weights that reached the quality `target` first; None where none is."""
    reached = first_reaching(events, target)
    if reached is None:
        return None
    after = (event for event in events if event["key"] == "checkpoint" and event["seq"] > reached["seq"])
    saved = next(after, None)
    return saved["value"] if saved else None


def _passes(events: Iterable[Event], key: str) -> tuple[dict[int, Event], list[Event]]:
    """The events named `key` by epoch, as they count; and those that a restart went back over."""
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
