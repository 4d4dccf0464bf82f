"""Events of a run as they count: what was trained again after a restart replaces what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Event = Mapping[str, Any]


def last_pass(events: Iterable[Event], key: str) -> dict[int, Event]:
    """Epoch (from 1) -> its event named `key`."""
    kept: dict[int, Event] = {}
    for event in events:
        if event["key"] == "run_resume":
            resumed = event["value"]["epoch"]
            kept = {epoch: old for epoch, old in kept.items() if epoch < resumed}
        elif event["key"] == key:
            kept[event["value"]["epoch"]] = event
    return kept
