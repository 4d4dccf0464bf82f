"""The output of `hpcai500 micro` as a table, as stable lines for harnesses, and as pictures of links."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcai500.drawing import figure_files
from hpcai500.text import aligned, count, duration, scaled, share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


# ----------------------------------------------------------------------------------------------------
# A picture of links.


# Inches of an end's row, of the frame, and of the largest picture; more ends have no room for numbers.
_CELL_INCHES, _FRAME_INCHES, _MOST_INCHES = 0.45, 1.6, 14.0
_MOST_NUMBERED = 24
# Above this share of the scale, viridis is bright enough for black numbers.
_BRIGHT = 0.6


def link_figures(document: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """A heat map of each measurement of links, end by end, as shares of the median link: SVG and PNG, by file name."""
    files: dict[str, bytes] = {}
    for name, entry in document.items():
        if "pairs" in entry:
            side = min(_FRAME_INCHES + _CELL_INCHES * len(entry["ends"]), _MOST_INCHES)
            draw = partial(_draw_links, title=f"{name}: {entry['shape']}", entry=entry)
            files |= figure_files(draw, name.replace(" ", "-"), (max(side, 5.0) + 1.0, max(side, 4.0)))
    return files


def _draw_links(figure: Figure, title: str, entry: Mapping[str, Any]) -> None:
    ends: Sequence[str] = entry["ends"]
    place = {end: index for index, end in enumerate(ends)}
    # Without a link, a cell stays empty: a node with itself, devices of different nodes.
    shares = [[math.nan] * len(ends) for _ in ends]
    for pair in entry["pairs"]:
        low, high = (place[end] for end in pair["ends"])
        shares[low][high] = shares[high][low] = pair["share"]
    top = max(1.0, *(pair["share"] for pair in entry["pairs"]))
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="viridis", vmin=0, vmax=top)
    figure.colorbar(image, label=f"of the median link, {scaled(entry['median'], 'B/s')} each way", shrink=0.8)
    axes.set_xticks(range(len(ends)), ends, rotation=90, parse_math=False)
    axes.set_yticks(range(len(ends)), ends, parse_math=False)
    axes.set_title(title, fontsize="medium", parse_math=False)
    if len(ends) > _MOST_NUMBERED:
        return
    for row, line in enumerate(shares):
        for column, value in enumerate(line):
            if not math.isnan(value):
                colour = "black" if value > _BRIGHT * top else "white"
                axes.text(column, row, f"{value:.0%}", ha="center", va="center", fontsize="x-small", color=colour)
