"""Power samples of a run: taken beside it or read from a meter's file, kept in the record, and integrated to energy.

A source or a file that fails never ends a run: the event `power` says what is wrong. The energy is integrated from the
file in the record, so that every later scoring of the record gets the same number.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import IO, Any

from hpcai500.errors import DataError, HpcAi500Error, RecordError, WrongAnswerError
from hpcai500.files import is_there, write_atomically
from hpcai500.methodology.energy import Energy, Sample, Window, integrate, usual_interval, window_of
from hpcai500.record import Record, iterate
from hpcai500.system.power import METER, Meter, PowerSource, machine_seconds

# ----------------------------------------------------------------------------------------------------
# A meter's file: rows of time (UNIX seconds or ISO 8601) and watts, cut to the time of a run.


# How long to wait for a meter that writes late, as over a network file system.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
# Rows further apart leave gaps: the power between them is unknown.
SLOWEST_SECONDS = 10.0
# Rows kept beyond each edge of the window.
_MARGIN_SECONDS = 3 * SLOWEST_SECONDS
_TIME, _WATTS = "time", "watts"


@dataclass(frozen=True)
class MeterRows:
    """What a meter's files say of a window and its surroundings.

    Attributes:
        samples: times in UNIX seconds of this machine.
        bad_rows: rows of all files that hold no time and power.
        interval_seconds: the usual time between two samples, 10 s at most.
        ends: time of the last sample in the files.
    """

    samples: tuple[Sample, ...]
    bad_rows: int
    interval_seconds: float
    ends: float


def files_of(meter: Meter, host: str) -> list[Path]:
    """The meter's files that exist now."""
    path = Path(meter.of(host)).absolute()
    # A file's name may look like a pattern.
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
    """As `read_meter`, but waits up to ten seconds for the files to reach the window's end.

    `pause` sleeps for so many seconds; `now` gives the seconds of any steady clock.
    """
    limit = now() + _PATIENCE_SECONDS
    while True:
        rows = read_meter(meter, host, window)
        # A file that ended long before the window's end is not being written any more.
        is_late = window.stop_s - 60 < rows.ends < window.stop_s
        if not is_late or now() >= limit:
            return rows
        pause(_PAUSE_SECONDS)


def meter_interval(samples: list[Sample]) -> float:
    """The usual time between two samples of a meter, 10 s at most."""
    return min(usual_interval(samples) or SLOWEST_SECONDS, SLOWEST_SECONDS)


def _rows(file: Path, offset_seconds: float) -> Iterator[Sample | None]:
    """Its samples; None for a row without a time and a power."""
    try:
        # A meter's software may begin a file with a byte-order mark, and write odd bytes in other columns.
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
    """A number, or an ISO 8601 date; without a zone, that is this machine's local time, as the standard has it.

    Raises:
        ValueError: it is neither.
    """
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


# ----------------------------------------------------------------------------------------------------
# RECORD/power/HOST.csv: the samples of a source, one row each.
#
# time_s    seconds of the machine's clock, as `clock_s` of its events (CLOCK_BOOTTIME)
# unix_s    the same moment in UNIX seconds; within one process it runs as evenly as time_s
# watts     of all devices together; empty while unknown
# joules    counted since the count began, where the source counts; 0 begins a new count
# watts X   of device X alone


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
        """For the integral, in wall-clock time of rank 0; this node's clock is ahead by `clock_offset_seconds`."""
        return [Sample(row.unix_s - clock_offset_seconds, row.watts, row.joules) for row in self.rows]


def file_name(host: str) -> str:
    """Name of the file of `host`, relative to the record."""
    return f"{FOLDER}/{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.csv"


def read_samples(path: Path) -> SamplesFile:
    """The samples in the file `path`.

    Raises:
        RecordError: it has another format; names the line.
    """
    try:
        return parse_samples(path.read_bytes(), str(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def parse_samples(content: bytes, name: str) -> SamplesFile:
    """As `read_samples`, of the content of the file `name`.

    Raises:
        RecordError: it has another format; names the line.
    """
    # A row that a crash cut off is ignored.
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
    return b"".join([_header(devices), *map(format_row, rows)])


def format_row(row: Row) -> bytes:
    cells = [f"{row.time_s:.6f}", f"{row.unix_s:.6f}", _cell(row.watts, 3), _cell(row.joules, 6)]
    return (",".join([*cells, *(_cell(value, 3) for value in row.devices)]) + "\n").encode()


def open_samples(path: Path, devices: Sequence[str]) -> IO[bytes]:
    """Open the file `path` to append rows; each is handed to the system when it is written.

    A row that a crash cut off is removed. A file with other columns is renamed to `HOST.N.csv`.

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
            names = (path.with_suffix(f".{number}.csv") for number in count(1))
            path.rename(next(name for name in names if not name.exists()))
    stream = path.open("ab", buffering=0)
    if stream.tell() == 0:
        stream.write(header)
    return stream


def _header(devices: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([*_COLUMNS, *(_DEVICE + device for device in devices)])
    return text.getvalue().encode()


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _number(cell: str) -> float | None:
    """Raises ValueError for what is no finite number from 0 up; None for an empty cell."""
    if not cell:
        return None
    value = float(cell)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(cell)
    return value


# ----------------------------------------------------------------------------------------------------
# The power of one node during a run, as its entry in the event `power`.


# A sampler asks at least this often (MLPerf); judging gaps by a longer interval would hide them.
_MOST_INTERVAL_SECONDS = 1.0
_LOCK_PATIENCE_SECONDS = 2.0

Entry = dict[str, Any]


class SampledNode:
    """A node whose source is asked regularly while the run lasts; its samples go into its file in the record.

    It owns `source`, and closes it at the end. It is a thread and no process: it sleeps, and a sample takes the
    interpreter for some tens of microseconds (docs/power.md has the measurement), while a process would need a Python
    of its own on each node, could not be forked safely once CUDA or MPI run, and could outlive its job. Calls that may
    hang (into a driver, the kernel, or waiting for a child) release the interpreter.

    Failures of the source or the file are counted, and said in the node's entry; they never end a run.

    Attributes:
        failures: how often there was no reading, or it could not be written.
        failure: message of the last one.
        cpu_seconds: of this process, for all sampling.
    """

    def __init__(self, source: PowerSource, record: Path, host: str) -> None:
        self._source, self._record, self._host = source, record, host
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._stream: IO[bytes] | None = None
        self._is_closed = False
        self.failures = 0
        self.failure: str | None = None
        self.cpu_seconds = 0.0
        # Wall clock at second 0 of the machine's clock, taken once: the wall clock may be set while the run lasts, and
        # the samples' times must not jump.
        self.wall_zero_s = time.time() - machine_seconds()
        # A hung call must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def begin(self) -> None:
        """Called just before the run starts."""
        self._thread.start()

    def stop(self) -> bool:
        """Take a last sample, when the run has ended or is given up; returns whether the source answered in time."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(self._source.patience_seconds + self._source.interval_seconds)
        # From here on the file must not change, because its hash is about to be taken. If the thread hangs in a write,
        # the lock cannot be had, and a later write gives a file that does not match the hash.
        if self._turn.acquire(timeout=_LOCK_PATIENCE_SECONDS):
            self._is_closed = True
            if self._stream:
                self._stream.close()
            self._turn.release()
        if self._thread.is_alive():
            self._fail("it does not answer any more")
            return False
        self._source.close()
        return True

    def unix_now(self) -> float:
        """The wall clock as in the samples, which does not jump."""
        return machine_seconds() + self.wall_zero_s

    def tell(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The entry of this node, with the energy of its samples file.

        `window` is that of the run, in UNIX seconds of rank 0; this node's wall clock is ahead by
        `clock_offset_seconds`.
        """
        source = self._source
        entry = _empty(self._host, [self._host], window, clock_offset_seconds) | {
            "source": source.name,
            "scope": source.scope,
            "interval_seconds": source.interval_seconds,
            "failures": self.failures,
            "failure": self.failure,
            "cpu_seconds": round(self.cpu_seconds, 6),
        }
        return _integrated(entry, self._record, window)

    def _run(self) -> None:
        interval = self._source.interval_seconds
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._sample()
            # A source slower than its interval is asked at the next full one, never twice in a row.
            due += interval * max(1.0, -(-(time.monotonic() - due) // interval))
        self._sample()

    def _sample(self) -> None:
        began = time.thread_time()
        try:
            before = machine_seconds()
            reading = self._source.read()
            moment = (before + machine_seconds()) / 2
            watts = tuple(reading.watts.get(device) for device in self._source.devices)
            row = Row(moment, moment + self.wall_zero_s, reading.total_watts, reading.joules, watts)
            self._write(format_row(row))
        except Exception as error:  # noqa: BLE001 - whatever a driver's library or a disk does, the run goes on; told at its end
            self._fail(str(error) or type(error).__name__)
        self.cpu_seconds += time.thread_time() - began

    def _write(self, line: bytes) -> None:
        with self._turn:
            if self._is_closed:
                return
            if self._stream is None:
                self._stream = open_samples(self._record / file_name(self._host), self._source.devices)
            self._stream.write(line)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.failure = reason


class MeteredNode:
    """A node, or several, whose meter writes a file, which is read when the run has ended; used like `SampledNode`.

    `covers` names the nodes that the meter feeds; `pause` sleeps for so many seconds while the meter is late.
    """

    def __init__(
        self, meter: Meter, record: Path, host: str, covers: Sequence[str], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._meter, self._record, self._host, self._covers = meter, record, host, list(covers)
        self._pause = pause

    def begin(self) -> None:
        """The meter runs by itself."""

    def stop(self) -> None:
        """The meter runs by itself."""

    def unix_now(self) -> float:
        return time.time()

    def tell(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The energy of the meter's rows, which are written into the record like samples."""
        entry = _empty(self._host, self._covers, window, clock_offset_seconds)
        entry |= {"source": METER, "scope": self._meter.scope}
        here = Window(window.start_s + clock_offset_seconds, window.stop_s + clock_offset_seconds)
        try:
            found = await_meter(self._meter, self._host, here, self._pause, time.monotonic)
            zero = time.time() - machine_seconds()
            rows = [Row(sample.time_s - zero, sample.time_s, sample.watts) for sample in found.samples]
            path = self._record / file_name(self._host)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, format_samples((), rows))
        except (HpcAi500Error, OSError) as error:
            return entry | {"reason": str(error)}
        entry |= {"interval_seconds": found.interval_seconds, "bad_rows": found.bad_rows}
        return _integrated(entry, self._record, window)


def energy_of(file: SamplesFile, entry: Mapping[str, Any], window: Window) -> Energy:
    """The energy of a node in the run's `window` (UNIX seconds of rank 0).

    The job that ran and every later scoring of its record compute it here, alike. `entry` is the node's: it names the
    source, and how far the node's clock is ahead.
    """
    samples = file.samples(float(entry["clock_offset_seconds"]))
    most = meter_interval(samples) if entry["source"] == METER else _MOST_INTERVAL_SECONDS
    return integrate(samples, window, min(float(entry["interval_seconds"]), most))


def integral_entry(energy: Energy) -> Entry:
    """The keys of an entry that come from the integral."""
    return {
        "samples": energy.samples,
        "energy_joules": energy.joules,
        "mean_watts": energy.mean_watts,
        "gaps": [list(gap) for gap in energy.gaps],
        "reason": energy.reason,
    }


def _integrated(entry: Entry, record: Path, window: Window) -> Entry:
    name = file_name(entry["host"])
    try:
        content = (record / name).read_bytes()
        energy = energy_of(read_samples(record / name), entry, window)
    except FileNotFoundError:
        return entry | {"reason": entry["failure"] or "no sample was taken"}
    except (HpcAi500Error, OSError) as error:
        return entry | {"reason": str(error)}
    named = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
    entry |= {**named, **integral_entry(energy)}
    notes = [energy.note]
    if entry["failures"]:
        notes.append(f"{entry['failures']} readings failed ({entry['failure']})")
    if entry["bad_rows"]:
        notes.append(f"{entry['bad_rows']} rows of the meter hold no time and power")
    return entry | {"note": "; ".join(note for note in notes if note) or None}


def _empty(host: str, covers: Sequence[str], window: Window, clock_offset_seconds: float) -> Entry:
    """An entry with all keys, and what is known before anything is read."""
    return {
        "host": host,
        "covers": list(covers),
        "source": None,
        "scope": None,
        "interval_seconds": 1.0,
        "samples": 0,
        "seconds": window.seconds,
        "energy_joules": None,
        "mean_watts": None,
        "gaps": [],
        "clock_offset_seconds": clock_offset_seconds,
        "failures": 0,
        "failure": None,
        "bad_rows": 0,
        "cpu_seconds": None,
        "file": None,
        "sha256": None,
        "reason": None,
        "note": None,
    }


# ----------------------------------------------------------------------------------------------------
# The energy of a record, integrated again from its samples.


_ROUNDING = 1e-6
_KEYS = ("samples", "energy_joules", "mean_watts", "gaps")


def samples_of(record: Record) -> dict[str, SamplesFile]:
    """The power samples of a record, by host; empty where nothing was measured.

    Raises:
        RecordError: a file is missing, or is no file of samples.
    """
    nodes = _told(record).get("nodes", [])
    return {node["host"]: read_samples(record.path / node["file"]) for node in nodes if node["file"]}


def check_power(record: Record) -> None:
    """Integrate the samples of each node again.

    Raises:
        WrongAnswerError: they give another energy than the event `power`.
        RecordError: a file is missing, or an event lacks something.
    """
    told = _told(record)
    if not told.get("nodes"):
        return
    try:
        window, files = window_of(record.events), samples_of(record)
        for node in told["nodes"]:
            if node["file"]:
                _check_node(record, node, integral_entry(energy_of(files[node["host"]], node, window)))
            elif node["energy_joules"] is not None:
                raise WrongAnswerError(f"{record.path}: the event power has an energy of {node['host']} and no samples")
    except (KeyError, TypeError, StopIteration) as error:
        raise RecordError(f"{record.path}: the event power lacks something: {type(error).__name__} {error}") from error


def _check_node(record: Record, node: dict[str, Any], computed: dict[str, Any]) -> None:
    for key in _KEYS:
        if not _same(node[key], computed[key]):
            raise WrongAnswerError(
                f"{record.path / node['file']}: the samples of {node['host']} give {key} {computed[key]!r}, but the "
                f"event power tells {node[key]!r}: one of them was changed"
            )


def _told(record: Record) -> dict[str, Any]:
    found = list(iterate(record.events, "power"))
    return found[-1]["value"] if found else {}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
