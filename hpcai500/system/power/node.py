"""The power of one node during a run, sampled or read from a meter's file, as its entry in the event `power`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcai500.errors import HpcAi500Error
from hpcai500.files import write_atomically
from hpcai500.methodology.energy import Energy, Window, integrate
from hpcai500.system.power.choice import Meter
from hpcai500.system.power.meter import await_meter, meter_interval
from hpcai500.system.power.sampler import Sampler
from hpcai500.system.power.samples_file import Row, SamplesFile, file_name, format_samples, read_samples
from hpcai500.system.power.source import PowerSource, machine_seconds

METER = "csv"
# A sampler asks at least so often (MLPerf); a hole that is judged by a longer interval would be hidden.
_MOST_INTERVAL_SECONDS = 1.0

Entry = dict[str, Any]


class NodePower(Protocol):
    """Measures one node."""

    def begin(self) -> None:
        """The run is about to start."""

    def stop(self) -> None:
        """The run has ended, or is given up."""

    def unix_now(self) -> float:
        """The wall clock as the samples have it."""

    def tell(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The entry of this node; whatever is wrong with a source or its file is said in it, and ends no run.

        Args:
            window: of the run, in UNIX seconds of rank 0.
            clock_offset_seconds: how far this node's wall clock is ahead of that.
        """


class SampledNode:
    """A node whose source is asked while the run lasts.

    Args:
        source: what is asked; closed in the end.
        record: folder of the record.
        host: name of this node.
    """

    def __init__(self, source: PowerSource, record: Path, host: str) -> None:
        self._source, self._record, self._host = source, record, host
        self._sampler = Sampler(source, record / file_name(host))
        self._has_begun = False

    def begin(self) -> None:
        """Sample from now on."""
        self._has_begun = True
        self._sampler.start()

    def stop(self) -> None:
        """Take a last sample; a source that hangs is left alone."""
        if self._has_begun:
            self._sampler.stop()
        else:
            self._source.close()

    def unix_now(self) -> float:
        """As the sampler has it: it does not jump."""
        return self._sampler.unix_now()

    def tell(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The energy of the file that the sampler has written."""
        sampler, source = self._sampler, self._source
        entry = _empty(self._host, [self._host], window, clock_offset_seconds) | {
            "source": source.name,
            "scope": source.scope,
            "interval_seconds": source.interval_seconds,
            "failures": sampler.failures,
            "failure": sampler.failure,
            "cpu_seconds": round(sampler.cpu_seconds, 6),
        }
        return _integrated(entry, self._record, window)


class MeteredNode:
    """A node, or several, whose power a meter writes into a file, which is read when the run has ended.

    Args:
        meter: the file.
        record: folder of the record.
        host: name of this node.
        covers: the nodes that the meter feeds.
        pause: sleeps for so many seconds, while the meter is late.
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
        """The wall clock."""
        return time.time()

    def tell(self, window: Window, clock_offset_seconds: float) -> Entry:
        """The energy of the meter's rows, which are kept in the record as if they had been sampled."""
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
    """The energy of a node in the run's `window`: the same for the job that ran and for whoever scores its record.

    Args:
        file: its samples.
        entry: of the node, which says where they are from, and how far its clock is ahead.
        window: of the run, in UNIX seconds of rank 0.
    """
    samples = file.samples(float(entry["clock_offset_seconds"]))
    most = meter_interval(samples) if entry["source"] == METER else _MOST_INTERVAL_SECONDS
    return integrate(samples, window, min(float(entry["interval_seconds"]), most))


def integral_entry(energy: Energy) -> Entry:
    """What an entry says of the integral."""
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
    """All keys, with what is known before anything is read."""
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
