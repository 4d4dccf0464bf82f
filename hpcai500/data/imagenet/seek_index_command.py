"""`hpcai500 data index ic`: options, and how the result is shown."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hpcai500.data.imagenet.seek_index_making import SeekIndexReport, make_seek_index
from hpcai500.data.text_table import size, table
from hpcai500.errors import ExitCode
from hpcai500.progress import track
from hpcai500.streams import show

# Files listed for people; --json lists all.
_LISTED = 5


def add_indexing(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data index ic`."""
    parser.description = (
        "Read every file, and write beside them a seek index: the places, every few blocks of pixels, where decoding "
        "can begin. It takes about 4 % of the set. Runs find it by themselves and give the same pixels, faster; `data "
        "stage` copies it. The files, and what a record says of the set, stay as they are. An index that is there is "
        "replaced when the new one is whole. Files that were changed later are decoded without it, with a warning: run "
        "the same command again."
    )
    parser.epilog = "Example: hpcai500 data index ic /data/imagenet"
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder with train/ and val/")
    parser.add_argument(
        "--cache", action="store_true", help="keep it in your own cache folder, where DIR cannot be written"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="threads that share the work (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=_run, kept="an index that was there is as it was; the same command begins anew")


def _run(chosen: argparse.Namespace) -> int:
    report = make_seek_index(chosen.dir, threads=chosen.threads, in_cache=chosen.cache, progress=track)
    show(_document(report) if chosen.json else _lines(report), indent=1)
    return ExitCode.PASS


def _document(report: SeekIndexReport) -> dict[str, Any]:
    """Bytes and seconds are plain numbers; `share` is of the data's bytes."""
    return {
        "index": str(report.path),
        "files": report.files,
        "with_points": report.with_points,
        "without_points": report.without_points,
        "unreadable": [{"path": path, "reason": reason} for path, reason in report.unreadable],
        "data_bytes": report.data_bytes,
        "index_bytes": report.index_bytes,
        "share": report.share,
        "seconds": report.seconds,
    }


def _lines(report: SeekIndexReport) -> list[str]:
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
    return [*table("", rows), *(["", *table("not in the index", unreadable)] if unreadable else [])]
