"""Decides whether one file can be trained on, by decoding all of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcai500 import _core
from hpcai500.data.odd_files import decode_odd

_JPEG_START = b"\xff\xd8"
# Frame headers: SOF0 ... SOF15 without DHT (C4), JPG (C8) and DAC (CC).
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_COLOURS_OF_COMPONENTS = {1: "grey", 3: "colour", 4: "cmyk"}


class Verdict(Enum):
    """What became of a file."""

    GOOD = "good"
    DAMAGED = "damaged"
    """Decodes, with warnings: trailing garbage, a corrupt block."""
    BROKEN = "broken"


@dataclass(frozen=True)
class FileCheck:
    """What one file turned out to be. `reason` is empty for a good one; `sha256` is None when it cannot be read.

    `kind` is "grey", "colour" or "cmyk" for a JPEG, "other" for a file of another format.
    """

    path: str
    verdict: Verdict
    reason: str
    kind: str
    pixels: int
    size_bytes: int
    sha256: bytes | None


def check_file(root: Path, path: str) -> FileCheck:
    """Read and fully decode `root / path`. Raises nothing for a bad file: the result says what is wrong with it."""
    try:
        content = (root / path).read_bytes()
    except OSError as error:
        return FileCheck(path, Verdict.BROKEN, f"cannot be read: {error.strerror or error}", "other", 0, 0, None)
    sha256 = hashlib.sha256(content).digest()
    is_jpeg = content.startswith(_JPEG_START)
    kind = _jpeg_kind(content) if is_jpeg else "other"
    try:
        width, height, warnings = _decode_jpeg(content) if is_jpeg else _decode_other(content)
    except ValueError as error:
        return FileCheck(path, Verdict.BROKEN, str(error), kind, 0, len(content), sha256)
    verdict, reason = Verdict.GOOD, ""
    if warnings:
        verdict, reason = Verdict.DAMAGED, f"{warnings} decoder warning{'s' if warnings > 1 else ''}"
    return FileCheck(path, verdict, reason, kind, width * height, len(content), sha256)


def _decode_jpeg(content: bytes) -> tuple[int, int, int]:
    width, height, warnings = _core.check_jpeg(content)
    return width, height, warnings


def _decode_other(content: bytes) -> tuple[int, int, int]:
    if not content:
        raise ValueError("empty file")
    height, width, _ = decode_odd(content).shape
    return width, height, 0


def _jpeg_kind(content: bytes) -> str:
    """Read the number of colour components from the frame header, without decoding."""
    at = 2
    while at + 9 < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker in _FRAME_MARKERS:
            return _COLOURS_OF_COMPONENTS.get(content[at + 9], "colour")
        # 0xFF may repeat as filling before a marker.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return "colour"
