"""Power samples of a run: taken during it or read from a meter's file, stored in the record, integrated to energy.

A failing source or file never ends a run: the event `power` reports the problem. The energy is integrated from the file
in the record, so that every later scoring of the record gives the same number.
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
from itertools import count, repeat, starmap
from pathlib import Path
from typing import IO, Any, NamedTuple

from hpcai500.errors import DataError, HpcAi500Error, RecordError, WrongAnswerError
from hpcai500.files import exists, write_atomically
from hpcai500.methodology.energy import Energy, Sample, Window, compare_sources, integrate, usual_interval, window_of
from hpcai500.record import Record, iterate
from hpcai500.system.power import METER, Meter, PowerSource, machine_seconds
from hpcai500.system.power_remote import SLOWEST_CONTROLLER_SECONDS, RedfishSource

# ----------------------------------------------------------------------------------------------------
# A meter's file: rows of time (UNIX seconds or ISO 8601) and watts, cut to the time of a run.


# How long to wait for a meter that writes late, for example to a network file system.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
# Rows further apart leave gaps: the power between them is unknown.
SLOWEST_SECONDS = 10.0
# Rows kept beyond each edge of the window.
_MARGIN_SECONDS = 3 * SLOWEST_SECONDS
_TIME, _WATTS = "time", "watts"


@dataclass(frozen=True)
class MeterRows:
    """The content of a meter's files in and around a window.

    Attributes:
        samples: times in UNIX seconds of this machine.
        bad_rows: rows of all files without a valid time and power.
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
    # The name of a file may contain the characters of a pattern.
    if exists(path) and path.is_file():
        return [path]
    root = Path(path.anchor)
    return [one for one in sorted(root.glob(str(path.relative_to(root)))) if one.is_file()]


def read_meter(meter: Meter, host: str, window: Window) -> MeterRows:
    """The rows of the meter's files on `host` in and around `window` (UNIX seconds).

    Raises:
        DataError: there is no file, or one lacks the columns.
    """
    files = files_of(meter, host)
    if not files:
        raise DataError(f"{meter.of(host)}: no such meter file")
    samples: list[Sample] = []
    bad_rows, ends = 0, -math.inf
    for file in files:
        for sample in _rows(file, meter.offset_seconds, window):
            if sample is None:
                bad_rows += 1
                continue
            ends = max(ends, sample.time_s)
            if _is_around(window, sample.time_s):
                samples.append(sample)
    samples.sort()
    return MeterRows(tuple(samples), bad_rows, meter_interval(samples), ends)


def await_meter(
    meter: Meter, host: str, window: Window, pause: Callable[[float], None], now: Callable[[], float]
) -> MeterRows:
    """As `read_meter`, but waits up to ten seconds for the files to reach the window's end.

    `pause` sleeps for a number of seconds; `now` returns the seconds of a monotonic clock.
    """
    limit = now() + _PATIENCE_SECONDS
    while True:
        rows = read_meter(meter, host, window)
        # A file that ends long before the window's end is no longer written.
        is_late = window.stop_s - 60 < rows.ends < window.stop_s
        if not is_late or now() >= limit:
            return rows
        pause(_PAUSE_SECONDS)


def meter_interval(samples: list[Sample]) -> float:
    """The usual time between two samples of a meter, 10 s at most."""
    return min(usual_interval(samples) or SLOWEST_SECONDS, SLOWEST_SECONDS)


def _rows(file: Path, offset_seconds: float, window: Window) -> Iterator[Sample | None]:
    """The samples of `file`; None for a row without a valid time and power.

    A local time in the hour that clocks repeat at the end of summer time is the earlier one that follows the row
    before it; if that is unknown, a time in or around `window` is refused.
    """
    before = -math.inf
    try:
        # A meter's software may write a byte-order mark, and invalid UTF-8 in other columns.
        with file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            rows = csv.reader(stream)
            header = [name.strip().lower() for name in next(rows, [])]
            if _TIME not in header or _WATTS not in header:
                raise DataError(
                    f"{file}:1: expected a header with the columns {_TIME} and {_WATTS}, got {','.join(header)[:80]!r}"
                )
            columns = header.index(_TIME), header.index(_WATTS)
            for row in filter(None, rows):
                try:
                    times, watts = _times(row[columns[0]].strip()), float(row[columns[1]])
                except (ValueError, IndexError, OverflowError):
                    yield None
                    continue
                if before == -math.inf and times[1:] and any(_is_around(window, it + offset_seconds) for it in times):
                    raise DataError(
                        f"{file}:{rows.line_num}: {row[columns[0]]!r} is in the hour that clocks repeat at the end of "
                        "summer time, and has no zone: let the meter write UTC, or a zone such as +01:00"
                    )
                moment = next((it for it in times if it >= before), times[0])
                before = moment
                is_plausible = math.isfinite(moment) and math.isfinite(watts) and watts >= 0
                yield Sample(moment + offset_seconds, watts) if is_plausible else None
    except (OSError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def _is_around(window: Window, time_s: float) -> bool:
    return window.start_s - _MARGIN_SECONDS <= time_s <= window.stop_s + _MARGIN_SECONDS


def _times(text: str) -> list[float]:
    """UNIX seconds of a number, or of an ISO 8601 date; without a zone that is local time, as the standard defines.

    Two, ascending, of a local time that occurs twice.

    Raises:
        ValueError: it is neither.
    """
    try:
        return [float(text)]
    except ValueError:
        moment = datetime.fromisoformat(text)
    first, second = moment.timestamp(), moment.replace(fold=1).timestamp()
    # Of a local time that is skipped in spring, the second one is earlier.
    return [first, second] if second > first else [first]


# ----------------------------------------------------------------------------------------------------
# RECORD/power/HOST.csv: the samples of a source, one row each.
#
# time_s    seconds of the machine's clock, as `clock_s` of its events (CLOCK_BOOTTIME)
# unix_s    the same time in UNIX seconds; within one process its offset to time_s is constant
# watts     of all devices together; empty while unknown
# joules    energy since the count began, if the source has a counter; 0 begins a new count
# watts X   of device X


FOLDER = "power"
# In names of files with the samples of a second source. Names of hosts cannot contain it.
BESIDE = "+"
_COLUMNS = ("time_s", "unix_s", "watts", "joules")
_DEVICE = "watts "


class Row(NamedTuple):
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
        """Samples in wall-clock time of rank 0; this node's clock is ahead by `clock_offset_seconds`."""
        return [Sample(unix_s - clock_offset_seconds, watts, joules) for _, unix_s, watts, joules, _ in self.rows]


def file_name(host: str, beside: str | None = None) -> str:
    """Name of the file of `host`, relative to the record; of the source `beside` that is compared with the first."""
    source = f"{BESIDE}{beside}" if beside else ""
    return f"{FOLDER}/{re.sub(r'[^A-Za-z0-9._-]', '_', host)}{source}.csv"


def read_samples(path: Path) -> SamplesFile:
    """The samples in the file `path`.

    Raises:
        RecordError: it has another format; the message names the line.
    """
    try:
        return parse_samples(path.read_bytes(), str(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def parse_samples(content: bytes, name: str) -> SamplesFile:
    """As `read_samples`, for the content of the file `name`.

    Raises:
        RecordError: it has another format; the message names the line.
    """
    # A row that a crash cut off is ignored.
    whole = content[: content.rfind(b"\n") + 1]
    rows = csv.reader(io.StringIO(whole.decode("utf-8", errors="replace")))
    header = next(rows, [])
    if tuple(header[:4]) != _COLUMNS or not all(column.startswith(_DEVICE) for column in header[4:]):
        raise RecordError(f"{name}:1: expected the columns {','.join(_COLUMNS)} of power samples")
    cells = list(rows)
    width = len(header)
    try:
        if any(len(row) != width for row in cells):
            raise ValueError
        # By columns, because a long run has a row for each second and node.
        times, moments, watts, joules, *devices = map(_numbers, zip(*cells, strict=True)) if cells else [()] * width
        if None in times or None in moments:
            raise ValueError
    except ValueError as error:
        wrong = next(number for number, row in enumerate(cells, 2) if not _is_sample(row, width))
        raise RecordError(f"{name}:{wrong}: not a power sample") from error
    of_devices = zip(*devices, strict=True) if devices else repeat(())
    found = starmap(Row, zip(times, moments, watts, joules, of_devices, strict=False))
    return SamplesFile(tuple(column.removeprefix(_DEVICE) for column in header[4:]), tuple(found))


def _numbers(cells: Sequence[str]) -> Sequence[float | None]:
    """The values of cells; None for one that is empty.

    Raises:
        ValueError: one is not a finite number, or negative.
    """
    values = [float(cell) if cell else None for cell in cells] if "" in cells else list(map(float, cells))
    known = [value for value in values if value is not None]
    # A finite sum has no NaN and no infinity.
    if known and not (min(known) >= 0 and (math.isfinite(sum(known)) or all(map(math.isfinite, known)))):
        raise ValueError
    return values


def _is_sample(row: Sequence[str], width: int) -> bool:
    try:
        return len(row) == width and all(row[:2]) and len(_numbers(row)) == width
    except ValueError:
        return False


def format_samples(devices: Sequence[str], rows: Iterable[Row]) -> bytes:
    return b"".join([_header(devices), *map(format_row, rows)])


def format_row(row: Row) -> bytes:
    cells = [f"{row.time_s:.6f}", f"{row.unix_s:.6f}", _cell(row.watts, 3), _cell(row.joules, 6)]
    return (",".join([*cells, *(_cell(value, 3) for value in row.devices)]) + "\n").encode()


def open_samples(path: Path, devices: Sequence[str]) -> IO[bytes]:
    """Open the file `path` to append rows, without buffering.

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


# ----------------------------------------------------------------------------------------------------
# The power of one node during a run, as its entry in the event `power`.


# A sampler reads at least this often (MLPerf); with a longer interval, gaps would go unnoticed.
_MOST_INTERVAL_SECONDS = 1.0
_LOCK_PATIENCE_SECONDS = 2.0

Entry = dict[str, Any]


class SampledNode:
    """A node whose source is read regularly during the run; its samples go into its file in the record.

    It owns `source`, and closes it at the end. `covers` names the nodes that it measures; None is `host` alone. If
    `is_beside`, the source does not count, but is compared with the one that does. Each source has a thread of its own,
    so that a slow one delays no other.

    It is a thread, not a process: it sleeps, and a sample holds the GIL for
    some tens of microseconds (measured in docs/power.md), while a process would need another Python on each node, could
    not be forked safely once CUDA or MPI run, and could outlive its job. Calls that may hang (into a driver or the
    kernel, or waiting for a child) release the GIL.

    Failures of the source or the file are counted, and reported in the node's entry; they never end a run.

    Attributes:
        failures: number of readings that failed or could not be written.
        failure: message of the last one.
        cpu_seconds: of this process, for all sampling.
    """

    def __init__(
        self,
        source: PowerSource,
        record: Path,
        host: str,
        *,
        covers: Sequence[str] | None = None,
        is_beside: bool = False,
    ) -> None:
        self._source, self._record, self._host = source, record, host
        self._covers = list(covers or [host])
        self._file = file_name(host, source.name if is_beside else None)
        self._caps: list[dict[str, float] | None] = []
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._stream: IO[bytes] | None = None
        self._is_closed = False
        self.failures = 0
        self.failure: str | None = None
        self.cpu_seconds = 0.0
        # Wall clock at second 0 of the machine's clock, read once: the wall clock may be set during the run, but the
        # samples' times must not jump.
        self.wall_zero_s = time.time() - machine_seconds()
        # A daemon thread, because a hung call must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def begin(self) -> None:
        """Start sampling; called just before the run starts."""
        self._thread.start()

    def stop(self) -> bool:
        """Take a last sample, after the run has ended or failed; returns whether the source responded in time."""
        self._stopping.set()
        if self._thread.ident is not None:
            # A reading that had begun, the last one, and that of the caps.
            self._thread.join(3 * self._source.patience_seconds + self._source.interval_seconds)
        # From here on the file must not change, because its hash is taken next. If the thread hangs in a write, the
        # lock cannot be acquired, and a later write would give a file that does not match the hash.
        if self._turn.acquire(timeout=_LOCK_PATIENCE_SECONDS):
            self._is_closed = True
            if self._stream:
                self._stream.close()
            self._turn.release()
        if self._thread.is_alive():
            self._fail("it does not respond any more")
            return False
        self._source.close()
        return True

    def unix_now(self) -> float:
        """The wall clock of the samples, which does not jump."""
        return machine_seconds() + self.wall_zero_s

    def entry(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The entry of this node, with the energy of its samples file.

        `window` is that of the run, in UNIX seconds of rank 0; this node's wall clock is ahead by
        `clock_offset_seconds`.
        """
        source = self._source
        entry = _empty(self._host, self._covers, window, clock_offset_seconds) | {
            "source": source.name,
            "scope": source.scope,
            "parts": source.parts,
            "caps": self._caps[0] if self._caps else None,
            "caps_after": self._caps[-1] if self._caps[1:] else None,
            "interval_seconds": source.interval_seconds,
            "failures": self.failures,
            "failure": self.failure,
            "cpu_seconds": round(self.cpu_seconds, 6),
        }
        return _integrated(entry, self._record, self._file, window)

    def _run(self) -> None:
        interval = self._source.interval_seconds
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._sample()
            if not self._caps:
                self._look_at_caps()
            # A source slower than its interval is read at the next full interval, never twice in a row.
            due += interval * max(1.0, -(-(time.monotonic() - due) // interval))
        self._sample()
        self._look_at_caps()

    def _look_at_caps(self) -> None:
        try:
            self._caps.append({name: float(watts) for name, watts in self._source.caps().items()})
        except Exception:  # noqa: BLE001 - as in `_sample`; a cap that cannot be read is unknown
            self._caps.append(None)

    def _sample(self) -> None:
        began = time.thread_time()
        try:
            before = machine_seconds()
            reading = self._source.read()
            moment = (before + machine_seconds()) / 2
            watts = tuple(reading.watts.get(device) for device in self._source.devices)
            row = Row(moment, moment + self.wall_zero_s, reading.total_watts, reading.joules, watts)
            self._write(format_row(row))
        except Exception as error:  # noqa: BLE001 - a driver's library or a disk must not end the run; reported at its end
            self._fail(str(error) or type(error).__name__)
        self.cpu_seconds += time.thread_time() - began

    def _write(self, line: bytes) -> None:
        with self._turn:
            if self._is_closed:
                return
            if self._stream is None:
                self._stream = open_samples(self._record / self._file, self._source.devices)
            self._stream.write(line)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.failure = reason


class MeteredNode:
    """One or more nodes whose meter writes a file, which is read after the run; used like `SampledNode`.

    `covers` names the nodes that the meter measures; `pause` sleeps for a number of seconds while the meter is late.
    `is_beside`: as of `SampledNode`.
    """

    def __init__(
        self,
        meter: Meter,
        record: Path,
        host: str,
        covers: Sequence[str],
        pause: Callable[[float], None] = time.sleep,
        *,
        is_beside: bool = False,
    ) -> None:
        self._file = file_name(host, METER if is_beside else None)
        self._meter, self._record, self._host, self._covers = meter, record, host, list(covers)
        self._pause = pause

    def begin(self) -> None:
        """Do nothing: the meter runs by itself."""

    def stop(self) -> None:
        """Do nothing: the meter runs by itself."""

    def unix_now(self) -> float:
        return time.time()

    def entry(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The energy of the meter's rows, which are written into the record like samples."""
        entry = _empty(self._host, self._covers, window, clock_offset_seconds)
        parts = None if self._meter.scope == "device" else "node"
        entry |= {"source": METER, "scope": self._meter.scope, "parts": parts}
        here = Window(window.start_s + clock_offset_seconds, window.stop_s + clock_offset_seconds)
        try:
            found = await_meter(self._meter, self._host, here, self._pause, time.monotonic)
            zero = time.time() - machine_seconds()
            rows = [Row(sample.time_s - zero, sample.time_s, sample.watts) for sample in found.samples]
            path = self._record / self._file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, format_samples((), rows))
        except (HpcAi500Error, OSError) as error:
            return entry | {"reason": str(error)}
        entry |= {"interval_seconds": found.interval_seconds, "bad_rows": found.bad_rows}
        return _integrated(entry, self._record, self._file, window)


def energy_of(file: SamplesFile, entry: Mapping[str, Any], window: Window) -> Energy:
    """The energy of a node in the run's `window` (UNIX seconds of rank 0).

    The job and every later scoring of its record compute it here. `entry` is the node's: it names the source, and how
    far the node's clock is ahead.
    """
    samples = file.samples(float(entry["clock_offset_seconds"]))
    most = _MOST_INTERVAL_SECONDS
    if entry["source"] == METER:
        most = meter_interval(samples)
    elif entry["source"] == RedfishSource.name:
        most = SLOWEST_CONTROLLER_SECONDS
    return integrate(samples, window, min(float(entry["interval_seconds"]), most))


def integral_entry(energy: Energy) -> Entry:
    """The keys of an entry that come from the integral."""
    return {
        "samples": energy.samples,
        "energy_joules": energy.joules,
        "mean_watts": energy.mean_watts,
        "gaps": [list(gap) for gap in energy.gaps],
        "step": energy.resolution.step,
        "step_unit": energy.resolution.unit,
        "update_seconds": energy.resolution.update_seconds,
        "reason": energy.reason,
    }


def _integrated(entry: Entry, record: Path, name: str, window: Window) -> Entry:
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
        notes.append(f"{entry['bad_rows']} rows of the meter have no valid time and power")
    if entry["caps_after"] is not None and entry["caps"] is not None and entry["caps_after"] != entry["caps"]:
        notes.append(f"power caps changed during the run ({_changed_caps(entry['caps'], entry['caps_after'])})")
    return entry | {"note": "; ".join(note for note in notes if note) or None}


def _changed_caps(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """The first change, as `gpu0: 700 W, then 500 W`."""
    device = next(name for name in {**before, **after} if before.get(name) != after.get(name))
    one, other = (f"{caps[device]:g} W" if device in caps else "none" for caps in (before, after))
    return f"{device or 'node'}: {one}, then {other}"


def _empty(host: str, covers: Sequence[str], window: Window, clock_offset_seconds: float) -> Entry:
    """An entry with all keys, before anything is read."""
    return {
        "host": host,
        "covers": list(covers),
        "source": None,
        "scope": None,
        "parts": None,
        "caps": None,
        "caps_after": None,
        "interval_seconds": 1.0,
        "samples": 0,
        "seconds": window.seconds,
        "energy_joules": None,
        "mean_watts": None,
        "gaps": [],
        "step": None,
        "step_unit": None,
        "update_seconds": None,
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
# Integrate the energy of a record again from its samples.


_ROUNDING = 1e-6
_KEYS = ("samples", "energy_joules", "mean_watts", "gaps")
# Records of earlier versions lack these.
_LATER_KEYS = ("step", "step_unit", "update_seconds")


def samples_of(record: Record) -> dict[str, SamplesFile]:
    """The power samples of a record, by host; empty where nothing was measured.

    Raises:
        RecordError: a file is missing, or is not a file of samples.
    """
    nodes = _power_event(record).get("nodes", [])
    return {node["host"]: read_samples(record.path / node["file"]) for node in nodes if node["file"]}


def check_power(record: Record) -> None:
    """Integrate the samples of each node again, and compare the sources again.

    Raises:
        WrongAnswerError: they give another energy or comparison than the event `power`.
        RecordError: a file is missing, or an event lacks something.
    """
    power = _power_event(record)
    if not power.get("nodes"):
        return
    try:
        window, beside = window_of(record.events), power.get("beside", [])
        for node in (*power["nodes"], *beside):
            if node["file"]:
                _check_node(
                    record, node, integral_entry(energy_of(read_samples(record.path / node["file"]), node, window))
                )
            elif node["energy_joules"] is not None:
                raise WrongAnswerError(f"{record.path}: the event power has an energy of {node['host']} but no samples")
        if not _same(power.get("comparisons", []), compare_sources(power["nodes"], beside)):
            raise WrongAnswerError(
                f"{record.path}: its sources of power do not give the comparison in the event power: it was changed"
            )
    except (KeyError, TypeError, StopIteration) as error:
        raise RecordError(f"{record.path}: the event power lacks something: {type(error).__name__} {error}") from error


def _check_node(record: Record, node: dict[str, Any], computed: dict[str, Any]) -> None:
    for key in (*_KEYS, *(later for later in _LATER_KEYS if later in node)):
        if not _same(node[key], computed[key]):
            raise WrongAnswerError(
                f"{record.path / node['file']}: the samples of {node['host']} give {key} {computed[key]!r}, but the "
                f"event power says {node[key]!r}: one of them was changed"
            )


def _power_event(record: Record) -> dict[str, Any]:
    found = list(iterate(record.events, "power"))
    return found[-1]["value"] if found else {}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
