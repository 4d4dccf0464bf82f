"""Asks an MPI library for its name; run as a script: what loads a library of MPI may not load another one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

_LONGEST_VERSION = 8192


def ask(names: Sequence[str]) -> str:
    """What the first of the libraries `names` that can be loaded says of itself; "" if there is none."""
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


if __name__ == "__main__":
    sys.stdout.write(ask(sys.argv[1:]))
