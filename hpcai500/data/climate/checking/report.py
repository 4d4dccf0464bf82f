"""A check of climate years, shown to people."""

from __future__ import annotations

from collections.abc import Sequence

from hpcai500.data.climate.box_table import BoxSizes
from hpcai500.data.climate.checking.check import CheckReport
from hpcai500.data.climate.checking.input_cost import InputCost, compression_ratio, describe
from hpcai500.data.climate.checking.year_report import YearReport
from hpcai500.data.climate.index import spans
from hpcai500.data.climate.layout import CHANNELS, CLASSES
from hpcai500.data.text_table import table

# Findings listed for people; --json lists all.
_LISTED = 20
# Prabhat et al. (2017) of the year 1979, in the order of CLASSES.
_PUBLISHED_1979 = (433, 3190, 3437, 404)
_SHIPPED_YEAR = (1460, 768, 1152)


def report_lines(report: CheckReport) -> list[str]:
    """The report: aligned columns for people, and a last line with the verdict."""
    sections = [
        table("", [("set", str(report.root)), *_summary(report)]),
        table("files", [_file(year) for year in report.years], ("year", "images", "stored", "values / stored", "how")),
        table("boxes", _class_rows(report), ("year", *CLASSES, "all")),
        table("box sizes in pixels: 5 %, 50 %, 95 %", _size_rows(report.box_sizes), ("class", "height", "width")),
        table(
            f"channels, {_training(report)}", _channel_rows(report), ("channel", "mean", "deviation", "least", "most")
        ),
        table("broken", _shortened([(found.path, found.reason) for found in report.broken])),
        *([f"note: {note}"] for note in _shortened_notes(report)),
        *(table(f"input, one process, years {spans(cost.years)}", _cost(cost, report)) for cost in report.costs),
        *([f"input: {_advice(cost, report)}"] for cost in report.costs),
    ]
    verdict = (
        "PASS: the set can be trained on" if report.passed else f"FAIL: {len(report.broken)} findings under broken"
    )
    return [line for section in filter(None, sections) for line in (*section, "")] + [verdict]


def _summary(report: CheckReport) -> list[tuple[str, str]]:
    grids = {f"{year.file.height} x {year.file.width}" for year in report.years}
    boxes = sum(year.boxes for year in report.years)
    return [
        ("years", spans([year.file.year for year in report.years]) or "none that follows the format"),
        ("images", f"{report.images} of {', '.join(sorted(grids))}, {len(CHANNELS)} channels"),
        ("boxes", f"{boxes}, {boxes / max(report.images, 1):.1f} an image"),
        ("fingerprint", report.fingerprint or "none: a file does not follow the format"),
        ("content fingerprint", report.content_fingerprint or "none: not everything can be read"),
        ("checked", f"{report.images} images in {report.seconds:.1f} s"),
    ]


def _file(year: YearReport) -> tuple[str, ...]:
    storage = year.file.storage
    ratio = compression_ratio(storage)
    how = f"{describe(storage)}; {storage.chunks_per_image} an image"
    shown = "-" if ratio is None else f"{ratio:.2f}"
    return str(year.file.year), str(year.file.images), f"{storage.stored_bytes / 1e6:.1f} MB", shown, how


def _class_rows(report: CheckReport) -> list[tuple[str, ...]]:
    rows = [(str(year.file.year), *map(str, year.class_counts), str(year.boxes)) for year in report.years]
    counts = report.class_counts
    return [*rows, ("all", *map(str, counts), str(sum(counts)))] if len(rows) > 1 else rows


def _size_rows(sizes: Sequence[BoxSizes]) -> list[tuple[str, str, str]]:
    def shown(extent: Sequence[float]) -> str:
        return ", ".join(f"{value:.0f}" for value in extent)

    return [
        (name, shown(of_class.height), shown(of_class.width))
        for name, of_class in zip(CLASSES, sizes, strict=True)
        if of_class.height and of_class.width
    ]


def _training(report: CheckReport) -> str:
    return f"years {spans(report.training_years)}" if report.training_years else "no years"


def _channel_rows(report: CheckReport) -> list[tuple[str, ...]]:
    known = report.statistics
    if known is None:
        return []
    columns = (known.mean, known.std, known.minimum, known.maximum)
    return [(name, *(f"{column[channel]:.4g}" for column in columns)) for channel, name in enumerate(CHANNELS)]


def _notes(report: CheckReport) -> list[str]:
    notes = []
    for year in report.years:
        name = year.file.path.name
        notes += [f"{name}: {odd}" for odd in year.odd_rows]
        notes += [f"{name}: {finding}" for finding in year.channels if finding.oddity == "constant"]
        if "do not tell" in year.file.variant.evidence:
            notes.append(f"{name}: {year.file.variant.evidence}; taken as {year.file.variant.name}")
        shape = (year.file.images, year.file.height, year.file.width)
        if year.file.year == 1979 and shape == _SHIPPED_YEAR and year.class_counts != _PUBLISHED_1979:
            notes.append(f"{name}: published class counts are {', '.join(map(str, _PUBLISHED_1979))}, in this order")
    if absent := [name for name, boxes in zip(CLASSES, report.class_counts, strict=True) if report.years and not boxes]:
        notes.append(f"no year has a box of {', '.join(absent)}: quality is measured on the other classes only")
    for year in report.years if not absent else ():
        if lacking := [name for name, boxes in zip(CLASSES, year.class_counts, strict=True) if not boxes]:
            name = year.file.path.name
            notes.append(f"{name}: no box of {', '.join(lacking)}: alone, it cannot evaluate every class")
    years = [year.file.year for year in report.years]
    if years and len(years) <= years[-1] - years[0]:
        notes.append(f"not every year is there: {spans(years)}")
    return notes


def _shortened_notes(report: CheckReport) -> list[str]:
    notes = _notes(report)
    more = len(notes) - _LISTED
    return [*notes[:_LISTED], f"and {more} more; --json lists all"] if more > 0 else notes


def _shortened(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    more = len(rows) - _LISTED
    return [*rows[:_LISTED], (f"and {more} more", "--json lists all")] if more > 0 else list(rows)


def _cost(cost: InputCost, report: CheckReport) -> list[tuple[str, str]]:
    images = sum(year.file.images for year in report.years if year.file.year in cost.years)

    def rate(images_per_second: float) -> str:
        return f"{images_per_second:.3g} images/s, {images / images_per_second:.3g} s for all {images}"

    rows = [("one image at a time", rate(cost.single_images_per_second))]
    if cost.window > 1:
        rows.append((f"windows of {cost.window}, as runs read", rate(cost.window_images_per_second)))
    if not cost.repacked:
        rows.append(("repacked", rate(cost.repacked_images_per_second)))
    return [*rows, ("plain reads", f"{cost.bytes_per_second / 1e6:.0f} MB/s, measured on {cost.file}")]


def _advice(cost: InputCost, report: CheckReport) -> str:
    """Return in a sentence whether another layout would be faster, and the command to type."""
    if cost.repacked:
        return f"{spans(cost.years)}: an image is one uncompressed piece of its file, as it should be"
    pieces = "one piece" if cost.chunks_per_image == 1 else f"{cost.chunks_per_image} pieces"
    shared = f", shared with {cost.window - 1} others" if cost.window > 1 else ""
    text = f"{spans(cost.years)}: an image is in {pieces} of its file{shared}; "
    if not cost.repack_pays:
        return f"{text}one uncompressed chunk an image would gain little here"
    return (
        f"{text}one uncompressed chunk an image is read {cost.gain:.2g} times as fast: "
        f"hpcai500 data repack ewa {report.root} NEW_FOLDER"
    )
