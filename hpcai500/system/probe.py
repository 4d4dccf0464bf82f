"""Query a system library in a separate process, because it may crash the process or leave it unusable.

`probe.py driver LIBRARY`, `probe.py mpi LIBRARY…`, `python -m hpcai500.system.probe nvml`. The first two need only
Python itself.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping

_LONGEST_VERSION = 8192


def ask_driver(name: str) -> str:
    """Version of the NVIDIA driver's library `name`, return code of cuInit, and number of devices, as JSON.

    The library starts threads and keeps devices open, so that the process must not fork afterwards.
    """
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return json.dumps({"loaded": False, "reason": str(error)})
    version, devices = ctypes.c_int(), ctypes.c_int()
    # Works before cuInit, and without a device.
    known = library.cuDriverGetVersion(ctypes.byref(version)) == 0
    code = int(library.cuInit(0))
    counted = code == 0 and library.cuDeviceGetCount(ctypes.byref(devices)) == 0
    found = {
        "loaded": True,
        "version": version.value if known else None,
        "code": code,
        "devices": devices.value if counted else None,
    }
    return json.dumps(found)


def ask_mpi(*names: str) -> str:
    """The version text of the first of the libraries `names` that can be loaded; "" if none can.

    A process that has loaded one MPI must not load another.
    """
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        # One of the few calls that MPI allows before MPI_Init.
        text, length = ctypes.create_string_buffer(_LONGEST_VERSION), ctypes.c_int()
        library.MPI_Get_library_version(text, ctypes.byref(length))
        return text.value.decode(errors="replace")
    return ""


def ask_nvml() -> str:
    """NVML's data for the devices, as JSON; on failure the process exits with the reason on stderr."""
    from hpcai500.errors import EnvironmentLacksError
    from hpcai500.system.devices import open_nvml, read_nvml

    try:
        with open_nvml() as nvml:
            return json.dumps(read_nvml(nvml))
    except EnvironmentLacksError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


_QUESTIONS: Mapping[str, Callable[..., str]] = {"driver": ask_driver, "mpi": ask_mpi, "nvml": ask_nvml}

if __name__ == "__main__":
    sys.stdout.write(_QUESTIONS[sys.argv[1]](*sys.argv[2:]))
