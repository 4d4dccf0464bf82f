"""The data of an original: what they are known by, and whether `hpcai500 data make` makes them again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcai500.chain import iterate
from hpcai500.errors import UsageError
from hpcai500.record import Record
from hpcai500.results.replication.side import Side

_KINDS = {"content_fingerprint": "content", "fingerprint": "list of files"}


def data_facts(record: Record) -> Mapping[str, Any]:
    """What the run said of its data set; empty where it said nothing."""
    last = next(iterate(reversed(record.events), "dataset"), None)
    value = last["value"] if last else None
    return value if isinstance(value, dict) else {}


def fingerprints_of(record: Record) -> dict[str, str]:
    """What the fingerprint is of (content, list of files) -> it; the content has one only where it was checked."""
    facts = data_facts(record)
    return {kind: str(facts[key]) for key, kind in _KINDS.items() if facts.get(key)}


def require_data(original: Side, data: Path | None) -> str | None:
    """A warning where the data are not known yet, but can be made.

    Raises:
        UsageError: only the user can know where they are.
    """
    record = original.records[0]
    name = original.tables["problem"]["dataset"]
    if data is not None:
        if data.exists() and not data.is_dir():
            raise UsageError(f"--data {data}: not a folder; give the folder of {name}")
        return None if data.exists() else f"--data {data}: no such folder here: it must be on the nodes of the runs"
    known_by = next(iter(fingerprints_of(record).values()), "unknown")[:16]
    if not data_facts(record).get("synthetic"):
        raise UsageError(
            f"the original trained on {name} (fingerprint {known_by}…), which hpcai500 does not make: give the folder "
            "of the same data with --data DIR"
        )
    line = make_line(record, original.tables, "DATA") or "hpcai500 data make"
    return (
        f"without --data: the original trained on made data (fingerprint {known_by}…). Any others are no repetition: "
        f"make these by `{line}`, and name them to every run (`--data DATA`), as the guide says"
    )


def make_line(record: Record, tables: Mapping[str, Any], folder: str) -> str | None:
    """The line that makes the synthetic set of `record` in `folder`, if it was one of the first seed.

    Seed and layout are not in a record: the fingerprint tells whether it is the same set.
    """
    facts = data_facts(record)
    makers = {"ic": _images, "ewa": _years}
    benchmark = tables.get("benchmark")
    if not facts.get("synthetic") or benchmark not in makers:
        return None
    try:
        options = dict(makers[benchmark](facts, tables["problem"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    words = (f"{option} {shlex.quote(str(value))}" for option, value in options.items())
    return " ".join([f"hpcai500 data make {benchmark} {folder}", *words])


def _images(facts: Mapping[str, Any], problem: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    del problem
    classes = int(facts["classes"])
    yield "--classes", classes
    for option, key in (("--train-per-class", "training_samples"), ("--val-per-class", "evaluation_samples")):
        yield option, _each(facts[key], classes)


def _years(facts: Mapping[str, Any], problem: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    spans = [_span(problem[key]) for key in ("training_years", "evaluation_years")]
    height, width = map(int, facts["grid"])
    yield "--years", f"{min(first for first, _ in spans)}-{max(last for _, last in spans)}"
    yield "--images-per-year", _each(facts["training_samples"], spans[0][1] - spans[0][0] + 1)
    yield "--height", height
    yield "--width", width


def _span(years: Any) -> tuple[int, int]:
    first, last = str(years).split("-") if isinstance(years, str) else (years[0], years[-1])
    return int(first), int(last)


def _each(samples: Any, groups: int) -> int:
    whole, rest = divmod(int(samples), groups)
    if rest or not whole:
        raise ValueError("not as many in each: no set that is made so")
    return whole
