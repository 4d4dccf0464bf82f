"""Checks an image set: reads and decodes every file, and reports whether it can be trained on.

The report is shown to people, and as the JSON document of `data check ic --json`.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500._core import JpegError, SeekIndex, check_jpeg, probe_jpeg, seek_points
from hpcai500.data.derived import workers_or_all
from hpcai500.data.imagenet.index import (
    ContentDigest,
    ImageContent,
    ImageIndex,
    decode_odd,
    left_out_line,
    load_index,
    over_files,
    read_image,
    store_content,
)
from hpcai500.data.imagenet.seek_index import NO_COUNTS, FoundIndex, SeekCounts, find_seek_index
from hpcai500.data.staged import require_whole
from hpcai500.files import as_utf8
from hpcai500.progress import Tracker, silent
from hpcai500.text import text_table

# ----------------------------------------------------------------------------------------------------
# One file: whether it can be trained on, by decoding all of it as a run would.


_KIND_OF_COMPONENTS = {1: "grey", 3: "colour", 4: "cmyk"}


class Verdict(Enum):
    """Result of a check. A good JPEG is one that libjpeg-turbo's strict mode takes, up to its end marker.

    A damaged file decodes, with warnings (a marker out of place, a lost block, a second header).
    """

    GOOD = "good"
    DAMAGED = "damaged"
    BROKEN = "broken"


@dataclass(frozen=True)
class FileCheck:
    """The check of one file. `reason` is empty for a good one; `sha256` is None if it cannot be read.

    `kind` is "grey", "colour" or "cmyk" for a JPEG, "other" for another format, "unknown" for a broken file. `seek` is
    the check of its entry in a seek index.
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
    """Read and fully decode `root / path`, and check its entry in a seek `index`.

    A bad file raises nothing: the result says what is wrong with it.
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
    """Kind, pixels and warnings. Raises ValueError, with the reason, if a run cannot use the file."""
    try:
        width, height, warnings = check_jpeg(content)
    except JpegError as error:
        # Pillow decodes these files, as in the loader.
        if error.kind != "unsupported":
            raise
        height, width, _ = decode_odd(content).shape
        return "other", width * height, 0
    components = probe_jpeg(content).components
    return _KIND_OF_COMPONENTS.get(components, f"{components} components"), width * height, warnings


def _compare(index: SeekIndex, content: bytes) -> SeekCounts:
    """Compare the index entry of a file with seek points computed from the file."""
    try:
        found = index.find(content)
    except ValueError:
        return SeekCounts(false=1)
    if found is None:
        return SeekCounts(unknown=1)
    is_true = found == (seek_points(content) or b"")
    return SeekCounts(used=1 if is_true and found else 0, false=0 if is_true else 1)


# ----------------------------------------------------------------------------------------------------
# The whole set.


# Upper bounds, included; larger ones are counted under None.
PIXEL_BOUNDS = tuple(2**k for k in range(10, 27))
BYTE_BOUNDS = tuple(2**k for k in range(10, 27))


@dataclass(frozen=True)
class Finding:
    """A file with a problem: its path relative to the root, and the reason."""

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
    """A seek index, and how many files have a correct entry, none, or a wrong one."""

    path: Path
    counts: SeekCounts


@dataclass(frozen=True)
class CheckReport:
    """What a check of all files found.

    `broken` files cannot be decoded and end a run. `damaged` ones decode with warnings; `odd` ones are not JPEG, and
    only slower. `seek_index` is None if no seek index can be used. `kinds` counts "grey", "colour", "cmyk"
    (JPEG) and "other". Histograms map an upper bound (pixels, bytes; None: beyond the last) to files.
    `content_fingerprint` is None when a file is broken. `left_out` is that of the index.
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
    left_out: Mapping[str, int]
    total_bytes: int
    seconds: float
    seek_index: SeekCheck | None = None

    @property
    def passed(self) -> bool:
        return not self.broken

    @property
    def bytes_per_second(self) -> float:
        """Rate of reading and decoding together."""
        return self.total_bytes / max(self.seconds, 1e-9)


def check_images(root: Path | str, *, workers: int | None = None, progress: Tracker = silent) -> CheckReport:
    """Read and fully decode every file of the set at `root`, in `workers` threads (default: one per core of this job).

    The set is listed again, ignoring the cache. If no file is broken, the content fingerprint is kept for the records
    of later runs (`load_content_fingerprint`). Raises DataError if the layout is not as expected.
    """
    workers = workers_or_all(workers, work="check", kind="threads")
    index = load_index(root, refresh=True, progress=progress)
    require_whole(index.root)
    seek_index = find_seek_index(index.root)

    def check_path(path: str) -> FileCheck:
        return check_file(index.root, path, seek_index.index if seek_index else None)

    start_seconds = time.monotonic()
    totals = _Totals(index)
    with progress(len(index.train) + len(index.val), "checking images", "images") as bar:
        for checks in over_files(index, check_path, workers, name="check"):
            for check in checks:
                totals.add(check)
            bar.advance(len(checks))
    if (content := totals.content()) is not None:
        store_content(index, content)
    return totals.report(index, seek_index, time.monotonic() - start_seconds)


class _Totals:
    def __init__(self, index: ImageIndex) -> None:
        self._digest = ContentDigest(index)
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

    def content(self) -> ImageContent | None:
        """What all files hold; None if one is broken."""
        return None if self._broken else self._digest.content()

    def report(self, index: ImageIndex, seek_index: FoundIndex | None, seconds: float) -> CheckReport:
        train, val = (np.bincount(split.labels, minlength=len(index.classes)).tolist() for split in index.splits)
        return CheckReport(
            root=index.root,
            fingerprint=index.fingerprint,
            content_fingerprint=content.fingerprint if (content := self.content()) else None,
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
            left_out=index.left_out,
            total_bytes=self._total_bytes,
            seconds=seconds,
            seek_index=SeekCheck(seek_index.path, self._seek) if seek_index else None,
        )


def _bound(value: int, bounds: tuple[int, ...]) -> int | None:
    return next((bound for bound in bounds if value <= bound), None)


# ----------------------------------------------------------------------------------------------------
# The report, for people and for programs.


# The most files and classes that are listed; --json lists all.
_LISTED = 20


def as_document(report: CheckReport) -> dict[str, Any]:
    """The report as `data check --json` prints it. Bytes, seconds and rates are plain numbers."""

    def histogram(counts: dict[int | None, int]) -> list[dict[str, int | None]]:
        return [{"up_to": bound, "files": files} for bound, files in counts.items()]

    seek = None
    if check := report.seek_index:
        used, unknown, false = check.counts.used, check.counts.unknown, check.counts.false
        seek = {"path": as_utf8(check.path), "with_points": used, "unknown": unknown, "false": false}
    return {
        "verdict": "pass" if report.passed else "fail",
        "root": as_utf8(report.root),
        "fingerprint": report.fingerprint,
        "content_fingerprint": report.content_fingerprint,
        "samples": {"train": report.train_samples, "val": report.val_samples},
        "classes": len(report.classes),
        "per_class": [{"name": as_utf8(c.name), "train": c.train, "val": c.val} for c in report.classes],
        "classes_absent_in_val": list(map(as_utf8, report.classes_absent_in_val)),
        "broken": [{"path": as_utf8(f.path), "reason": f.reason} for f in report.broken],
        "damaged": [{"path": as_utf8(f.path), "reason": f.reason} for f in report.damaged],
        "not_jpeg": list(map(as_utf8, report.odd)),
        "kinds": report.kinds,
        "pixel_histogram": histogram(report.pixel_histogram),
        "byte_histogram": histogram(report.byte_histogram),
        "ignored_files": sum(report.left_out.values()),
        "left_out": dict(report.left_out),
        "total_bytes": report.total_bytes,
        "seek_index": seek,
        "seconds": report.seconds,
        "bytes_per_second": report.bytes_per_second,
    }


def report_lines(report: CheckReport) -> list[str]:
    """The report: aligned columns for people, and a last line with the verdict."""
    sections = [text_table("", [("set", str(report.root)), *_summary(report)])]
    if len(report.classes) <= _LISTED:
        sections.append(
            text_table("images per class", [(c.name, f"{c.train} train, {c.val} val") for c in report.classes])
        )
    sections.append(text_table("files by size in pixels", _histogram(report.pixel_histogram)))
    sections.append(text_table("files by size in bytes", _histogram(report.byte_histogram)))
    sections.append(text_table("damaged, but decoded", _findings(report.damaged)))
    sections.append(text_table("broken", _findings(report.broken)))
    sections += [[f"note: {note}"] for note in _notes(report)]
    verdict = "PASS: every file can be trained on" if report.passed else f"FAIL: broken files: {len(report.broken)}"
    return [line for section in filter(None, sections) for line in (*section, "")] + [verdict]


def _summary(report: CheckReport) -> list[tuple[str, str]]:
    counts = [c.train for c in report.classes]
    least, most = min(counts), max(counts)
    return [
        ("images", f"{report.train_samples} train, {report.val_samples} val"),
        ("classes", f"{len(counts)} of {least if least == most else f'{least} to {most}'} training images"),
        ("bytes", f"{report.total_bytes}"),
        ("kinds", ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())),
        ("read and decoded", f"{report.bytes_per_second / 1e6:.1f} MB/s in {report.seconds:.1f} s"),
        *([("seek index", f"{report.seek_index.counts.used} images with seek points")] if report.seek_index else []),
        ("fingerprint", report.fingerprint),
        ("content fingerprint", report.content_fingerprint or "none: a file is broken"),
    ]


def _histogram(counts: dict[int | None, int]) -> list[tuple[str, str]]:
    return [
        (f"up to {bound}" if bound is not None else "larger", str(files)) for bound, files in counts.items() if files
    ]


def _findings(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    rows = [(finding.path, finding.reason) for finding in findings[:_LISTED]]
    if len(findings) > _LISTED:
        rows.append((f"and {len(findings) - _LISTED} more", "--json lists all"))
    return rows


def _notes(report: CheckReport) -> list[str]:
    notes = []
    if report.classes_absent_in_val:
        names = ", ".join(report.classes_absent_in_val[:_LISTED])
        notes.append(
            f"val/ has no folder for {len(report.classes_absent_in_val)} of the classes, so quality is measured on "
            f"the others only: {names}"
        )
    if report.odd:
        notes.append(
            f"{len(report.odd)} files are not JPEG and are decoded by Pillow, which is slower: {report.odd[0]}"
        )
    seek = report.seek_index
    if seek and (seek.counts.unknown or seek.counts.false):
        notes.append(
            f"the seek index {seek.path} lacks {seek.counts.unknown} files, and is wrong for "
            f"{seek.counts.false}: rebuild it by `hpcai500 data index ic {report.root}`"
        )
    if report.left_out:
        notes.append(left_out_line(report.left_out))
    return notes
