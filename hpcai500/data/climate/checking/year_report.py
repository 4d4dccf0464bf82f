"""What a check found in one year."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpcai500.data.climate.box_table import OddRows, class_counts, odd_rows, row_kinds
from hpcai500.data.climate.layout import CHANNELS
from hpcai500.data.climate.values.chunk_faults import Fault
from hpcai500.data.climate.values.scan import ImageScan
from hpcai500.data.climate.year_file import YearFile

Oddity = Literal["NaN", "infinite", "constant"]


@dataclass(frozen=True)
class ChannelFinding:
    """Images whose `channel` is odd: how many, the first of them, and how many values they hold that are."""

    channel: int
    oddity: Oddity
    images: int
    values: int
    first_image: int

    def __str__(self) -> str:
        values = f"{self.values} {self.oddity} values" if self.oddity != "constant" else "one value only"
        more = f"{self.images} images, the first is" if self.images > 1 else "image"
        return f"channel {CHANNELS[self.channel]}: {values} in {more} {self.first_image}"


@dataclass(frozen=True)
class YearReport:
    """A year as it was found.

    `channels` lists planes that are odd; `faults` are chunks that cannot be read, of whose images nothing is known.
    """

    file: YearFile
    class_counts: tuple[int, ...]
    odd_rows: tuple[OddRows, ...]
    channels: tuple[ChannelFinding, ...]
    faults: tuple[Fault, ...]

    @property
    def boxes(self) -> int:
        """Rows that name a class."""
        return sum(self.class_counts)


def report_year(year: YearFile, scans: Sequence[tuple[int, ImageScan]], faults: Sequence[Fault]) -> YearReport:
    """Return what was found in `year`, from the scans of its images (each with its number) that could be read."""
    kinds = row_kinds(year.boxes, year.height, year.width)
    return YearReport(
        file=year,
        class_counts=class_counts(year.boxes, kinds),
        odd_rows=odd_rows(year.boxes, kinds),
        channels=tuple(_odd_channels(scans)),
        faults=tuple(faults),
    )


def _odd_channels(scans: Sequence[tuple[int, ImageScan]]) -> list[ChannelFinding]:
    if not scans:
        return []
    numbers = [number for number, _ in scans]
    values: dict[Oddity, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {
        "NaN": np.stack([scan.statistics.nan for _, scan in scans]),
        "infinite": np.stack([scan.statistics.infinite for _, scan in scans]),
        "constant": np.stack([scan.statistics.count * _is_constant(scan) for _, scan in scans]),
    }
    found = []
    for channel in range(len(CHANNELS)):
        for oddity, counts in values.items():
            of_channel = counts[:, channel]
            places = np.flatnonzero(of_channel)
            if len(places):
                first = numbers[int(places[0])]
                found.append(ChannelFinding(channel, oddity, len(places), int(of_channel.sum()), first))
    return found


def _is_constant(scan: ImageScan) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return scan.statistics.constant & (scan.statistics.count > 1)
