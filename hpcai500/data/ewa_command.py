"""`hpcai500 data make|check|anchors|repack|stage ewa`: options, and how results are shown."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcai500.data.climate.checking.check import check_climate
from hpcai500.data.climate.checking.document import as_document
from hpcai500.data.climate.checking.report import report_lines
from hpcai500.data.climate.index import spans
from hpcai500.data.climate.repacking.estimate import Estimate
from hpcai500.data.climate.repacking.file import FILTERS
from hpcai500.data.climate.repacking.repacking import Repacking, RepackReport
from hpcai500.data.ewa_anchors_command import add_anchors
from hpcai500.data.ewa_make_command import add_make
from hpcai500.data.stage_command import add_staging
from hpcai500.data.text_table import size
from hpcai500.data.year_range import year_range
from hpcai500.errors import ExitCode
from hpcai500.progress import track
from hpcai500.streams import say, show

__all__ = ["HELP", "NAME", "add_anchors", "add_check", "add_make", "add_repack", "add_stage"]

NAME = "ewa"
HELP = "Extreme Weather Analytics: climo_YYYY.h5, a year of 16-channel images and their boxes each"


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data check ewa`."""
    parser.description = (
        "Read every image and every box of all years: what is broken, how the files are laid out and what that costs "
        "a run, boxes and classes, mean and deviation of each channel. What is measured is kept for the runs that "
        "follow. Exit code 0: the set can be trained on. 64: it is missing, or has what is listed under broken."
    )
    parser.epilog = "Example: hpcai500 data check ewa /data/extremeweather --years 1979-1989 --json > check.json"
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder with climo_YYYY.h5")
    parser.add_argument(
        "--years", metavar="A-B", type=year_range, help="the training years, whose channels are shown (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    _add_workers(parser)
    parser.set_defaults(run=_check)


def add_repack(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data repack ewa`."""
    parser.description = (
        "Copy the years of SRC to DST so that each image is one chunk of its file. As ExtremeWeather ships, an image "
        "is spread over 4096 compressed chunks that it shares with 45 others: a run that reads images in random order "
        "spends its time inflating. SRC stays as it is. Values, boxes and attributes are the same, and so is the "
        "fingerprint that a record names. An estimate of bytes and time is told first, and a disk without room is "
        "refused. Each year is written under a hidden name, read back from the disk, compared, and then given its own "
        "name. Killed at any time, it goes on where it was when the same command is given again."
    )
    parser.epilog = (
        "Example: hpcai500 data repack ewa /data/extremeweather /scratch/ewa --years 1979-1989, "
        "then hpcai500 ewa --data /scratch/ewa"
    )
    parser.add_argument("source", metavar="SRC", type=Path, help="folder with climo_YYYY.h5")
    parser.add_argument("target", metavar="DST", type=Path, help="folder of the new files; made when missing")
    parser.add_argument(
        "--filter",
        choices=tuple(FILTERS),
        default="none",
        help="none: 56.6 MB an image of 768 x 1152, read as fast as the disk gives it; lzf: shuffled and quickly "
        "compressed, for a slow or small disk (default: none)",
    )
    parser.add_argument("--years", metavar="A-B", type=year_range, help="first and last year (default: all)")
    parser.add_argument(
        "--convert-boxes",
        action="store_true",
        help="where x and y are swapped and classes are 1 to 4, write them as ExtremeWeather ships them",
    )
    parser.add_argument("--estimate", action="store_true", help="tell what it would take, and do nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a sentence")
    _add_workers(parser)
    parser.set_defaults(run=_repack)


def add_stage(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data stage ewa`."""
    add_staging(parser, NAME, "/data/extremeweather")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", metavar="N", type=int, help="processes that share the work (default: one a core)")


def _check(chosen: argparse.Namespace) -> int:
    report = check_climate(chosen.dir, training=chosen.years, workers=chosen.workers, progress=track)
    if chosen.json:
        show(as_document(report), indent=1)
    else:
        show(report_lines(report))
    return ExitCode.PASS if report.passed else ExitCode.USAGE


def _repack(chosen: argparse.Namespace) -> int:
    repacking = Repacking(
        chosen.source,
        chosen.target,
        kind=chosen.filter,
        years=chosen.years,
        convert_boxes=chosen.convert_boxes,
        workers=chosen.workers,
        progress=track,
    )
    expected = repacking.estimate()
    told = _told(expected, chosen.target)
    if chosen.estimate:
        if chosen.json:
            show({"estimate": asdict(expected)}, indent=1)
        else:
            show(told)
        return ExitCode.PASS
    say(told)
    report = repacking.run()
    if chosen.json:
        show({"estimate": asdict(expected), **_document(report)}, indent=1)
    else:
        show(_sentence(report))
    return ExitCode.PASS


def _told(expected: Estimate, target: Path) -> str:
    if not expected.images:
        return f"{target}: nothing is left to write"
    return (
        f"{target}: {expected.images} images, {size(expected.write_bytes)} to write "
        f"({size(expected.needed_bytes)} needed, {size(expected.free_bytes)} free), about "
        f"{_duration(expected.seconds)}, {size(expected.memory_bytes)} of memory"
    )


def _sentence(report: RepackReport) -> str:
    converted = f"; boxes of {spans(report.converted)} converted" if report.converted else ""
    written = f"; {spans(report.written)} written, read back and equal" if report.written else ""
    kept = f"; {spans(report.kept)} kept as found" if report.kept else ""
    return (
        f"{report.root}: {report.images} images of {spans([*report.written, *report.kept])}, "
        f"{size(report.stored_bytes)}{written}{kept}{converted}; fingerprint {report.fingerprint}"
    )


def _document(report: RepackReport) -> dict[str, Any]:
    return {
        "root": str(report.root),
        "written": list(report.written),
        "kept": list(report.kept),
        "converted": list(report.converted),
        "samples": report.images,
        "stored_bytes": report.stored_bytes,
        "fingerprint": report.fingerprint,
        "content_fingerprint": report.content_fingerprint,
        "seconds": report.seconds,
    }


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
