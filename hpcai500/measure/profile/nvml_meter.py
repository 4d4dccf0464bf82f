"""Utilisation and NVLink counters of one CUDA device, as NVIDIA's management library tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.profile.sampling import DeviceMeter, LinkBytes
from hpcai500.system.nvml import Nvml, ask_nvml, open_nvml

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
        rates = ask_nvml(self._nvml, "nvmlDeviceGetUtilizationRates", self._handle)
        return None if rates is None else float(rates.gpu) / 100

    def links(self) -> LinkBytes | None:
        """As the protocol: the sum over all active links."""
        return self._read(self._fields) if self._fields else None

    def _active_links(self) -> list[int]:
        return [
            link
            for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)
            # No such link, or none at all: no state.
            if ask_nvml(self._nvml, "nvmlDeviceGetNvLinkState", self._handle, link)
        ]

    def _read(self, fields: tuple[str, str, int]) -> LinkBytes | None:
        sent, received, unit = fields
        if not self._active:
            return None
        wanted = [(getattr(self._nvml, name), link) for name in (sent, received) for link in self._active]
        values = ask_nvml(self._nvml, "nvmlDeviceGetFieldValues", self._handle, wanted)
        if values is None or any(value.nvmlReturn for value in values):
            return None
        counts = [int(value.value.ullVal) * unit for value in values]
        return LinkBytes(sum(counts[: len(self._active)]), sum(counts[len(self._active) :]))


@contextmanager
def nvml_meter(uuid: str, binding: Nvml | None = None) -> Iterator[DeviceMeter]:
    """A meter of the device with this UUID (`GPU-…`), until the block ends.

    Raises:
        EnvironmentLacksError: NVML does not answer, or does not know the device; the message says why.
    """
    with open_nvml(binding) as nvml:
        handle = ask_nvml(nvml, "nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            # A part of a device (MIG) has a UUID of its own.
            raise EnvironmentLacksError(f"NVML knows no device {uuid}: see `nvidia-smi -L` on this host")
        yield NvmlMeter(nvml, handle)
