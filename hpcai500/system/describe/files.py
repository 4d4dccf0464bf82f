"""Small files of /proc and /sys: absent, unreadable or refusing to be read, what they would say is unknown."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> str | None:
    """Content of `path` without the white space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The whole number in `path`; None where there is none."""
    text = read(path)
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def link_name(path: Path) -> str | None:
    """Last part of what the link `path` leads to: the name of a driver, the address of a device."""
    try:
        return path.readlink().name
    except OSError:
        return None


def folders(parent: Path, pattern: str) -> list[Path]:
    """What matches `pattern` in `parent`, numbers in their order: node2 comes before node10."""
    return sorted(
        parent.glob(pattern), key=lambda path: [int(part) if part.isdecimal() else part for part in _parts(path)]
    )


def _parts(path: Path) -> list[str]:
    return re.split(r"(\d+)", path.name)


def chosen(text: str | None) -> str | None:
    """`always [madvise] never` -> `madvise`."""
    return text[text.index("[") + 1 : text.index("]")] if text and "[" in text else text


def bytes_of(text: str) -> int | None:
    """`32K`, `1.5 MiB`, `512 kB`, `16 GB` (as lscpu, meminfo and dmidecode write powers of two) in bytes."""
    found = re.fullmatch(r"([\d.]+)\s*([KMGTP]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        return None
    power = " KMGTP".index(found.group(2).upper() or " ")
    return round(float(found.group(1)) * float(1024**power))
