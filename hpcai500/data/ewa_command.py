"""`hpcai500 data make|check|anchors|repack|stage ewa`: options, and how results are shown."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.data.climate.boxes import AnchorFit, balanced, fit_anchors, truths_of
from hpcai500.data.climate.check import as_document, check_climate, report_lines
from hpcai500.data.climate.index import load_climate_index, spans
from hpcai500.data.climate.repack import FILTERS, Estimate, Repacking, RepackReport
from hpcai500.data.climate.synthetic import LAYOUTS, SyntheticYears, make_years
from hpcai500.data.climate.years import BOXES, CLASSES, file_name, open_hdf5
from hpcai500.data.stage_command import add_staging
from hpcai500.errors import ExitCode
from hpcai500.progress import track
from hpcai500.streams import say, show
from hpcai500.text import size

NAME = "ewa"
HELP = "Extreme Weather Analytics: climo_YYYY.h5, a year of 16-channel images and their boxes each"

# Above this size, which takes minutes, users want to know before.
_LARGE_BYTES = 10e9


def year_range(text: str) -> tuple[int, int]:
    """`1979` or `1979-1981` -> first and last year. Raises ArgumentTypeError for anything else."""
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} are no years: write 1979 or 1979-1981")
    return int(match[1]), int(match[2] or match[1])


def add_anchors(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit anchors to the boxes of a set by k-means under 1 - IoU, every class counting alike, and print them as the "
        "line of a recipe. "
        "Use the training years only: anchors fitted to evaluation years have seen the answers."
    )
    parser.epilog = "Example: hpcai500 data anchors ewa /data/weather --years 1979-1987 >> my-recipe.toml"
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder with climo_YYYY.h5")
    parser.add_argument("--years", metavar="A-B", type=year_range, help="training years (default: all)")
    parser.add_argument("--levels", metavar="N", type=int, default=5, help="pyramid levels (default: 5)")
    parser.add_argument("--per-level", metavar="N", type=int, default=3, help="anchors a level (default: 3)")
    parser.set_defaults(run=_anchors)


def _anchors(chosen: argparse.Namespace) -> int:
    index = load_climate_index(chosen.dir, progress=track)
    years = index.select(*chosen.years) if chosen.years else index.years
    truths = [truth for year in years for truth in truths_of(year.boxes, *year.grid)]
    boxes = np.concatenate([truth.boxes for truth in truths])
    labels = np.concatenate([truth.labels for truth in truths])
    shapes = np.stack([boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], axis=1).astype(np.float64)
    fit = fit_anchors(balanced(shapes, labels), chosen.levels, chosen.per_level)
    show(asdict(fit) if chosen.json else _lines(fit), indent=1)
    return ExitCode.PASS


def _lines(fit: AnchorFit) -> list[str]:
    levels = [[[round(side) for side in shape] for shape in level] for level in fit.anchors]
    return [f"# mean best IoU {fit.mean_iou:.3f} with {fit.boxes} boxes", f"anchors = {levels}"]


def add_make(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a synthetic set of climate years in ExtremeWeather's format: 16 channels of weather on the globe, with "
        "cyclones and atmospheric rivers in boxes. The same options give the same bytes. A second call completes the "
        "set and writes nothing twice; files of others are never touched."
    )
    parser.epilog = (
        "Example: hpcai500 data make ewa /tmp/weather --years 1979-1981 --height 768 --width 1152 --images-per-year 46 "
        "--layout shipped"
    )
    defaults = SyntheticYears()
    years = f"{defaults.first_year}-{defaults.last_year}"
    shares = ",".join(f"{share:g}" for share in defaults.class_shares)
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder of the set; made when missing")
    parser.add_argument(
        "--years", metavar="A-B", type=year_range, default=years, help=f"years, one file each (default: {years})"
    )
    for flag, default, meaning in (
        ("--images-per-year", defaults.images_per_year, "images in each file"),
        ("--height", defaults.height, "rows from pole to pole"),
        ("--width", defaults.width, "columns around the globe"),
        ("--seed", defaults.seed, "another seed gives other weather"),
    ):
        parser.add_argument(flag, metavar="N", type=int, default=default, help=f"{meaning} (default: {default})")
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in LAYOUTS.items())
    parser.add_argument(
        "--layout", choices=LAYOUTS, default=defaults.layout, help=f"{meanings} (default: {defaults.layout})"
    )
    parser.add_argument(
        "--class-shares",
        metavar="A,B,C,D",
        type=_shares,
        default=shares,
        help=f"shares of {', '.join(CLASSES)} (default: {shares})",
    )
    parser.add_argument("--workers", metavar="N", type=int, help="processes that share the work (default: one a core)")
    parser.set_defaults(run=_make)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no shares: write four numbers as in 0.1,0.4,0.4,0.1") from None


def _make(chosen: argparse.Namespace) -> int:
    first_year, last_year = chosen.years
    wanted = SyntheticYears(
        first_year=first_year,
        last_year=last_year,
        images_per_year=chosen.images_per_year,
        height=chosen.height,
        width=chosen.width,
        layout=chosen.layout,
        class_shares=chosen.class_shares,
        seed=chosen.seed,
    )
    missing = sum(not (chosen.dir / file_name(year)).exists() for year in wanted.years)
    if missing * wanted.year_bytes > _LARGE_BYTES:
        say(f"{missing} years of {wanted.images_per_year} images take up to {missing * wanted.year_bytes / 1e9:.0f} GB")
    written = make_years(chosen.dir, wanted, workers=chosen.workers, progress=track)
    counts = _boxes_of(chosen.dir, wanted)
    images = len(wanted.years) * wanted.images_per_year
    document = {"years": list(wanted.years), "images": images, "boxes": counts, "written": written}
    sentence = (
        f"{chosen.dir}: {images} images of {wanted.height} x {wanted.width} in {len(wanted.years)} years, "
        f"{sum(counts.values())} boxes ({written} years written now)"
    )
    show(document if chosen.json else sentence, indent=1)
    return ExitCode.PASS


def _boxes_of(root: Path, wanted: SyntheticYears) -> dict[str, int]:
    counts = np.zeros(len(CLASSES), np.int64)
    for year in wanted.years:
        with open_hdf5(root / file_name(year)) as file:
            labels = file[BOXES][..., 4]
        counts += np.bincount(labels[labels >= 0], minlength=len(CLASSES))
    return dict(zip(CLASSES, counts.tolist(), strict=True))


def add_check(parser: argparse.ArgumentParser) -> None:
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
    _add_workers(parser)
    parser.set_defaults(run=_check)


def add_repack(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy the years of SRC to DST so that each image is one chunk of its file. As ExtremeWeather ships, an image "
        "is spread over 4096 compressed chunks that it shares with 45 others: a run that reads images in random order "
        "spends its time inflating. SRC stays as it is. Values, boxes and attributes are the same, and so is the "
        "fingerprint that a record names. An estimate of bytes and time is told first, and a disk without room is "
        "refused. Each year is written under a hidden name, read back from the disk, compared, and then given its own "
        "name. Killed at any time, it goes on with the year that it was at when the same command is given again."
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
    _add_workers(parser)
    parser.set_defaults(run=_repack)


add_stage = partial(add_staging, benchmark=NAME, example="/data/extremeweather")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", metavar="N", type=int, help="processes that share the work (default: one a core)")


def _check(chosen: argparse.Namespace) -> int:
    report = check_climate(chosen.dir, training=chosen.years, workers=chosen.workers, progress=track)
    show(as_document(report) if chosen.json else report_lines(report), indent=1)
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
    document: dict[str, Any] = {"estimate": asdict(expected)}
    if chosen.estimate:
        show(document if chosen.json else told, indent=1)
        return ExitCode.PASS
    say(told)
    report = repacking.run()
    document |= {**asdict(report), "root": str(report.root)}
    show(document if chosen.json else _sentence(report), indent=1)
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
        f"{report.root}: {report.samples} images of {spans([*report.written, *report.kept])}, "
        f"{size(report.stored_bytes)}{written}{kept}{converted}; fingerprint {report.fingerprint}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
