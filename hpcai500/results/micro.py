"""The output of `hpcai500 micro` as a table and as stable lines for harnesses."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.text import aligned, count, duration, scaled, share

# Ranks below this share of the median rank are reported as slow, measurements above this spread as noisy.
_SLOW, _NOISY = 0.9, 0.2
_HEADER = ("measurement", "value", "95 % interval", "spread", "shape")


def table_lines(document: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The measurements of a micro document, for a terminal."""
    rows = [_HEADER, *(_row(name, entry) for name, entry in document.items())]
    yield from aligned(rows, right=range(1, 4))
    shown: list[Any] = []
    for name, entry in document.items():
        # On one node, the ranks of the node are all ranks: one measurement with two names.
        if "table" in entry and entry["table"] not in shown:
            shown.append(entry["table"])
            yield from _message_lines(name, entry)
        if "pairs" in entry:
            yield from _link_lines(name, entry)
    yield from _notes(document)


def figure_of_merit_lines(document: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """`HPCAI500 FOM gemm_bf16=… FLOPS` for each measurement; numbers are never scaled."""
    for name, entry in document.items():
        yield f"HPCAI500 FOM {name.replace(' ', '_')}={entry['value']:.6g} {entry['unit']}"


def shown(value: float, unit: str) -> str:
    """`1.23 TFLOPS`, `37.7 GB/s`, `2300 samples/s`, `3.21 µs`, `41.0 %`: three digits."""
    match unit:
        case "samples/s":
            return f"{value:.4g} {unit}"
        case "s":
            return duration(value)
        case "fraction":
            return share(value)
    return scaled(value, "B/s" if unit == "bytes/s" else unit)


def _row(name: str, entry: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    low, high = (shown(value, entry["unit"]) for value in entry["interval"])
    value, spread = shown(entry["value"], entry["unit"]), f"{entry['spread']:.1%}"
    return name, value, f"{low} to {high}", spread, f"{entry['shape']} ({_means(entry)})"


def _means(entry: Mapping[str, Any]) -> str:
    """The library that was called, and what runs instead of its own collective, if anything does."""
    instead = entry.get("instead")
    return f"{entry['call']}: {instead}" if instead else str(entry["call"])


def _message_lines(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}, {entry['ranks']} ranks ({_means(entry)}):"
    yield "       bytes      seconds   algorithm         bus   spread"
    for row in entry["table"]:
        rates = [scaled(row[key], "B/s") for key in ("algorithm_bandwidth", "bus_bandwidth")]
        line = f"  {row['bytes']:10d}  {row['seconds']:11.3e}  {rates[0]:>10}  {rates[1]:>10}  {row['spread']:6.1%}"
        # As where a library sums small messages, and large ones are summed in shared memory.
        other = row.get("instead") if row.get("instead") != entry.get("instead") else ""
        yield line if other == "" else f"{line}  {other or 'by the library itself'}"
    if link := entry["link"]:
        yield (
            f"  as a ring: latency {link['latency_seconds']:.3g} s, {scaled(link['bytes_per_second'], 'B/s')} a "
            f"link (median error {entry['link_error']:.0%})"
        )


# A terminal has room for so many columns; of more links, only the slowest are printed.
_MOST_ENDS, _MOST_LINKS = 16, 10


def _link_lines(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    """Every link as a share of the median: a triangle, or the slowest links of many ends."""
    pairs, ends = entry["pairs"], entry["ends"]
    yield (
        f"{name}: {count(len(pairs), 'link')} in {count(entry['rounds'], 'round')} ({_means(entry)}), "
        f"median {scaled(entry['median'], 'B/s')} each way; of the median:"
    )
    shares = {tuple(pair["ends"]): f"{pair['share']:.0%}" for pair in pairs}
    if len(ends) <= _MOST_ENDS:
        rows = [["", *ends[:-1]]]
        rows += [[high, *(shares.get((low, high), "") for low in ends[:-1])] for high in ends[1:]]
    else:
        slowest = sorted(pairs, key=lambda pair: pair["value"])[:_MOST_LINKS]
        rows = [["-".join(pair["ends"]), shares[tuple(pair["ends"])]] for pair in slowest]
    yield from (f"  {line}" for line in aligned(rows, right=range(1, len(rows[0]))))


def _notes(document: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, entry in document.items():
        rates, slowest = entry.get("per_rank", []), entry.get("slowest")
        if slowest and len(rates) > 1:
            usual = statistics.median(rates)
            if slowest["value"] < _SLOW * usual:
                share = slowest["value"] / usual
                yield f"slow: {name}: rank {slowest['rank']} on host {slowest['host']}: {share:.0%} of the median rank"
        for sentence in entry.get("slow", ()):
            yield f"slow: {name}: {sentence}"
        if entry["spread"] > _NOISY:
            yield f"noisy: {name}: a spread of {entry['spread']:.0%}: stop other programs and measure again"
        if (needed := entry.get("needed_at_most")) is not None:
            relation = "more" if entry["enough"] else "less"
            yield f"{name}: {relation} than the {needed:.4g} samples/s that training at the ceiling would need"
