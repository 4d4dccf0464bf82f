"""The commands `hpcai500 data make|check|index ic`."""

from __future__ import annotations

from typing import Any

from hpcai500.data.imagenet.check import as_document, check_images, report_lines
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.seek_index import SeekIndexReport, make_seek_index
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.errors import ExitCode
from hpcai500.files import as_utf8
from hpcai500.job_options import IndexOptions, MakeOptions, SetOptions
from hpcai500.progress import track
from hpcai500.streams import show
from hpcai500.text import size, text_table

# The most unindexed files that are listed; --json lists all.
_LISTED = 5


def make(chosen: MakeOptions[SyntheticSet]) -> int:
    written = make_images(chosen.dir, chosen.wanted, workers=chosen.workers, progress=track)
    found = load_index(chosen.dir, progress=track)
    document = {
        "fingerprint": found.fingerprint,
        "samples": {"train": len(found.train), "val": len(found.val)},
        "classes": len(found.classes),
        "written": written,
    }
    sentence = (
        f"{chosen.dir}: {len(found.train)} training and {len(found.val)} validation images of "
        f"{len(found.classes)} classes ({written} written)"
    )
    show(document if chosen.as_json else sentence, indent=1)
    return ExitCode.PASS


def check(chosen: SetOptions) -> int:
    report = check_images(chosen.dir, workers=chosen.workers, progress=track)
    show(as_document(report) if chosen.as_json else report_lines(report), indent=1)
    return ExitCode.PASS if report.passed else ExitCode.USAGE


def index(chosen: IndexOptions) -> int:
    report = make_seek_index(chosen.dir, threads=chosen.threads, in_cache=chosen.cache, progress=track)
    show(_index_document(report) if chosen.as_json else _index_lines(report), indent=1)
    return ExitCode.PASS


def _index_document(report: SeekIndexReport) -> dict[str, Any]:
    """Bytes and seconds are plain numbers; `share` is of the data's bytes."""
    return {
        "index": as_utf8(report.path),
        "files": report.files,
        "with_points": report.with_points,
        "without_points": report.without_points,
        "unreadable": [{"path": as_utf8(path), "reason": reason} for path, reason in report.unreadable],
        "data_bytes": report.data_bytes,
        "index_bytes": report.index_bytes,
        "share": report.share,
        "seconds": report.seconds,
    }


def _index_lines(report: SeekIndexReport) -> list[str]:
    without = ", ".join(f"{count} {reason}" for reason, count in report.without_points.items())
    rows = [
        ("index", str(report.path)),
        ("images", f"{report.files}, {report.with_points} with seek points"),
        ("without", without or "none"),
        ("data", size(report.data_bytes)),
        ("size of the index", f"{size(report.index_bytes)}, {100 * report.share:.1f} % of the data"),
        ("time", f"{report.seconds:.1f} s, {size(int(report.data_bytes / max(report.seconds, 1e-9)))}/s"),
    ]
    unreadable = list(report.unreadable[:_LISTED])
    if len(report.unreadable) > _LISTED:
        unreadable.append((f"and {len(report.unreadable) - _LISTED} more", "--json lists all"))
    return [*text_table("", rows), *(["", *text_table("not in the index", unreadable)] if unreadable else [])]
