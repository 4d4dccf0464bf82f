"""Reads a bounded, random part of a data set as cold as the system lets, with as many threads as a run has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_READ_SECONDS, _CHECK_SECONDS = 4.0, 3.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """A part of a file, or all of it."""

    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Sample:
    """What of a data set one rank reads.

    Attributes:
        pieces: in the order of reading.
        sample_bytes: what one image or one climate field takes of the storage, on average.
        checks: each says of one file what is wrong with it, None where nothing is.
        what: the files, for people.
        pixels: of a sample, where it is the data that says how many.
    """

    pieces: Sequence[Piece]
    sample_bytes: float
    checks: Sequence[Callable[[], str | None]]
    what: str
    pixels: int | None = None


@dataclass(frozen=True)
class Reading:
    """What one rank has read.

    Attributes:
        size_bytes: read within `seconds`.
        seconds: from the first to the last read.
        sample_bytes: as in Sample.
        threads: that read.
        checked: files that were looked into.
        broken: what is wrong with some of them.
        what: the files, for people.
    """

    size_bytes: int
    seconds: float
    sample_bytes: float
    threads: int
    checked: int
    broken: tuple[str, ...]
    what: str


def read(sample: Sample, threads: int, together: Callable[[], None] = lambda: None) -> Reading:
    """Read `sample` by `threads`, for some seconds at most, then look into its files.

    Args:
        sample: what.
        threads: how many read at a time.
        together: called right before reading: all ranks begin at once, as in training.

    Raises:
        OSError: a file cannot be read.
    """
    together()
    start = time.perf_counter()
    sizes = _in_time(_read_cold, sample.pieces, threads, _READ_SECONDS)
    seconds = max(time.perf_counter() - start, 1e-9)
    reasons = _in_time(lambda check: check(), sample.checks, threads, _CHECK_SECONDS)
    broken = tuple(reason for reason in reasons if reason)
    return Reading(sum(sizes), seconds, sample.sample_bytes, threads, len(reasons), broken, sample.what)


def _in_time(work: Callable[[Item], Result], items: Iterable[Item], threads: int, seconds: float) -> list[Result]:
    """Results of the items that were begun before the time was over."""
    limit = time.perf_counter() + seconds
    late = object()

    def one(item: Item) -> Result | object:
        return work(item) if time.perf_counter() < limit else late

    with ThreadPoolExecutor(threads) as pool:
        return [result for result in pool.map(one, items) if result is not late]  # type: ignore[misc]


def _read_cold(piece: Piece) -> int:
    descriptor = os.open(piece.path, os.O_RDONLY)
    try:
        # Pages that this host holds of it; what a server keeps in its memory is out of reach.
        os.posix_fadvise(descriptor, piece.offset, piece.size_bytes, os.POSIX_FADV_DONTNEED)
        return len(os.pread(descriptor, piece.size_bytes, piece.offset))
    finally:
        os.close(descriptor)
