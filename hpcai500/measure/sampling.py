"""Samples the use of CPU, device and network many times a second during steps, and makes curves over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeVar

from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.host import Bytes, NetworkCounters
from hpcai500.system.devices import Nvml, ask_nvml, open_nvml

# ----------------------------------------------------------------------------------------------------
# The sampler.


# Twenty samples a second, since V2.0 Fig. 13 shows bursts within steps. A sample takes some tens of microseconds.
INTERVAL_SECONDS = 0.05


@dataclass(frozen=True)
class Sample:
    """Counters at one moment.

    Attributes:
        moment: seconds, by `time.perf_counter`.
        processor_seconds: CPU time of this process so far, over all its threads.
        network: of this host; None if another rank reads it.
        device, links: from `NvmlMeter.utilisation` and `NvmlMeter.links`.
    """

    moment: float
    processor_seconds: float
    network: NetworkCounters | None = None
    device: float | None = None
    links: Bytes | None = None


class Sampler:
    """Takes samples in another thread inside its `with` block, and one at either end.

    `counters` is None if another rank of this host reads the network; `meter` is None without a device. An error of
    the thread is raised at the end of the block.
    """

    def __init__(
        self,
        counters: Callable[[], NetworkCounters] | None,
        meter: NvmlMeter | None,
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
            # Late samples are skipped.
            due = max(due + self._interval, time.perf_counter() + self._interval / 2)

    def _sample(self) -> Sample:
        return Sample(
            time.perf_counter(),
            time.process_time(),
            self._counters() if self._counters else None,
            self._meter.utilisation() if self._meter else None,
            self._meter.links() if self._meter else None,
        )


# ----------------------------------------------------------------------------------------------------
# Utilisation and NVLink counters of one CUDA device, by NVIDIA's management library.


# Fields that count the traffic of one link, and the bytes of one count: since Volta; since Blackwell.
_COUNTERS = (
    ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024),
    ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", 1),
)


class NvmlMeter:
    """Counters of a device by NVML, which must be open."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._active = self._active_links()
        self._fields = next((fields for fields in _COUNTERS if self._read(fields) is not None), None)

    def utilisation(self) -> float | None:
        """Fraction of the driver's last interval in which something ran; None if the driver does not report it."""
        rates = ask_nvml(self._nvml, "nvmlDeviceGetUtilizationRates", self._handle)
        return None if rates is None else float(rates.gpu) / 100

    def links(self) -> Bytes | None:
        """Bytes over all active links to other devices, since a moment that the driver chose; None without links."""
        return self._read(self._fields) if self._fields else None

    def _active_links(self) -> list[int]:
        return [
            link
            for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)
            # There is no state of a link that does not exist.
            if ask_nvml(self._nvml, "nvmlDeviceGetNvLinkState", self._handle, link)
        ]

    def _read(self, fields: tuple[str, str, int]) -> Bytes | None:
        sent, received, unit = fields
        if not self._active:
            return None
        fields_of_links = [(getattr(self._nvml, name), link) for name in (sent, received) for link in self._active]
        values = ask_nvml(self._nvml, "nvmlDeviceGetFieldValues", self._handle, fields_of_links)
        if values is None or any(value.nvmlReturn for value in values):
            return None
        counts = [int(value.value.ullVal) * unit for value in values]
        return Bytes(sum(counts[: len(self._active)]), sum(counts[len(self._active) :]))


@contextmanager
def nvml_meter(uuid: str, binding: Nvml | None = None) -> Iterator[NvmlMeter]:
    """A meter of the device with this UUID (`GPU-…`), until the block ends.

    Raises:
        EnvironmentLacksError: NVML does not answer, or does not know the device.
    """
    with open_nvml(binding) as nvml:
        handle = ask_nvml(nvml, "nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            # A part of a device (MIG) has its own UUID.
            raise EnvironmentLacksError(f"NVML knows no device {uuid}: see `nvidia-smi -L` on this host")
        yield NvmlMeter(nvml, handle)


# ----------------------------------------------------------------------------------------------------
# From samples to curves over time: how busy cores and devices were, and bytes a second by path.


# Samples that are closer, as the last two may be, give no useful rate.
_SHORTEST_SECONDS = INTERVAL_SECONDS / 2

T = TypeVar("T")
# How much a counter grew between two samples.
Amount = Callable[[Sample, Sample], T]


def processor_utilisation(samples: Sequence[Sample], cores: int) -> list[list[float]]:
    """[seconds since the first sample, busy fraction of `cores` since the sample before] of each sample."""
    return [
        [round(t, 6), min(1.0, busy / (cores * seconds))]
        for t, seconds, busy in _steps(samples, lambda one, two: two.processor_seconds - one.processor_seconds)
    ]


def driver_utilisation(samples: Sequence[Sample]) -> list[list[float]]:
    """[seconds since the first sample, utilisation by the device's driver]; empty if the driver does not report it."""
    start = samples[0].moment if samples else 0.0
    return [[round(one.moment - start, 6), one.device] for one in samples if one.device is not None]


def busy_windows(intervals: Iterable[tuple[float, float]], seconds: float, window_seconds: float) -> list[list[float]]:
    """[begin, share covered by `intervals` (start, end)] of each window from 0 to `seconds`; overlaps count once."""
    count = max(1, round(seconds / window_seconds))
    length = seconds / count
    busy, reached = [0.0] * count, 0.0
    for start, end in sorted(intervals):
        begin, reached = max(start, reached), max(end, reached)
        for number in range(int(begin / length), min(count, int(reached / length) + 1)):
            low, high = number * length, (number + 1) * length
            busy[number] += max(0.0, min(reached, high) - max(begin, low))
    return [[round(number * length, 6), min(1.0, one / length)] for number, one in enumerate(busy)]


def _over_network(one: Sample, two: Sample) -> tuple[float, float] | None:
    """Over all interfaces that lead to other hosts."""
    if one.network is None or two.network is None:
        return None
    difference = two.network.since(one.network)
    return float(sum(difference["sent_bytes"].values())), float(sum(difference["received_bytes"].values()))


def _over_loopback(one: Sample, two: Sample) -> tuple[float, float] | None:
    """Between processes of this host: sent and received are equal."""
    if one.network is None or two.network is None:
        return None
    amount = two.network.since(one.network)["loopback_sent_bytes"]
    return None if amount is None else (float(amount), float(amount))


def _over_links(one: Sample, two: Sample) -> tuple[float, float] | None:
    """Over the links of this rank's device."""
    if one.links is None or two.links is None:
        return None
    return float(two.links.sent - one.links.sent), float(two.links.received - one.links.received)


def _steps(samples: Sequence[Sample], amount: Amount[T]) -> list[tuple[float, float, T]]:
    """(time since the first sample, time since the one before, amount) of each sample except the first."""
    start = samples[0].moment if samples else 0.0
    return [
        (two.moment - start, two.moment - one.moment, amount(one, two)) for one, two in pairwise(_far_apart(samples))
    ]


def _far_apart(samples: Sequence[Sample]) -> list[Sample]:
    """`samples` without those too soon after another; the first and the last stay, so that everything is counted."""
    kept = list(samples[:1])
    for sample in samples[1:-1]:
        if sample.moment - kept[-1].moment >= _SHORTEST_SECONDS:
            kept.append(sample)
    if len(kept) > 1 and samples[-1].moment - kept[-1].moment < _SHORTEST_SECONDS:
        kept.pop()
    return [*kept, *samples[1:][-1:]]


NETWORK, LOOPBACK, LINKS = "network", "loopback", "NVLink"
_PATHS: Mapping[str, Amount[tuple[float, float] | None]] = {
    NETWORK: _over_network,
    LOOPBACK: _over_loopback,
    LINKS: _over_links,
}


def curves_of_rank(samples: Sequence[Sample], rank: int, host: str) -> list[dict[str, Any]]:
    """The curves of this rank in bytes a second: `[{host, rank, path, points}]`, for `Communicator.gather_objects`."""
    curves = []
    for path, amount in _PATHS.items():
        points = [
            {
                "t_s": round(t, 6),
                "sent_bytes_per_second": sent_received[0] / seconds,
                "received_bytes_per_second": sent_received[1] / seconds,
            }
            for t, seconds, sent_received in _steps(samples, amount)
            if sent_received is not None
        ]
        if points:
            curves.append({"host": host, "rank": rank, "path": path, "points": points})
    return curves


def chosen_curve(curves: Sequence[Mapping[str, Any]], nodes: int) -> Mapping[str, Any] | None:
    """The curve of the path that gradients take: between nodes the network, else links, else loopback.

    It is that of the first rank or node that has one; None if nothing was sampled.
    """
    paths = (NETWORK,) if nodes > 1 else (LINKS, LOOPBACK)
    return next((curve for path in paths for curve in curves if curve["path"] == path), None)
