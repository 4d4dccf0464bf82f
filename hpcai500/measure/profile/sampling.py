"""What is read many times a second while steps run: work of the processor, of the device, and bytes on their way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from hpcai500.measure.network import NetworkCounters

# Twenty a second: V2.0 Fig. 13 shows bursts within steps. A reading takes some tens of microseconds.
INTERVAL_SECONDS = 0.05


@dataclass(frozen=True)
class LinkBytes:
    """What went over a device's links since its driver counts."""

    sent: int
    received: int


class DeviceMeter(Protocol):
    """Asks a device's driver."""

    def utilisation(self) -> float | None:
        """Fraction of the driver's last interval in which something ran; None where it does not know."""

    def links(self) -> LinkBytes | None:
        """Counters of the links to other devices; None without such."""


@dataclass(frozen=True)
class Sample:
    """One moment. Times in seconds.

    Attributes:
        moment: by `time.perf_counter`.
        processor_seconds: that this process has computed, over all its threads.
        network: of this host; None where another rank reads it.
        device: as of `DeviceMeter`.
        links: as of `DeviceMeter`.
    """

    moment: float
    processor_seconds: float
    network: NetworkCounters | None = None
    device: float | None = None
    links: LinkBytes | None = None


class Sampler:
    """Takes samples in a thread of its own while its context is open.

    Args:
        counters: reads the network's; None where another rank of this host does.
        meter: of the device; None without one.
        interval_seconds: from sample to sample.

    Attributes:
        samples: so far.
    """

    def __init__(
        self,
        counters: Callable[[], NetworkCounters] | None,
        meter: DeviceMeter | None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._counters, self._meter, self._interval = counters, meter, interval_seconds
        self.samples: list[Sample] = []
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hpcai500-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self.samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._error and error is None:
            raise self._error
        if error is None:
            self.samples.append(self._sample())

    def _work(self) -> None:
        due = time.perf_counter() + self._interval
        while not self._ended.wait(max(0.0, due - time.perf_counter())):
            try:
                self.samples.append(self._sample())
            except Exception as error:  # noqa: BLE001 - raised again where the context ends
                self._error = error
                return
            # What came too late is left out, not made up for.
            due = max(due + self._interval, time.perf_counter() + self._interval / 2)

    def _sample(self) -> Sample:
        return Sample(
            time.perf_counter(),
            time.process_time(),
            self._counters() if self._counters else None,
            self._meter.utilisation() if self._meter else None,
            self._meter.links() if self._meter else None,
        )
