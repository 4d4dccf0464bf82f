"""Reads a record for reports, also if its run failed or did not finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.methodology.conduct import ranks_of
from hpcai500.methodology.passes import Timeline
from hpcai500.methodology.result import Result, StepSplit, derive, split_of_run
from hpcai500.recipe import rulebook
from hpcai500.record import Event, Record, iterate, read_record
from hpcai500.results.score import score
from hpcai500.text import count, short, table, tables

Verdict = Literal["PASS", "FAIL", "INVALID"]
_MOST_HOSTS = 3


@dataclass(frozen=True)
class Subject:
    """A record and its verdict.

    Attributes:
        result: its numbers, from its events; None if the run is not finished.
        verdict: as in `hpcai500 score`: PASS; FAIL if the result is wrong; INVALID if there is none.
        problem: why it is not PASS.
        verified: whether `result.json`, if it exists, agrees with the events.
    """

    record: Record
    result: Result | None
    verdict: Verdict
    problem: str | None
    verified: bool = True

    @property
    def path(self) -> Path:
        return self.record.path

    @property
    def verdict_sentence(self) -> str:
        """The verdict in one line for a terminal."""
        rankable = "" if self.result is None else ", rankable" if self.result.rankable else ", not rankable"
        return f"{self.verdict}{rankable}" + (f": {self.problem}" if self.problem else "")

    def values(self, key: str) -> Iterator[Mapping[str, Any]]:
        """Values of all events named `key`."""
        return (event["value"] for event in iterate(self.record.events, key) if isinstance(event.get("value"), dict))

    def last(self, key: str) -> Mapping[str, Any]:
        """Value of the last event named `key`; empty if there is none."""
        found: Mapping[str, Any] = {}
        for value in self.values(key):
            found = value
        return found

    def clock(self) -> Timeline:
        """The clock of the record's events, in seconds."""
        return Timeline([_timed(event) for event in self.record.events])

    @property
    def step_split(self) -> StepSplit | None:
        """The split of the steps' time over the epochs so far; None if it is unknown."""
        return split_of_run(self.record.tables, [_timed(event) for event in self.record.events])

    @property
    def world_size(self) -> int:
        """The ranks of the run, else those of the recipe; 0 if both are unknown."""
        ranks = self.result.world_size if self.result else self.last("run_start").get("world_size")
        if isinstance(ranks, int):
            return ranks
        hardware = table(self.record.tables.get("hardware"))
        sizes = [hardware.get("nodes"), hardware.get("accelerators_per_node"), hardware.get("ranks", 0)]
        return ranks_of(hardware) if all(isinstance(size, int) for size in sizes) else 0


def machine_sentence(system: Mapping[str, Any], nodes: int) -> str:
    """`2 nodes, each with AMD EPYC 9654, 8 x NVIDIA H100`, from the description of the first node."""
    node = next(iter(tables(system.get("nodes"))), {})
    devices = Counter(short(device.get("name"), 80) for device in tables(node.get("accelerators")))
    parts = [short(table(node.get("cpu")).get("Model name") or "processor unknown", 80)]
    parts += [f"{number} x {name}" for name, number in devices.items()]
    return f"{count(nodes, 'node')}, {'each ' if nodes > 1 else ''}with {', '.join(parts)}"


def site_sentence(system: Mapping[str, Any]) -> str:
    """The names of the cluster, if Slurm gives one, and of the hosts."""
    nodes = tables(system.get("nodes"))
    environments = [table(node.get("environment")) for node in nodes]
    cluster = next((one["SLURM_CLUSTER_NAME"] for one in environments if one.get("SLURM_CLUSTER_NAME")), None)
    hosts = [short(node.get("host"), 40) for node in nodes if node.get("host")]
    shown = ", ".join(hosts[:_MOST_HOSTS]) + (
        f" and {len(hosts) - _MOST_HOSTS:,} more" if len(hosts) > _MOST_HOSTS else ""
    )
    named = f"cluster {short(cluster, 60)}" if cluster else "not named in the record"
    return f"{named}; {'host' if len(hosts) == 1 else 'hosts'} {shown}" if hosts else named


def read_subject(path: Path) -> Subject:
    """Read the record at `path`.

    Raises:
        RecordError: it is not a record, or it is inconsistent.
    """
    record = read_record(path)
    try:
        result = score(record)
    except WrongAnswerError as error:
        return Subject(record, _derived(record), "FAIL", str(error), verified=False)
    except (RecordError, UsageError) as error:
        return Subject(record, None, "INVALID", _ending(record) or str(error))
    quality = result.quality
    if quality.achieved is None:
        return Subject(record, result, "FAIL", f"the quality {quality.metric} is unknown")
    if not quality.is_reached:
        missed = f"the quality {quality.metric} is {quality.achieved:.4f}, {quality.miss}"
        return Subject(record, result, "FAIL", missed)
    return Subject(record, result, "PASS", None)


def _derived(record: Record) -> Result:
    """The numbers from the events, for a record whose `result.json` differs from them."""
    edition, benchmark = str(record.tables.get("edition")), str(record.tables.get("benchmark"))
    return derive(record.tables, rulebook(edition, benchmark), record.events)


def _ending(record: Record) -> str | None:
    """The text of `ERROR`, or that the run is not finished; None for other runs."""
    path = record.path / "ERROR"
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace").strip() or "the run failed and does not say why"
    if record.status == "unfinished":
        last = record.events[-1]["key"] if record.events else "none"
        return f"the run is not finished: it is still running, or was killed (last event: {last})"
    return None


def _timed(event: Event) -> Event:
    """The event, with a table as its value."""
    return event if isinstance(event.get("value"), dict) else {**event, "value": {}}
