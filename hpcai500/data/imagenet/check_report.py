"""A check of an image set, shown to people and to programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcai500.data.imagenet.check import CheckReport, Finding, SeekCheck
from hpcai500.data.text_table import table

# Files and classes listed for people; --json lists all.
_LISTED = 20


def as_document(report: CheckReport) -> dict[str, Any]:
    """Return the report as `data check --json` prints it. Bytes, seconds and rates are plain numbers."""

    def histogram(counts: dict[int | None, int]) -> list[dict[str, int | None]]:
        return [{"up_to": bound, "files": files} for bound, files in counts.items()]

    return {
        "verdict": "pass" if report.passed else "fail",
        "root": str(report.root),
        "fingerprint": report.fingerprint,
        "content_fingerprint": report.content_fingerprint,
        "samples": {"train": report.train_samples, "val": report.val_samples},
        "classes": len(report.classes),
        "per_class": [{"name": c.name, "train": c.train, "val": c.val} for c in report.classes],
        "classes_absent_in_val": list(report.classes_absent_in_val),
        "broken": [{"path": f.path, "reason": f.reason} for f in report.broken],
        "damaged": [{"path": f.path, "reason": f.reason} for f in report.damaged],
        "not_jpeg": list(report.odd),
        "kinds": report.kinds,
        "pixel_histogram": histogram(report.pixel_histogram),
        "byte_histogram": histogram(report.byte_histogram),
        "ignored_files": report.ignored_files,
        "total_bytes": report.total_bytes,
        "seek_index": _seek_document(report.seek_index),
        "seconds": report.seconds,
        "bytes_per_second": report.bytes_per_second,
    }


def _seek_document(check: SeekCheck | None) -> dict[str, Any] | None:
    if check is None:
        return None
    counts = check.counts
    return {"path": str(check.path), "with_points": counts.used, "unknown": counts.unknown, "false": counts.false}


def report_lines(report: CheckReport) -> list[str]:
    """The report: aligned columns for people, and a last line with the verdict."""
    sections = [table("", [("set", str(report.root)), *_summary(report)])]
    if len(report.classes) <= _LISTED:
        sections.append(table("images per class", [(c.name, f"{c.train} train, {c.val} val") for c in report.classes]))
    sections.append(table("files by size in pixels", _histogram(report.pixel_histogram)))
    sections.append(table("files by size in bytes", _histogram(report.byte_histogram)))
    sections.append(table("damaged, but decoded", _findings(report.damaged)))
    sections.append(table("broken", _findings(report.broken)))
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
        notes.append(f"{len(report.odd)} files are no JPEG and are decoded by Pillow, slower: {report.odd[0]}")
    seek = report.seek_index
    if seek and (seek.counts.unknown or seek.counts.false):
        notes.append(
            f"the seek index {seek.path} does not know {seek.counts.unknown} files, and is false for "
            f"{seek.counts.false}: `hpcai500 data index ic {report.root}` makes it anew"
        )
    if report.ignored_files:
        notes.append(f"{report.ignored_files} files in class folders are no images by their name and are ignored")
    return notes
