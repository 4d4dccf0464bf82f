"""Decides whether one file can be trained on, by decoding all of it as a run would."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from hpcai500._core import JpegError, SeekIndex, check_jpeg, probe_jpeg, seek_points
from hpcai500.data.imagenet.image_file import read_image
from hpcai500.data.imagenet.odd_files import decode_odd
from hpcai500.data.imagenet.seek_index import NO_COUNTS, SeekCounts

_KIND_OF_COMPONENTS = {1: "grey", 3: "colour", 4: "cmyk"}


class Verdict(Enum):
    """What became of a file. A damaged one decodes, with warnings (a marker out of place, a lost block)."""

    GOOD = "good"
    DAMAGED = "damaged"
    BROKEN = "broken"


@dataclass(frozen=True)
class FileCheck:
    """What one file turned out to be. `reason` is empty for a good one; `sha256` is None when it cannot be read.

    `kind` is "grey", "colour" or "cmyk" for a JPEG, "other" for another format, "unknown" for a broken file. `seek` is
    what a seek index says of this one file.
    """

    path: str
    verdict: Verdict
    reason: str
    kind: str
    pixels: int
    size_bytes: int
    sha256: bytes | None
    seek: SeekCounts = NO_COUNTS


def check_file(root: Path, path: str, index: SeekIndex | None = None) -> FileCheck:
    """Read and fully decode `root / path`, and compare what a seek `index` says of it.

    Raises nothing for a bad file: the result says what is wrong with it.
    """
    try:
        content = read_image(root / path)
    except OSError as error:
        return FileCheck(path, Verdict.BROKEN, f"unreadable: {error.strerror}", "unknown", 0, 0, None)
    checked = _check(path, content)
    return checked if index is None else replace(checked, seek=_compare(index, content))


def _check(path: str, content: bytes) -> FileCheck:
    sha256 = hashlib.sha256(content).digest()
    try:
        kind, pixels, warnings = _decode(content)
    except ValueError as error:
        return FileCheck(path, Verdict.BROKEN, str(error), "unknown", 0, len(content), sha256)
    if warnings:
        reason = f"{warnings} decoder warning{'s' if warnings > 1 else ''}"
        return FileCheck(path, Verdict.DAMAGED, reason, kind, pixels, len(content), sha256)
    return FileCheck(path, Verdict.GOOD, "", kind, pixels, len(content), sha256)


def _decode(content: bytes) -> tuple[str, int, int]:
    """Return kind, pixels and warnings; raise ValueError with the reason when a run could not use the file."""
    try:
        width, height, warnings = check_jpeg(content)
    except JpegError as error:
        # The loader leaves the same files to Pillow.
        if error.kind != "unsupported":
            raise
        height, width, _ = decode_odd(content).shape
        return "other", width * height, 0
    components = probe_jpeg(content).components
    return _KIND_OF_COMPONENTS.get(components, f"{components} components"), width * height, warnings


def _compare(index: SeekIndex, content: bytes) -> SeekCounts:
    """Whether the index says what is so: the points of a file are computed anew."""
    try:
        found = index.find(content)
    except ValueError:
        return SeekCounts(false=1)
    if found is None:
        return SeekCounts(unknown=1)
    is_true = found == (seek_points(content) or b"")
    return SeekCounts(used=1 if is_true and found else 0, false=0 if is_true else 1)
