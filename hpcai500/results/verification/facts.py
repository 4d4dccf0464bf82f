"""Reads what records tell of software, code and nodes, where anything may be missing."""

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
        TypeError: one is no table, as all that are asked for are.
    """
    return [_required(event) for event in iterate(record.events, key)]


def image(record: Record) -> Facts:
    """The image that it ran in; empty where there was none."""
    return table(table(record.system.get("installation")).get("image"))


def nodes(record: Record) -> Sequence[Facts]:
    """What is told of each node."""
    found = record.system.get("nodes")
    return [table(node) for node in found] if isinstance(found, list) else []


def begun_on(record: Record) -> Record:
    """The record with the system that its first process ran on; a resumed run may have several."""
    return replace(record, system=table(next(iterate(record.events, "system"), {}).get("value")))


def _required(event: Event) -> Facts:
    value = event.get("value")
    if not isinstance(value, dict):
        raise TypeError(f"event {event['seq']}, {event['key']}: expected a table as value, got {str(value)[:60]}")
    return value


# ----------------------------------------------------------------------------------------------------
# The version of the software, and the code, that wrote a record.


def is_of_our_version(record: Record) -> bool:
    """Whether any place of it names the installed version: such a record holds all that this version writes.

    The hash of its code is not compared: changing one comment in a file of a free layer gives another one.
    """
    started = {str(value.get("version")) for value in values(record, "init_start")}
    return __version__ in started | {str(package_of(record).get("version"))}


def other_code(record: Record, level: str | None, ours: str) -> str | None:
    """Return why nobody can tell a record's level without its sources; None where its code is the installed one.

    `level` is that by its recipe; `ours` is `package_code_hash`, which takes a while.
    """
    if codes_of(record) == {ours}:
        return None
    return (
        f"its code is not that of this installation: level {level or 'none'} by its recipe alone; give the submission "
        "(`hpcai500 submit`) and let verification compare the sources"
    )


def codes_of(record: Record) -> frozenset[str]:
    """Hashes of the code that each process of the run names; the text `None` of one that names none."""
    told = (replace(record, system=table(event.get("value"))) for event in iterate(record.events, "system"))
    return frozenset(str(package_of(one).get("code_sha256")) for one in told)
