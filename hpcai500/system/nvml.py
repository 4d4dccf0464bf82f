"""NVIDIA's management library, through its own Python binding (nvidia-ml-py, imported as pynvml): opened and closed.

NVML answers in this process, so a driver that hangs hangs the caller: who cannot wait asks in a process of its own, as
`describe/devices.py` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

from hpcai500.errors import EnvironmentLacksError


class Nvml(Protocol):
    """The module pynvml, or what stands for it in a test: its functions and constants, by their own names.

    Attributes:
        NVMLError: what its functions raise where a device or driver cannot answer.
    """

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


def load_binding() -> Nvml:
    """The module pynvml; importing it loads no library yet.

    Raises:
        EnvironmentLacksError: it is not installed.
    """
    try:
        # Some 7,000 lines: only who asks for devices pays for them.
        return cast("Nvml", importlib.import_module("pynvml"))
    except ImportError as error:
        raise EnvironmentLacksError("NVML's binding is not installed: pip install nvidia-ml-py") from error


def ask_nvml(nvml: Nvml, function: str, *arguments: Any) -> Any:
    """What `function` answers; None where this device, driver or binding cannot tell."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


@contextmanager
def open_nvml(binding: Nvml | None = None) -> Iterator[Nvml]:
    """NVML, ready for questions until the block ends. Blocks may lie in each other: the library counts.

    Args:
        binding: the module pynvml; None imports it.

    Raises:
        EnvironmentLacksError: no binding, no driver, or a driver that does not work; the message says which.
    """
    nvml = load_binding() if binding is None else binding
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise EnvironmentLacksError(f"NVML does not answer ({error}): see `nvidia-smi` on this host") from error
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()
