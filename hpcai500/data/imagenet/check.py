"""Reads every file of an image set and says whether it can be trained on."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcai500.data.imagenet.content_fingerprint import ContentDigest, store_content_fingerprint
from hpcai500.data.imagenet.file_check import FileCheck, Verdict, check_file
from hpcai500.data.imagenet.image_index import ImageIndex, Split
from hpcai500.data.imagenet.listing import load_index
from hpcai500.data.imagenet.seek_index import FoundIndex, SeekCounts, find_seek_index
from hpcai500.data.staging.reading import require_all_files
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent

# Upper bounds, included; larger ones are counted under None.
PIXEL_BOUNDS = tuple(2**k for k in range(10, 27))
BYTE_BOUNDS = tuple(2**k for k in range(10, 27))
_FILES_PER_TASK = 16


@dataclass(frozen=True)
class Finding:
    """A file that deserves a look: its path relative to the root, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class ClassCount:
    """Images of one class in each split."""

    name: str
    train: int
    val: int


@dataclass(frozen=True)
class SeekCheck:
    """A seek index, and how many files it has true points of, does not know, or says of what is not so."""

    path: Path
    counts: SeekCounts


@dataclass(frozen=True)
class CheckReport:
    """What a check of all files found.

    `broken` files cannot be decoded: a run that meets one ends. `damaged` ones decode with warnings, `odd` ones are no
    JPEG but work, only slower. `seek_index` is what a seek index turned out to be, None where there is none that can be
    used. `kinds` counts "grey", "colour", "cmyk" (JPEG) and "other". Histograms map an upper
    bound (pixels, bytes; None: beyond the last) to files. `content_fingerprint` is None when a file is broken.
    """

    root: Path
    fingerprint: str
    content_fingerprint: str | None
    classes: tuple[ClassCount, ...]
    train_samples: int
    val_samples: int
    classes_absent_in_val: tuple[str, ...]
    broken: tuple[Finding, ...]
    damaged: tuple[Finding, ...]
    odd: tuple[str, ...]
    kinds: dict[str, int]
    pixel_histogram: dict[int | None, int]
    byte_histogram: dict[int | None, int]
    ignored_files: int
    total_bytes: int
    seconds: float
    seek_index: SeekCheck | None = None

    @property
    def passed(self) -> bool:
        """Whether every file can be trained on."""
        return not self.broken

    @property
    def bytes_per_second(self) -> float:
        """Rate of reading and decoding together."""
        return self.total_bytes / max(self.seconds, 1e-9)


def check_images(root: Path | str, *, workers: int | None = None, progress: Tracker = silent) -> CheckReport:
    """Read and fully decode every file of the set at `root`, in `workers` threads (default: one a core of this job).

    The set is listed afresh, whatever is cached. When no file is broken, the content fingerprint is kept for the
    records of later runs (`load_content_fingerprint`). Raises DataError when the layout is not as expected.
    """
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise DataError(f"cannot check with {workers} threads: --workers must be at least 1")
    index = load_index(root, refresh=True, progress=progress)
    require_all_files(index.root, len(index.train) + len(index.val))
    seek_index = find_seek_index(index.root)
    start_seconds = time.monotonic()
    tally = _Tally()
    with progress(len(index.train) + len(index.val), "checking images", "images") as bar:
        for checks in _check_in_order(index, seek_index, workers):
            for check in checks:
                tally.add(check)
            bar.advance(len(checks))
    report = tally.report(index, seek_index, time.monotonic() - start_seconds)
    if report.content_fingerprint is not None:
        store_content_fingerprint(index, report.content_fingerprint)
    return report


def _check_in_order(index: ImageIndex, seek_index: FoundIndex | None, workers: int) -> Iterator[list[FileCheck]]:
    """Yield the checks of all files in the index's order; a bounded window of tasks keeps memory flat."""

    def check_files(paths: tuple[str, ...]) -> list[FileCheck]:
        return [check_file(index.root, path, seek_index.index if seek_index else None) for path in paths]

    pending: deque[Future[list[FileCheck]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="check")
    try:
        for split in index.splits:
            for start in range(0, len(split), _FILES_PER_TASK):
                pending.append(pool.submit(check_files, split.paths[start : start + _FILES_PER_TASK]))
                if len(pending) == 4 * workers:
                    yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Tally:
    def __init__(self) -> None:
        self._digest = ContentDigest()
        self._broken: list[Finding] = []
        self._damaged: list[Finding] = []
        self._odd: list[str] = []
        self._kinds: Counter[str] = Counter()
        self._pixels: Counter[int | None] = Counter()
        self._bytes: Counter[int | None] = Counter()
        self._total_bytes = 0
        self._seek = SeekCounts()

    def add(self, check: FileCheck) -> None:
        self._seek += check.seek
        self._total_bytes += check.size_bytes
        self._bytes[_bound(check.size_bytes, BYTE_BOUNDS)] += 1
        if check.sha256 is not None:
            self._digest.add(check.path, check.sha256)
        if check.verdict is Verdict.BROKEN:
            self._broken.append(Finding(check.path, check.reason))
            return
        if check.verdict is Verdict.DAMAGED:
            self._damaged.append(Finding(check.path, check.reason))
        if check.kind == "other":
            self._odd.append(check.path)
        self._kinds[check.kind] += 1
        self._pixels[_bound(check.pixels, PIXEL_BOUNDS)] += 1

    def report(self, index: ImageIndex, seek_index: FoundIndex | None, seconds: float) -> CheckReport:
        train, val = (_counts(split, len(index.classes)) for split in index.splits)
        return CheckReport(
            root=index.root,
            fingerprint=index.fingerprint,
            content_fingerprint=None if self._broken else self._digest.hexdigest(),
            classes=tuple(map(ClassCount, index.classes, train, val)),
            train_samples=len(index.train),
            val_samples=len(index.val),
            classes_absent_in_val=index.classes_absent_in_val,
            broken=tuple(self._broken),
            damaged=tuple(self._damaged),
            odd=tuple(self._odd),
            kinds=dict(sorted(self._kinds.items())),
            pixel_histogram={bound: self._pixels[bound] for bound in (*PIXEL_BOUNDS, None)},
            byte_histogram={bound: self._bytes[bound] for bound in (*BYTE_BOUNDS, None)},
            ignored_files=index.ignored_files,
            total_bytes=self._total_bytes,
            seconds=seconds,
            seek_index=SeekCheck(seek_index.path, self._seek) if seek_index else None,
        )


def _bound(value: int, bounds: tuple[int, ...]) -> int | None:
    return next((bound for bound in bounds if value <= bound), None)


def _counts(split: Split, classes: int) -> list[int]:
    counts: list[int] = np.bincount(split.labels, minlength=classes).tolist()
    return counts
