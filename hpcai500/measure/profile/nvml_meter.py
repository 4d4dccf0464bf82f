"""Utilisation and NVLink counters of one CUDA device, as NVIDIA's management library tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpcai500.measure.profile.sampling import DeviceMeter, LinkBytes
from hpcai500.system.nvml import Nvml, open_nvml

# Fields that count what went over one link, and the bytes of one count: since Volta; since Blackwell.
_COUNTERS = (
    ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024),
    ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", 1),
)


class NvmlMeter:
    """Asks NVML about one device.

    Args:
        nvml: an open library.
        handle: of the device.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._active = self._active_links()
        self._fields = next((fields for fields in _COUNTERS if self._read(fields) is not None), None)

    def utilisation(self) -> float | None:
        """As the protocol."""
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        except self._nvml.NVMLError:
            return None

    def links(self) -> LinkBytes | None:
        """As the protocol: the sum over all active links."""
        return self._read(self._fields) if self._fields else None

    def _active_links(self) -> list[int]:
        found = []
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if self._nvml.nvmlDeviceGetNvLinkState(self._handle, link):
                    found.append(link)
            except self._nvml.NVMLError:
                # It has no more links, or none at all.
                break
        return found

    def _read(self, fields: tuple[str, str, int]) -> LinkBytes | None:
        sent, received, unit = fields
        if not self._active:
            return None
        wanted = [(getattr(self._nvml, name), link) for name in (sent, received) for link in self._active]
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(self._handle, wanted)
        except self._nvml.NVMLError:
            return None
        if any(value.nvmlReturn for value in values):
            return None
        counts = [int(value.value.ullVal) * unit for value in values]
        return LinkBytes(sum(counts[: len(self._active)]), sum(counts[len(self._active) :]))


@contextmanager
def nvml_meter(uuid: str, binding: Nvml | None = None) -> Iterator[DeviceMeter]:
    """A meter of the device with this UUID (`GPU-…`), until the block ends.

    Raises:
        EnvironmentLacksError: NVML does not answer; the message says why.
    """
    with open_nvml(binding) as nvml:
        yield NvmlMeter(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
