"""Asks the NVIDIA driver's library what it has; run as a script, in a process of its own.

The library starts threads and keeps devices open, and a process that has started it may not fork any more; a driver
that is broken can also end the process that asks.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping


def ask(name: str) -> Mapping[str, object]:
    """What the driver's library `name` says: its version, the code of cuInit, the number of devices."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return {"loaded": False, "reason": str(error)}
    version, devices = ctypes.c_int(), ctypes.c_int()
    # This one answers before cuInit, also where no device does.
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
