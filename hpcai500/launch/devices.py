"""The accelerators that processes of this one may see, by the names that CUDA gives them, without a driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> list[str]:
    """Their names: those that the variable lists, or the numbers of all that the host has."""
    named = environment.get(VARIABLE)
    if named is not None:
        return [name for word in named.split(",") if (name := word.strip()) and name != "-1"]
    numbers = (device.name.removeprefix("nvidia") for device in folder.glob("nvidia*"))
    return sorted(filter(str.isdecimal, numbers), key=int)
