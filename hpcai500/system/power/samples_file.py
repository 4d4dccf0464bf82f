"""RECORD/power/HOST.csv: what a source told, a row a sample.

time_s    seconds of the machine's clock, as `clock_s` of its events (CLOCK_BOOTTIME)
unix_s    the same moment in UNIX seconds; within one process it goes as evenly as time_s
watts     of all devices together; empty where it cannot be known yet
joules    counted since the count began, where the source counts; 0 begins a new count
watts X   of device X alone
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpcai500.errors import RecordError
from hpcai500.methodology.energy import Sample

FOLDER = "power"
_COLUMNS = ("time_s", "unix_s", "watts", "joules")
_DEVICE = "watts "


@dataclass(frozen=True)
class Row:
    """One sample; None is unknown."""

    time_s: float
    unix_s: float
    watts: float | None
    joules: float | None = None
    devices: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class SamplesFile:
    """Content of a file: names of its devices, and its rows."""

    devices: tuple[str, ...]
    rows: tuple[Row, ...]

    def samples(self, clock_offset_seconds: float = 0.0) -> list[Sample]:
        """For the integral, on the wall clock of rank 0, which this node's is ahead of by so much."""
        return [Sample(row.unix_s - clock_offset_seconds, row.watts, row.joules) for row in self.rows]


def file_name(host: str) -> str:
    """Name of the file of `host` in the record."""
    return f"{FOLDER}/{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.csv"


def read_samples(path: Path) -> SamplesFile:
    """The samples in the file `path`.

    Raises:
        RecordError: it is no such file; with the line.
    """
    try:
        return parse_samples(path.read_bytes(), str(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def parse_samples(content: bytes, name: str) -> SamplesFile:
    """The samples in `content`, which lies at `name`.

    Raises:
        RecordError: it is no such file; with the line.
    """
    # A row that a crash cut off is none.
    whole = content[: content.rfind(b"\n") + 1]
    rows = csv.reader(io.StringIO(whole.decode("utf-8", errors="replace")))
    header = next(rows, [])
    if tuple(header[:4]) != _COLUMNS or not all(column.startswith(_DEVICE) for column in header[4:]):
        raise RecordError(f"{name}:1: expected the columns {','.join(_COLUMNS)} of a file of power samples")
    found = []
    for number, row in enumerate(rows, 2):
        try:
            values = [_number(cell) for cell in row]
            if len(values) != len(header) or values[0] is None or values[1] is None:
                raise ValueError
        except ValueError as error:
            raise RecordError(f"{name}:{number}: not a power sample") from error
        found.append(Row(values[0], values[1], values[2], values[3], tuple(values[4:])))
    return SamplesFile(tuple(column.removeprefix(_DEVICE) for column in header[4:]), tuple(found))


def format_samples(devices: Sequence[str], rows: Iterable[Row]) -> bytes:
    """The content of a file."""
    return b"".join([_header(devices), *map(format_row, rows)])


def format_row(row: Row) -> bytes:
    """One line."""
    cells = [f"{row.time_s:.6f}", f"{row.unix_s:.6f}", _cell(row.watts, 3), _cell(row.joules, 6)]
    return (",".join([*cells, *(_cell(value, 3) for value in row.devices)]) + "\n").encode()


def open_samples(path: Path, devices: Sequence[str]) -> IO[bytes]:
    """The file `path` for rows to be appended, each on its way to the disk when it is written.

    A row that a crash cut off is removed. What another source has left there is put aside as `HOST.N.csv`.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    header = _header(devices)
    if path.is_file():
        content = path.read_bytes()
        if content.startswith(header):
            os.truncate(path, content.rfind(b"\n") + 1)
        elif content:
            path.rename(_free_name(path))
    stream = path.open("ab", buffering=0)
    if stream.tell() == 0:
        stream.write(header)
    return stream


def by_device(devices: Sequence[str], watts: Mapping[str, float | None]) -> tuple[float | None, ...]:
    """The powers in the order of the columns."""
    return tuple(watts.get(device) for device in devices)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_suffix(f".{number}.csv")).exists():
        number += 1
    return aside


def _header(devices: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([*_COLUMNS, *(_DEVICE + device for device in devices)])
    return text.getvalue().encode()


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _number(cell: str) -> float | None:
    """Raises ValueError for what is no finite number from 0 up."""
    if not cell:
        return None
    value = float(cell)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(cell)
    return value
