"""What is done of a year that is being repacked: a line for each range of images whose values are on the disk.

A line is written after its images are, so that a repacking killed at any time goes on behind the last whole line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.data.climate.values.moments import from_document
from hpcai500.data.climate.values.scan import ImageScan
from hpcai500.files import write_atomically

_FORMAT = "hpcai500 repack 1"


@dataclass(frozen=True)
class WrittenRange:
    """Images from `first` on that are on the disk: their scans, and the stored size and mask of each compressed one."""

    first: int
    scans: tuple[ImageScan, ...]
    chunks: tuple[tuple[int, int], ...] = ()


class Journal:
    """The ranges that are done of one year, by their first image; `purpose` is what they were done for."""

    def __init__(self, path: Path, purpose: dict[str, Any]) -> None:
        """Read the journal at `path`; one of another purpose counts as none."""
        self._path = path
        self._purpose = json.loads(json.dumps({"format": _FORMAT, **purpose}))
        self.done: dict[int, WrittenRange] = {}
        self._whole_bytes = 0
        self.exists = self._read()

    def start(self) -> None:
        """Begin anew: nothing is done. Raises OSError when the disk is full."""
        line = _line(self._purpose)
        write_atomically(self._path, line)
        self._whole_bytes = len(line)
        self.done, self.exists = {}, True

    def add(self, written: WrittenRange) -> None:
        """Note that `written` is on the disk, and wait until this is. Raises OSError when the disk is full."""
        images = [{"sha256": scan.digest.hex(), **scan.statistics.document()} for scan in written.scans]
        line = _line({"first": written.first, "images": images, "chunks": written.chunks})
        with self._path.open("r+b") as stream:
            # Behind a torn line nothing may be appended.
            stream.truncate(self._whole_bytes)
            stream.seek(self._whole_bytes)
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        self._whole_bytes += len(line)
        self.done[written.first] = written

    def scans(self) -> tuple[ImageScan, ...]:
        """Return the scans of all images that are done, in order."""
        return tuple(scan for first in sorted(self.done) for scan in self.done[first].scans)

    def _read(self) -> bool:
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return False
        documents = _whole(lines)
        if not documents or documents[0] != self._purpose:
            return False
        try:
            self.done = {written.first: written for written in map(_written, documents[1:])}
        except (KeyError, TypeError, ValueError):
            return False
        self._whole_bytes = sum(map(len, lines[: len(documents)]))
        return True


def _whole(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    documents = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        documents.append(document)
    return documents


def _written(document: dict[str, Any]) -> WrittenRange:
    scans = tuple(ImageScan(bytes.fromhex(image["sha256"]), from_document(image)) for image in document["images"])
    return WrittenRange(document["first"], scans, tuple((size, mask) for size, mask in document["chunks"]))


def _line(document: dict[str, Any]) -> bytes:
    return (json.dumps(document) + "\n").encode()
