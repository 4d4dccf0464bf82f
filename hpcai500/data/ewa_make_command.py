"""`hpcai500 data make ewa`: options, and how the result is shown."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from hpcai500.data.climate.hdf5_errors import open_hdf5
from hpcai500.data.climate.layout import BOXES, CLASSES, file_name
from hpcai500.data.climate.weather.synthetic import SyntheticYears, make_years
from hpcai500.data.climate.weather.year_writer import LAYOUTS
from hpcai500.data.year_range import year_range
from hpcai500.errors import ExitCode
from hpcai500.progress import track
from hpcai500.streams import say, show

# Above this size, and the minutes that it takes, users want to know before.
_LARGE_BYTES = 10e9


def add_make(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data make ewa`."""
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
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a sentence")
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
    if chosen.json:
        document = {"years": list(wanted.years), "images": images, "boxes": counts, "written": written}
        show(document, indent=1)
    else:
        show(
            f"{chosen.dir}: {images} images of {wanted.height} x {wanted.width} in {len(wanted.years)} years, "
            f"{sum(counts.values())} boxes ({written} years written now)"
        )
    return ExitCode.PASS


def _boxes_of(root: Path, wanted: SyntheticYears) -> dict[str, int]:
    """How many boxes of each class the set has."""
    counts = np.zeros(len(CLASSES), np.int64)
    for year in wanted.years:
        with open_hdf5(root / file_name(year)) as file:
            labels = file[BOXES][..., 4]
        counts += np.bincount(labels[labels >= 0], minlength=len(CLASSES))
    return dict(zip(CLASSES, counts.tolist(), strict=True))
