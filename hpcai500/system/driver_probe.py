"""Asks the NVIDIA driver's library what it has; run as a script, in a process of its own.

The library starts threads and keeps devices open, after which a process may not fork; and a broken driver may end the
process that asks.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping


def ask(name: str) -> Mapping[str, object]:
    """Version of the driver's library `name`, return code of cuInit, and number of devices."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return {"loaded": False, "reason": str(error)}
    version, devices = ctypes.c_int(), ctypes.c_int()
    # Works before cuInit, and without a device.
    known = library.cuDriverGetVersion(ctypes.byref(version)) == 0
    code = int(library.cuInit(0))
    counted = code == 0 and library.cuDeviceGetCount(ctypes.byref(devices)) == 0
    return {
        "loaded": True,
        "version": version.value if known else None,
        "code": code,
        "devices": devices.value if counted else None,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask(sys.argv[1])))
