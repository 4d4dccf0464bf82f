"""Lines of JSON, each with the hash of the line before: a log in which nothing can be changed, added or removed unseen.

Records and campaigns are such logs. Whoever holds the hash of the last line holds all of them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from hpcai500.errors import RecordError

FIRST_PREVIOUS = "0" * 64
_ENVELOPE: dict[str, type | tuple[type, ...]] = {
    "prev": str,
    "seq": int,
    "time_ms": int,
    "clock_s": (int, float),
    "key": str,
}

Event = dict[str, Any]


def line_hash(line: bytes) -> str:
    """SHA-256 (hex) of one event line without its line end: what the next line carries as `prev`."""
    return hashlib.sha256(line).hexdigest()


def last_hash(content: bytes) -> str:
    """The hash of the last line of a log, whole or torn; where there is none, what the first line carries as `prev`."""
    last = content.rstrip(b"\n").rsplit(b"\n", 1)[-1]
    return line_hash(last) if last else FIRST_PREVIOUS


def new_event(previous: str, sequence: int, key: str, value: Any = None) -> Event:
    """An event of this moment, to follow the line with the hash `previous`."""
    return {
        "prev": previous,
        "seq": sequence,
        "time_ms": time.time_ns() // 1_000_000,
        # Unlike CLOCK_MONOTONIC it goes on while the machine is suspended: a clock that sleeps can be gamed.
        "clock_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 6),
        "key": key,
        "value": value,
    }


def event_line(event: Event) -> bytes:
    """The line of an event, without its line end."""
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode()


def iterate(events: Iterable[Event], key: str) -> Iterator[Event]:
    """The events named `key`, in order."""
    return (event for event in events if event["key"] == key)


def parse_events(
    content: bytes, name: str, previous: str = FIRST_PREVIOUS, lines_before: int = 0
) -> tuple[list[Event], int]:
    """Events of a log, their chain checked, and the number of bytes of a last line that was cut off by a crash.

    Args:
        content: the log, or what follows its first `lines_before` lines.
        name: of the log, for messages.
        previous: hash of the line before `content`.
        lines_before: how many lines come before it.

    Raises:
        RecordError: a line is not an event, or does not carry the hash of the line before it.
    """
    events: list[Event] = []
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, lines_before + 1):
        event = _parse_event(line, f"{name}:{number}")
        if event["prev"] != previous or event["seq"] != number - 1:
            raise RecordError(
                f"{name}:{number}: the chain is broken here: a line before it was changed, added or removed"
            )
        events.append(event)
        previous = line_hash(line)
    return events, len(rest)


def _parse_event(line: bytes, place: str) -> Event:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: not an event: {error}") from error
    if not isinstance(event, dict):
        raise RecordError(f"{place}: not an event: expected a JSON object, got {type(event).__name__}")
    for key, kind in _ENVELOPE.items():
        if not isinstance(event.get(key), kind) or isinstance(event.get(key), bool):
            raise RecordError(f"{place}: not an event: {key} is missing or of a wrong type")
    return event
