"""What a record says of the software and the nodes that it ran on. Anything may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcai500.chain import Event, iterate
from hpcai500.record import Record

Facts = Mapping[str, Any]


def values(record: Record, key: str) -> list[Facts]:
    """Values of the events named `key`, in order.

    Raises:
        TypeError: one is no table, as all that are asked for are.
    """
    return [_required(event) for event in iterate(record.events, key)]


def package(record: Record) -> Facts:
    """The version and hashes of the package that ran, as the last process tells them."""
    return _package(record.system)


def packages(record: Record) -> list[Facts]:
    """The same as each process of the run tells it, in order."""
    return [_package(_table(event.get("value"))) for event in iterate(record.events, "system")]


def image(record: Record) -> Facts:
    """The image that it ran in; empty where there was none."""
    return _table(_table(record.system.get("installation")).get("image"))


def nodes(record: Record) -> Sequence[Facts]:
    """What is told of each node."""
    found = record.system.get("nodes")
    return [_table(node) for node in found] if isinstance(found, list) else []


def begun_on(record: Record) -> Record:
    """The record, described by the system that its first process ran on; what it went on with may be another one."""
    return replace(record, system=_table(next(iterate(record.events, "system"), {}).get("value")))


def hosts(record: Record) -> frozenset[str]:
    """All hosts that it ever ran on."""
    return frozenset(_hosts(record))


def begun_ms(record: Record) -> int:
    """Wall clock of its first event."""
    return int(record.events[0]["time_ms"])


def ended_ms(record: Record) -> int:
    """Wall clock of its last event."""
    return int(record.events[-1]["time_ms"])


def first(record: Record, key: str) -> Event | None:
    """The first event named `key`."""
    return next(iterate(record.events, key), None)


def _hosts(record: Record) -> Iterator[str]:
    for key in ("run_start", "run_resume"):
        for value in values(record, key):
            yield from map(str, value.get("hosts") or [])
    yield from (str(node["host"]) for node in nodes(record) if node.get("host"))


def _required(event: Event) -> Facts:
    value = event.get("value")
    if not isinstance(value, dict):
        raise TypeError(f"event {event['seq']}, {event['key']}: expected a table as value, got {str(value)[:60]}")
    return value


def _package(system: Facts) -> Facts:
    return _table(_table(system.get("installation")).get("package"))


def _table(value: Any) -> Facts:
    return value if isinstance(value, dict) else {}
