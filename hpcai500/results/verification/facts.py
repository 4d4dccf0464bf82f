"""Reads software, code and nodes from records, where anything may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcai500 import __version__
from hpcai500.record import Event, Record, iterate
from hpcai500.results.submission.claim import package_of
from hpcai500.text import table

Facts = Mapping[str, Any]


def values(record: Record, key: str) -> list[Facts]:
    """Values of the events named `key`, in order.

    Raises:
        TypeError: a value is not a table.
    """
    return [_required(event) for event in iterate(record.events, key)]


def image(record: Record) -> Facts:
    """The container image that it ran in; empty without one."""
    return table(table(record.system.get("installation")).get("image"))


def nodes(record: Record) -> Sequence[Facts]:
    """The description of each node."""
    found = record.system.get("nodes")
    return [table(node) for node in found] if isinstance(found, list) else []


def on_first_system(record: Record) -> Record:
    """The record with the system of its first process; a resumed run may have several."""
    return replace(record, system=table(next(iterate(record.events, "system"), {}).get("value")))


def _required(event: Event) -> Facts:
    value = event.get("value")
    if not isinstance(value, dict):
        raise TypeError(f"event {event['seq']}, {event['key']}: expected a table as value, got {str(value)[:60]}")
    return value


# ----------------------------------------------------------------------------------------------------
# The version and the code that wrote a record.


def is_of_our_version(record: Record) -> bool:
    """Whether the record names the installed version anywhere: it must then hold all that this version writes.

    The hash of its code is not compared: changing one comment in a file of a free layer changes it.
    """
    started = {str(value.get("version")) for value in values(record, "init_start")}
    return __version__ in started | {str(package_of(record).get("version"))}


def other_code(record: Record, level: str | None, ours: str) -> str | None:
    """Return why a record's level is unknown without its sources; None if its code is the installed code.

    `level` is that of its recipe; `ours` is `package_code_hash()`, which is slow.
    """
    if codes_of(record) == {ours}:
        return None
    return (
        f"its code differs from this installation (by its recipe alone, the level would be {level or 'none'}): give "
        "its submission instead (`hpcai500 submit`), so that the sources can be compared"
    )


def codes_of(record: Record) -> frozenset[str]:
    """Code hashes of all processes of the run; the text `None` for a process that names none."""
    processes = (replace(record, system=table(event.get("value"))) for event in iterate(record.events, "system"))
    return frozenset(str(package_of(one).get("code_sha256")) for one in processes)
