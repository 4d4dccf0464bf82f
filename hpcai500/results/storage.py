"""The output of `hpcai500 storage`: accelerators that it keeps busy, a table, and stable lines for harnesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.methodology.storage import SAMPLES, SPEEDS, Speed, accelerators_busy
from hpcai500.text import aligned, duration, scaled, size

Document = Mapping[str, Mapping[str, Any]]

_HEADER = ("measurement", "value", "p50", "p99", "p99.9", "max", "operations", "slowest rank")
_READ, _SAVE, _RESTORE = "storage read ", "storage save", "storage restore"
_BUSY = "storage accelerators "


def read_speeds(given: Sequence[str]) -> dict[str, Speed]:
    """The speed of an accelerator by kind of samples: those of `--accelerator-speed ic=2500`, else published ones.

    Raises:
        UsageError: one of them is not KIND=NUMBER.
    """
    found = dict(SPEEDS)
    for text in given:
        kind, _, number = text.partition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if kind not in SAMPLES or not 0 < rate < float("inf"):
            raise UsageError(
                f"--accelerator-speed {text}: expected {' or '.join(f'{name}=NUMBER' for name in SAMPLES)}, the "
                "samples a second that one accelerator takes"
            )
        found[kind] = Speed("accelerator", rate, "--accelerator-speed")
    return found


def require_answer(kinds: Sequence[str], wanted: int | None, speeds: Mapping[str, Speed]) -> None:
    """Refuse `--accelerators` if none of the `kinds` that are measured can say how many are kept busy.

    Raises:
        UsageError: with what to add.
    """
    if wanted is not None and not set(kinds) & set(speeds):
        raise UsageError(
            "--accelerators: nothing that is measured tells: add ic, or ewa and --accelerator-speed ewa=NUMBER"
        )


def with_accelerators(document: Document, speeds: Mapping[str, Speed]) -> dict[str, dict[str, Any]]:
    """The document with p99 as an entry of its own, and `storage accelerators KIND` where its speed is known."""
    found: dict[str, dict[str, Any]] = {}
    for name, entry in document.items():
        found[name] = dict(entry)
        kind = name.removeprefix(_READ)
        about = {"verified": True, "nodes": entry["nodes"], "ranks": entry["ranks"]}
        if name.startswith(_READ):
            late = None if entry["value"] is None else entry["latency_seconds"]["p99"]
            found[f"{name} p99"] = {"value": late, "unit": "s", **about}
        if name.startswith(_READ) and (speed := speeds.get(kind)):
            rate = entry["value"]
            found[_BUSY + kind] = {
                "value": None if rate is None else accelerators_busy(rate, speed),
                "unit": "accelerators",
                "speed": asdict(speed),
                **about,
            }
    return found


def too_few(document: Document, wanted: int | None) -> Iterator[str]:
    """A line for each kind of samples that keeps fewer than `wanted` accelerators busy, or an unknown number."""
    for name, entry in document.items():
        if wanted is not None and name.startswith(_BUSY) and (entry["value"] is None or entry["value"] < wanted):
            shown = "an unknown number" if entry["value"] is None else entry["value"]
            yield f"{name.removeprefix(_BUSY)}: {shown} accelerators kept busy, {wanted} are required (--accelerators)"


def table_lines(document: Document) -> Iterator[str]:
    """The measurements, for a terminal."""
    rows = [_row(name, entry) for name, entry in document.items() if "latency_seconds" in entry]
    yield from aligned([_HEADER, *rows], right=range(1, 7))
    for name, entry in document.items():
        yield from _notes(name, entry)


def figure_of_merit_lines(document: Document) -> Iterator[str]:
    """`HPCAI500 FOM storage_read_ic=… samples/s` for each known value."""
    for name, entry in document.items():
        if entry["value"] is not None:
            yield f"HPCAI500 FOM {name.replace(' ', '_')}={entry['value']:.6g} {entry['unit']}"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "s":
        return duration(value)
    return (
        scaled(value, "B/s") if unit == "bytes/s" else f"{value:,.4g} {unit}" if value < 1e4 else f"{value:,.0f} {unit}"
    )


def _row(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    late, slowest = entry["latency_seconds"], entry["slowest"]
    times = ("-" if late[key] is None else duration(late[key]) for key in ("p50", "p99", "p99.9", "max"))
    where = f"{slowest['rank']} on {slowest['host']}" if entry["ranks"] > 1 else "-"
    return (
        name.removeprefix("storage "),
        _shown(entry["value"], entry["unit"]),
        *times,
        f"{late['operations']:,}",
        where,
    )


def _notes(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    short = name.removeprefix("storage ")
    if name.startswith(_BUSY) and entry["value"] is not None:
        speed = entry["speed"]
        yield (
            f"{name.removeprefix(_BUSY)}: keeps {entry['value']:,} x {speed['name']} busy, at "
            f"{speed['samples_per_second']:,.4g} samples/s each ({speed['source']})"
        )
    if "latency_seconds" not in entry:
        return
    if name.startswith(_READ):
        yield from _coldness(short, entry)
        if around := entry["direct"]:
            yield f"{short}: around the page cache (O_DIRECT): {_shown(around['value'], entry['unit'])}"
    if name.startswith(_RESTORE) and name != _RESTORE and entry["resident_bytes"]:
        yield f"{short}: {size(entry['resident_bytes'])} came from this host's memory, and are not counted"
    if name.startswith(f"{_SAVE} ") and not entry["whole"]:
        yield (
            f"{short}: {size(entry['bytes'])} of {size(entry['model_bytes'])} were saved, at "
            f"{_shown(entry['rate'], 'bytes/s')}, and restored: the seconds of all of it are unknown; more --seconds "
            "and --space write all"
        )
    if name in ("storage list", "storage open") and entry["cold"] is False:
        yield f"{short}: names that this host made itself, and may have kept in memory; ranks on other hosts read cold"


def _coldness(short: str, entry: Mapping[str, Any]) -> Iterator[str]:
    if entry["resident_bytes"] is None:
        yield f"{short}: not known to be cold: this file system does not say what is in memory"
    elif entry["resident_bytes"]:
        all_of_it = "; nothing is left to count" if entry["value"] is None else ""
        yield f"{short}: {size(entry['resident_bytes'])} stayed in this host's memory, and are not counted{all_of_it}"
    if entry["value"] is not None and not entry["exceeds_memory"]:
        yield (
            f"{short}: {size(entry['set_bytes'])}, less than the {size(entry['memory_bytes'])} of memory: this host's "
            "cache was emptied, but that of a file server or hypervisor may have answered; more --seconds and --space "
            "exclude it"
        )
