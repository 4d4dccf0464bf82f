"""Ceilings of the machine, as `hpcai500 micro --json` wrote them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.results.acceptance.metrics import Metric
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.results.report.words import number, table, tables


@dataclass(frozen=True)
class Ceiling:
    """One measurement of one file.

    Attributes:
        source: the file.
        value: in the metric's unit.
        interval: its 95 % confidence interval, where the file has one.
        nodes: that were measured; None where the file does not say.
        verified: whether every result that was timed was right.
    """

    source: GivenFile
    value: float
    interval: tuple[float, float] | None
    nodes: int | None
    verified: bool


@dataclass(frozen=True)
class CeilingFile:
    """A file of `hpcai500 micro`, and who stands for it."""

    source: GivenFile
    document: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """As it was named."""
        return self.source.path

    def ceiling(self, metric: Metric) -> Ceiling | None:
        """What it says of `metric`; None if that was not measured.

        Raises:
            UsageError: what it says is no measurement in the metric's unit.
        """
        if metric.name not in self.document:
            return None
        entry = table(self.document[metric.name])
        value, unit, nodes = number(entry.get("value")), entry.get("unit"), number(entry.get("nodes"))
        if value is None or value <= 0 or unit != metric.unit:
            raise UsageError(
                f"{self.path}: {metric.name}: expected a value above 0 in {metric.unit}, got {entry.get('value')!r} in "
                f"{unit!r}"
            )
        return Ceiling(
            self.source, value, _interval(entry), None if nodes is None else int(nodes), entry.get("verified") is True
        )

    def slow_ranks(self) -> Iterator[str]:
        """The slowest rank of each measurement of several ranks, by host, with its share of the median rank."""
        for name, entry in self.document.items():
            rates = [rate for one in _list(table(entry).get("per_rank")) if (rate := number(one))]
            slowest = table(table(entry).get("slowest"))
            value = number(slowest.get("value"))
            if value and len(rates) > 1:
                share = value / statistics.median(rates)
                yield f"{name}: rank {slowest.get('rank')} on {slowest.get('host')}: {share:.1%} of the median rank"


def read_ceilings(paths: Sequence[Path], signers: Path | None = None) -> tuple[CeilingFile, ...]:
    """The files of `hpcai500 micro` at `paths`.

    Raises:
        RecordError: one is no JSON.
        UsageError: one is something else, or cannot be read.
        WrongAnswerError: the signature beside one is not one of it, or `signers` lacks its key.
    """
    return tuple(_read(path, signers) for path in paths)


def _read(path: Path, signers: Path | None) -> CeilingFile:
    source = given_file(path, signers)
    document = source.tables()
    known = [entry for entry in tables(list(document.values())) if "value" in entry and "unit" in entry]
    if not known or len(known) < len(document):
        said = f": {document['error']}" if document.get("error") else ""
        raise UsageError(f"{path}: no measurements of `hpcai500 micro -o FILE`{said}")
    return CeilingFile(source, document)


def _interval(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    ends = [number(end) for end in _list(entry.get("interval"))]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
