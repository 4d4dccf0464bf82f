"""`hpcai500 data anchors ewa`: anchors that fit the boxes of the training years, as lines for a recipe."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hpcai500.data.climate.anchor_fit import AnchorFit, balanced, fit_anchors
from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.climate.truth import truths_of
from hpcai500.data.year_range import year_range
from hpcai500.errors import ExitCode
from hpcai500.progress import track
from hpcai500.streams import show


def add_anchors(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data anchors ewa`."""
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
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a line")
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
