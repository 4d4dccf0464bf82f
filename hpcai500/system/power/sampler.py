"""Asks a source of power again and again beside the training, and writes down what it tells."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import IO

from hpcai500.system.power.samples_file import Row, by_device, format_row, open_samples
from hpcai500.system.power.source import PowerSource, machine_seconds

_LOCK_PATIENCE_SECONDS = 2.0


class Sampler:
    """Samples `source` into the file `path` from `start` to `stop`.

    It is a thread and no process: it sleeps, and a sample takes the interpreter for some tens of microseconds
    (docs/power.md has the measurement), while a process would need a Python of its own on each node, could not be
    forked safely once CUDA or MPI run, and would be one more thing to outlive its job. What may hang leaves the
    interpreter alone meanwhile: a call into a driver, a read from the kernel, a child process.

    Whatever happens to the source or the file is counted and told, and never ends a run.

    Attributes:
        failures: how often there was no reading, or it could not be written.
        failure: what the last of them said.
        cpu_seconds: that all the sampling has taken from this process.
    """

    def __init__(self, source: PowerSource, path: Path) -> None:
        self._source, self._path = source, path
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._stream: IO[bytes] | None = None
        self._is_closed = False
        self.failures = 0
        self.failure: str | None = None
        self.cpu_seconds = 0.0
        # Seconds of the wall clock at second 0 of the machine's: it may be set while the run lasts, and the
        # samples' times may not jump.
        self.wall_zero_s = time.time() - machine_seconds()
        # A hung call must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> bool:
        """Take a last sample and end; whether the source had still answered in time."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(self._source.patience_seconds + self._source.interval_seconds)
        # From here on nothing may come into the file, whose hash is about to be taken. Where the thread hangs in a
        # write, the lock cannot be had, and whatever it writes later makes a file that is not the one that was hashed.
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
        """The wall clock as the samples have it."""
        return machine_seconds() + self.wall_zero_s

    def _run(self) -> None:
        interval = self._source.interval_seconds
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._sample()
            # A source that is slower than its interval is asked at the next full one, never twice in a row.
            due += interval * max(1.0, -(-(time.monotonic() - due) // interval))
        self._sample()

    def _sample(self) -> None:
        began = time.thread_time()
        try:
            before = machine_seconds()
            reading = self._source.read()
            moment = (before + machine_seconds()) / 2
            watts = by_device(self._source.devices, reading.watts)
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
                self._stream = open_samples(self._path, self._source.devices)
            self._stream.write(line)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.failure = reason
