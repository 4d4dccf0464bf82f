"""Events of a run as they count: what was trained again after a restart replaces what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
