"""A meter's file: rows of time and watts, in UNIX seconds or ISO 8601, cut to the time of a run."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcai500.errors import DataError
from hpcai500.files import is_there
from hpcai500.methodology.energy import Sample, Window, usual_interval
from hpcai500.system.power.choice import Meter

# A meter writes late, the more so through a network's file system.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
# Rows rarer than this are no protocol of power: what lies between them is unknown.
SLOWEST_SECONDS = 10.0
# Rows beyond the window that are kept for its edges.
_MARGIN_SECONDS = 3 * SLOWEST_SECONDS
_TIME, _WATTS = "time", "watts"


@dataclass(frozen=True)
class MeterRows:
    """What a meter's files say of a window and its surroundings.

    Attributes:
        samples: times in UNIX seconds of this machine.
        bad_rows: rows that hold no time and power, of all files.
        interval_seconds: the usual time between two samples, 10 s at most.
        ends: how far the files reach.
    """

    samples: tuple[Sample, ...]
    bad_rows: int
    interval_seconds: float
    ends: float


def files_of(meter: Meter, host: str) -> list[Path]:
    """The files that there are now."""
    path = Path(meter.of(host)).absolute()
    # A file may be called as a pattern is.
    if is_there(path) and path.is_file():
        return [path]
    root = Path(path.anchor)
    return [one for one in sorted(root.glob(str(path.relative_to(root)))) if one.is_file()]


def read_meter(meter: Meter, host: str, window: Window) -> MeterRows:
    """What the meter's files on `host` say of `window` (UNIX seconds).

    Raises:
        DataError: there is no file, or one has other columns.
    """
    files = files_of(meter, host)
    if not files:
        raise DataError(f"{meter.of(host)}: no such file of a meter")
    samples: list[Sample] = []
    bad_rows, ends = 0, -math.inf
    for file in files:
        for sample in _rows(file, meter.offset_seconds):
            if sample is None:
                bad_rows += 1
                continue
            ends = max(ends, sample.time_s)
            if window.start_s - _MARGIN_SECONDS <= sample.time_s <= window.stop_s + _MARGIN_SECONDS:
                samples.append(sample)
    samples.sort()
    return MeterRows(tuple(samples), bad_rows, meter_interval(samples), ends)


def await_meter(
    meter: Meter, host: str, window: Window, pause: Callable[[float], None], now: Callable[[], float]
) -> MeterRows:
    """As `read_meter`, when the files reach the window's end, or do not within ten seconds.

    Args:
        meter: which files.
        host: on which host.
        window: that is to be covered.
        pause: sleeps for so many seconds.
        now: seconds of some clock.
    """
    limit = now() + _PATIENCE_SECONDS
    while True:
        rows = read_meter(meter, host, window)
        # A file that ended long ago is not being written: there is nothing to wait for.
        is_late = window.stop_s - 60 < rows.ends < window.stop_s
        if not is_late or now() >= limit:
            return rows
        pause(_PAUSE_SECONDS)


def meter_interval(samples: list[Sample]) -> float:
    """How often a meter writes: the usual time between two of its samples."""
    return min(usual_interval(samples) or SLOWEST_SECONDS, SLOWEST_SECONDS)


def _rows(file: Path, offset_seconds: float) -> Iterator[Sample | None]:
    """Its samples; None for a row that is none."""
    try:
        # A meter's own software may begin a file with a byte-order mark, and write bytes of its own in other columns.
        with file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            rows = csv.reader(stream)
            header = [name.strip().lower() for name in next(rows, [])]
            if _TIME not in header or _WATTS not in header:
                raise DataError(
                    f"{file}:1: expected a header with the columns {_TIME} and {_WATTS}, got {','.join(header)[:80]!r}"
                )
            columns = header.index(_TIME), header.index(_WATTS)
            for row in rows:
                if row:
                    yield _sample(row, columns, offset_seconds)
    except (OSError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def _sample(row: list[str], columns: tuple[int, int], offset_seconds: float) -> Sample | None:
    try:
        moment, watts = _unix_seconds(row[columns[0]].strip()), float(row[columns[1]])
    except (ValueError, IndexError, OverflowError):
        return None
    plausible = math.isfinite(moment) and math.isfinite(watts) and watts >= 0
    return Sample(moment + offset_seconds, watts) if plausible else None


def _unix_seconds(text: str) -> float:
    """ISO 8601 without a zone is this machine's local time, as the standard has it.

    Raises:
        ValueError: neither a number nor a date.
    """
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
