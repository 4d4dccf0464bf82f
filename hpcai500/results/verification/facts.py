"""Reads what records tell of software, code and hosts, where anything may be missing, and compares numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcai500 import __version__
from hpcai500.hosts import expand_hosts
from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.record import Event, Record, iterate
from hpcai500.results.score import summarise_trials

if TYPE_CHECKING:
    from hpcai500.results.verification.context import Context


# ----------------------------------------------------------------------------------------------------
# The software and the nodes of a record. Anything may be missing.


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
    """The record with the system that its first process ran on; a resumed run may have several."""
    return replace(record, system=_table(next(iterate(record.events, "system"), {}).get("value")))


def hosts(record: Record) -> frozenset[str]:
    """All hosts that it ever ran on."""
    return frozenset(_hosts(record))


def begun_ms(record: Record) -> int:
    """Wall clock of its first event (UNIX time)."""
    return int(record.events[0]["time_ms"])


def ended_ms(record: Record) -> int:
    """Wall clock of its last event (UNIX time)."""
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


# ----------------------------------------------------------------------------------------------------
# The version of the software, and the code, that wrote a record.


def versions_of(record: Record) -> frozenset[str]:
    """All versions that any place of the record names."""
    started = {str(value.get("version")) for value in values(record, "init_start")}
    return frozenset(started | {str(package(record).get("version"))})


def is_of_our_version(record: Record) -> bool:
    """Whether any place of it names the installed version: such a record holds all that this version writes.

    The hash of its code is not compared: changing one comment in a file of a free layer gives another one.
    """
    return __version__ in versions_of(record)


def is_campaign_of_our_version(context: Context) -> bool:
    """Whether the installed version planned the campaign, or made one of its runs."""
    runs = (is_of_our_version(record) for record in context.records.values())
    return context.campaign.start.get("version") == __version__ or any(runs)


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
    return frozenset(str(one.get("code_sha256")) for one in packages(record))


# ----------------------------------------------------------------------------------------------------
# Host lists of untrusted files: expanded only where that takes little.


_PLAIN = re.compile(r"[A-Za-z0-9_.,\[\]-]{1,100000}")
_BRACKET = re.compile(r"\[([\d,-]*)\]")
_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_HOSTS = 100_000


def names_of_list(text: str) -> list[str] | None:
    """The hosts of Slurm's `n[01-03],login`; None where it is no list, or one that is too long to expand."""
    if not _PLAIN.fullmatch(text):
        return None
    total = 0
    for part in re.split(r",(?![^\[]*\])", text):
        counts = [_count(inside) for inside in _BRACKET.findall(part)]
        if None in counts or set("[]") & set(_BRACKET.sub("", part)) or part in ("", "-"):
            return None
        total += math.prod(count for count in counts if count is not None)
    return expand_hosts(text) if total <= _MOST_HOSTS else None


def short_names(hosts: Iterable[object]) -> set[str]:
    """First labels: a node that is `n1` to Slurm may call itself `n1.cluster`."""
    return {str(host).partition(".")[0] for host in hosts}


def _count(inside: str) -> int | None:
    """How many numbers `01-03,7` stands for; None where it is malformed."""
    found = [_PIECE.fullmatch(piece) for piece in inside.split(",")]
    if None in found:
        return None
    ranges = [(int(piece.group(1)), int(piece.group(2) or piece.group(1))) for piece in found if piece]
    return sum(last - first + 1 for first, last in ranges) if all(first <= last for first, last in ranges) else None


# ----------------------------------------------------------------------------------------------------
# Metrics over the trials, and how near a written number must be to a computed one.


# Another Python or C library may round the last digit of a sum or a power differently.
_ROUNDING = 1e-9


def metrics_of(results: Mapping[str, Result]) -> dict[str, TrialSummary]:
    """Each metric over `results`; empty where there are none."""
    return summarise_trials(list(results.values())) if results else {}


def same_number(one: Any, other: Any) -> bool:
    """Whether both are the same number but for its rounding, or both unknown."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_ROUNDING)


def same_document(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal but for the rounding of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_document(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_document, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return same_number(one, other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
