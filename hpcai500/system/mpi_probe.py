"""Asks an MPI library for its name; run as a script, because a process that has loaded one may not load another."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

_LONGEST_VERSION = 8192


def ask(names: Sequence[str]) -> str:
    """The version text of the first of the libraries `names` that can be loaded; "" if none can."""
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
