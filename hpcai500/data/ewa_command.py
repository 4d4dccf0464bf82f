"""The commands `hpcai500 data make|check|anchors|repack ewa`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.data.climate.boxes import AnchorFit, balanced, fit_anchors, truths_of
from hpcai500.data.climate.check import as_document, check_climate, report_lines
from hpcai500.data.climate.index import load_climate_index, spans
from hpcai500.data.climate.repack import Estimate, Repacking, RepackReport
from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.data.climate.years import BOXES, CLASSES, file_name, open_hdf5
from hpcai500.errors import ExitCode
from hpcai500.files import as_utf8
from hpcai500.job_options import AnchorsOptions, CheckYearsOptions, MakeOptions, RepackOptions
from hpcai500.progress import track
from hpcai500.streams import say, show
from hpcai500.text import size

# Above this size, writing takes minutes, and the size is printed first.
_LARGE_BYTES = 10e9


def anchors(chosen: AnchorsOptions) -> int:
    index = load_climate_index(chosen.dir, progress=track)
    years = index.select(*chosen.years) if chosen.years else index.years
    truths = [truth for year in years for truth in truths_of(year.boxes, *year.grid)]
    boxes = np.concatenate([truth.boxes for truth in truths])
    labels = np.concatenate([truth.labels for truth in truths])
    shapes = np.stack([boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], axis=1).astype(np.float64)
    fit = fit_anchors(balanced(shapes, labels), chosen.levels, chosen.per_level)
    show(asdict(fit) if chosen.as_json else _lines(fit), indent=1)
    return ExitCode.PASS


def _lines(fit: AnchorFit) -> list[str]:
    levels = [[[round(side) for side in shape] for shape in level] for level in fit.anchors]
    return [f"# mean best IoU {fit.mean_iou:.3f} with {fit.boxes} boxes", f"anchors = {levels}"]


def make(chosen: MakeOptions[SyntheticYears]) -> int:
    parameters = chosen.wanted
    missing = sum(not (chosen.dir / file_name(year)).exists() for year in parameters.years)
    missing_bytes = missing * parameters.year_bytes
    if missing_bytes > _LARGE_BYTES:
        say(f"{missing} years of {parameters.images_per_year} images take up to {missing_bytes / 1e9:.0f} GB")
    written = make_years(chosen.dir, parameters, workers=chosen.workers, progress=track)
    counts = _boxes_of(chosen.dir, parameters)
    images = len(parameters.years) * parameters.images_per_year
    document = {"years": list(parameters.years), "images": images, "boxes": counts, "written": written}
    sentence = (
        f"{chosen.dir}: {images} images of {parameters.height} x {parameters.width} in {len(parameters.years)} years, "
        f"{sum(counts.values())} boxes ({written} years written)"
    )
    show(document if chosen.as_json else sentence, indent=1)
    return ExitCode.PASS


def _boxes_of(root: Path, parameters: SyntheticYears) -> dict[str, int]:
    counts = np.zeros(len(CLASSES), np.int64)
    for year in parameters.years:
        with open_hdf5(root / file_name(year)) as file:
            labels = file[BOXES][..., 4]
        counts += np.bincount(labels[labels >= 0], minlength=len(CLASSES))
    return dict(zip(CLASSES, counts.tolist(), strict=True))


def check(chosen: CheckYearsOptions) -> int:
    report = check_climate(chosen.dir, training=chosen.years, workers=chosen.workers, progress=track)
    show(as_document(report) if chosen.as_json else report_lines(report), indent=1)
    return ExitCode.PASS if report.passed else ExitCode.USAGE


def repack(chosen: RepackOptions) -> int:
    repacking = Repacking(
        chosen.source,
        chosen.target,
        kind=chosen.kind,
        years=chosen.years,
        convert_boxes=chosen.convert_boxes,
        workers=chosen.workers,
        progress=track,
    )
    expected = repacking.estimate()
    text = _estimate_text(expected, chosen.target)
    document: dict[str, Any] = {"estimate": asdict(expected)}
    if chosen.estimate:
        show(document if chosen.as_json else text, indent=1)
        return ExitCode.PASS
    say(text)
    report = repacking.run()
    document |= {**asdict(report), "root": as_utf8(report.root)}
    show(document if chosen.as_json else _sentence(report), indent=1)
    return ExitCode.PASS


def _estimate_text(expected: Estimate, target: Path) -> str:
    if not expected.images:
        return f"{target}: nothing left to write"
    return (
        f"{target}: {expected.images} images, {size(expected.write_bytes)} to write "
        f"({size(expected.needed_bytes)} needed, {size(expected.free_bytes)} free), about "
        f"{_duration(expected.seconds)}, {size(expected.memory_bytes)} of memory"
    )


def _sentence(report: RepackReport) -> str:
    converted = f"; boxes of {spans(report.converted)} converted" if report.converted else ""
    written = f"; {spans(report.written)} written and verified" if report.written else ""
    kept = f"; {spans(report.kept)} kept" if report.kept else ""
    return (
        f"{report.root}: {report.samples} images of {spans([*report.written, *report.kept])}, "
        f"{size(report.stored_bytes)}{written}{kept}{converted}; fingerprint {report.fingerprint}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
