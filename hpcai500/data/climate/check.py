"""A check of climate years: reads every image and box, measures what layouts cost, and reports what prevents training.

The report is shown to people, and as the JSON document of `data check ewa --json`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpcai500.data.climate.index import build_index, open_years, refusals, spans, year_paths
from hpcai500.data.climate.values import (
    FILE,
    MOST_BLOCK_BYTES,
    ChannelStatistics,
    Counts,
    Fault,
    ImageScan,
    YearContent,
    chunk_channels,
    combined,
    constant_channels,
    content_fingerprint,
    content_of,
    drop_from_memory,
    load_contents_by_times,
    read_images,
    scan_years,
    store_contents,
)
from hpcai500.data.climate.years import (
    CHANNELS,
    CLASSES,
    BoxSizes,
    OddRows,
    Storage,
    YearFile,
    box_sizes,
    class_counts,
    file_name,
    odd_rows,
    row_kinds,
    usable,
    year_of,
)
from hpcai500.data.derived import workers_or_all
from hpcai500.data.staged import require_whole
from hpcai500.errors import DataError
from hpcai500.files import as_utf8
from hpcai500.progress import Tracker, silent
from hpcai500.text import text_table

# ----------------------------------------------------------------------------------------------------
# The cost of reading the layout of a file, measured on this file system, and that of the repacked layout.


_SAMPLES = 3
_PLAIN_BYTES = 2**28
_PIECE_BYTES = 2**23
# A gain above the noise of a shared file system.
_WORTH = 1.5


@dataclass(frozen=True)
class InputCost:
    """Rates of one process that reads images of one layout from `file`, cold where the system drops its cache.

    Attributes:
        single_images_per_second: images at random, each read by itself.
        window_images_per_second: all images that share chunks, read together, which is how runs read them.
        bytes_per_second: plain reads of the same file.
        repacked_images_per_second: images of one uncompressed chunk each, at that rate of plain reads.
        repacked: the images are uncompressed pieces of the file already.
    """

    file: str
    years: tuple[int, ...]
    chunks_per_image: int
    window: int
    single_images_per_second: float
    window_images_per_second: float
    bytes_per_second: float
    repacked_images_per_second: float
    repacked: bool

    @property
    def gain(self) -> float:
        """How many times as fast repacked images would be read."""
        return 1.0 if self.repacked else self.repacked_images_per_second / self.window_images_per_second


def layouts(years: Sequence[YearFile]) -> list[tuple[YearFile, ...]]:
    """Group `years` by how their images are stored."""
    groups: dict[tuple[object, ...], list[YearFile]] = {}
    for year in years:
        groups.setdefault((year.storage.kind, year.storage.chunk, year.storage.filters), []).append(year)
    return [tuple(group) for group in groups.values()]


def measure_cost(years: Sequence[YearFile]) -> InputCost:
    """Time reads from the first of `years`, which all have the same layout. Takes seconds, also for the shipped layout.

    Where a chunk does not hold all channels, only the first chunk's channels are read, and rates are scaled to all.
    Raises DataError for chunks that cannot be read.
    """
    year = years[0]
    channels = slice(0, chunk_channels(year))
    share = (channels.stop - channels.start) / len(CHANNELS)
    bytes_per_second = plain_read_rate(year.path)
    at_random = np.random.default_rng(0).permutation(year.images)[:_SAMPLES].tolist()
    single_seconds = _seconds(
        year.path, lambda: [read_images(year, image, 1, channels=channels) for image in at_random]
    )
    most = max(1, MOST_BLOCK_BYTES // (channels.stop * year.plane_bytes))
    count = min(year.storage.window, year.images, most)
    windows = 1 if count > 1 else min(_SAMPLES, year.images)
    window_seconds = _seconds(
        year.path, lambda: [read_images(year, place * count, count, channels=channels) for place in range(windows)]
    )
    return InputCost(
        file=year.path.name,
        years=tuple(each.year for each in years),
        chunks_per_image=year.storage.chunks_per_image,
        window=year.storage.window,
        single_images_per_second=share * len(at_random) / single_seconds,
        window_images_per_second=share * count * windows / window_seconds,
        bytes_per_second=bytes_per_second,
        repacked_images_per_second=bytes_per_second / year.image_bytes,
        repacked=year.storage.chunks_per_image == year.storage.window == 1 and not year.storage.filters,
    )


def plain_read_rate(path: Path) -> float:
    """Bytes per second of plain reads of the first 256 MiB of the file at `path`."""
    piece = bytearray(_PIECE_BYTES)
    read = 0

    def read_pieces() -> None:
        nonlocal read
        with path.open("rb", buffering=0) as stream:
            while read < _PLAIN_BYTES and (count := stream.readinto(piece)):
                read += count

    seconds = _seconds(path, read_pieces)
    return read / seconds


def describe(storage: Storage) -> str:
    """How images are stored, in a phrase: "chunks of 46 x 1 x 48 x 72, deflate"."""
    shape = f"chunks of {' x '.join(map(str, storage.chunk))}" if storage.chunk else "one piece"
    return f"{shape}, {' + '.join(storage.filters) or 'uncompressed'}"


def compression_ratio(storage: Storage) -> float | None:
    """Bytes of the values / bytes stored; None for a file without any."""
    values = math.prod(storage.shape) * np.dtype(storage.dtype).itemsize
    return values / storage.stored_bytes if storage.stored_bytes else None


def _seconds(path: Path, work: Callable[[], object]) -> float:
    drop_from_memory(path)
    start_seconds = time.perf_counter()
    work()
    return max(time.perf_counter() - start_seconds, 1e-9)


# ----------------------------------------------------------------------------------------------------
# What is found in one year.


Oddity = Literal["NaN", "infinite", "missing", "constant"]


@dataclass(frozen=True)
class ChannelFinding:
    """How many images have an odd `channel`, the first of them, and how many odd values they hold."""

    channel: int
    oddity: Oddity
    images: int
    values: int
    first_image: int

    def __str__(self) -> str:
        values = f"{self.values} {self.oddity} values" if self.oddity != "constant" else "one value only"
        more = f"{self.images} images, the first is" if self.images > 1 else "image"
        return f"channel {CHANNELS[self.channel]}: {values} in {more} {self.first_image}"


@dataclass(frozen=True)
class YearReport:
    """What was found in a year.

    `channels` lists odd planes; `faults` are chunks that cannot be read, and nothing is known of their images.
    """

    file: YearFile
    class_counts: tuple[int, ...]
    odd_rows: tuple[OddRows, ...]
    channels: tuple[ChannelFinding, ...]
    faults: tuple[Fault, ...]

    @property
    def boxes(self) -> int:
        """Rows that name a class."""
        return sum(self.class_counts)


def _odd_channels(scans: Sequence[tuple[int, ImageScan]]) -> list[ChannelFinding]:
    """What is odd in images, each with its number."""
    if not scans:
        return []
    numbers = [number for number, _ in scans]
    values: dict[Oddity, Counts] = {
        "NaN": np.stack([scan.statistics.nan for _, scan in scans]),
        "infinite": np.stack([scan.statistics.infinite for _, scan in scans]),
        "missing": np.stack([scan.statistics.missing for _, scan in scans]),
        "constant": np.stack([_constant_values(scan.statistics) for _, scan in scans]),
    }
    found = []
    for channel in range(len(CHANNELS)):
        for oddity, counts in values.items():
            of_channel = counts[:, channel]
            places = np.flatnonzero(of_channel)
            if len(places):
                first = numbers[int(places[0])]
                found.append(ChannelFinding(channel, oddity, len(places), int(of_channel.sum()), first))
    return found


def _constant_values(found: ChannelStatistics) -> Counts:
    """How many values a channel of an image has, where they are all the same."""
    return found.count * (found.constant & (found.count > 1))


# ----------------------------------------------------------------------------------------------------
# The check itself.


@dataclass(frozen=True)
class Finding:
    """Why a file, named relative to the root, cannot be trained on."""

    path: str
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """What a check of all files found.

    Attributes:
        years: those that follow the format, ascending.
        box_sizes: of each class, over all years.
        training_years: the years that `statistics` covers; by default all.
        statistics: None when a training year cannot be read whole.
        fingerprint: None unless all files follow the format.
        content_fingerprint: None unless all files can be read whole, too.
        broken: everything that prevents training on the set.
    """

    root: Path
    years: tuple[YearReport, ...]
    box_sizes: tuple[BoxSizes, ...]
    training_years: tuple[int, ...]
    statistics: ChannelStatistics | None
    fingerprint: str | None
    content_fingerprint: str | None
    costs: tuple[InputCost, ...]
    broken: tuple[Finding, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.broken

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Boxes of each class in all years."""
        return tuple(sum(year.class_counts[label] for year in self.years) for label in range(len(CLASSES)))

    @property
    def images(self) -> int:
        """Images of all years that follow the format."""
        return sum(year.file.images for year in self.years)


def check_climate(
    root: Path | str,
    *,
    training: tuple[int, int] | None = None,
    workers: int | None = None,
    progress: Tracker = silent,
) -> CheckReport:
    """Read all years of the set at `root` in `workers` processes (default: one per core of this job).

    `training` is the first and the last year to compute mean and standard deviation over. Contents are kept for later
    runs. Raises DataError when there is no set at `root`; what is wrong with a set is in the report.
    """
    start_seconds = time.monotonic()
    check = _Check(Path(root))
    check.open(progress)
    chosen = check.choose(training)
    # Measured before all files are read: only the rates of uncached files matter.
    costs = check.costs()
    reports = check.read(workers_or_all(workers), progress)
    statistics = check.statistics(chosen)
    boxes = [year.boxes[usable(year.boxes, year.height, year.width)] for year in check.years]
    return CheckReport(
        root=check.root,
        years=reports,
        box_sizes=box_sizes(np.concatenate([np.empty((0, 5), np.int32), *boxes])),
        training_years=tuple(year.year for year in chosen),
        statistics=statistics,
        fingerprint=check.fingerprint,
        content_fingerprint=check.content_fingerprint(),
        costs=costs,
        broken=tuple(sorted(check.broken, key=lambda found: found.path)),
        seconds=time.monotonic() - start_seconds,
    )


class _Check:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.years: tuple[YearFile, ...] = ()
        self.fingerprint: str | None = None
        self.broken: list[Finding] = []
        self._files = 0
        self._contents: dict[int, YearContent] = {}

    def add(self, path: Path, reason: object) -> None:
        self.broken.append(Finding(path.name, str(reason).removeprefix(f"{path}: ")))

    def open(self, progress: Tracker) -> None:
        """Open all files; report those that do not follow the format or cannot be trained on."""
        require_whole(self.root)
        paths = year_paths(self.root)
        self._files = len(paths)
        self.years = open_years(self.root, paths, progress, self.add)
        for year in self.years:
            for reason in refusals(year):
                self.add(year.path, reason)
            if year.grid != self.years[0].grid:
                first = self.years[0]
                self.add(
                    year.path,
                    f"images of {year.height} x {year.width}, but {first.path.name} has {first.height} x {first.width}",
                )
        if len(self.years) == self._files and len({year.grid for year in self.years}) == 1:
            self.fingerprint = build_index(self.root, self.years).fingerprint

    def choose(self, training: tuple[int, int] | None) -> tuple[YearFile, ...]:
        """Return the training years; report those that have no file."""
        if training is None:
            return self.years
        first, last = training
        present = {year_of(path.name) for path in year_paths(self.root)}
        for missing in sorted(set(range(first, last + 1)) - present):
            self.add(self.root / file_name(missing), "missing: no such file")
        return tuple(year for year in self.years if first <= year.year <= last)

    def costs(self) -> tuple[InputCost, ...]:
        found = []
        for group in layouts(self.years):
            try:
                found.append(measure_cost(group))
            except DataError:
                # The scan reports what cannot be read.
                continue
        return tuple(found)

    def read(self, workers: int, progress: Tracker) -> tuple[YearReport, ...]:
        """Read all images; report what cannot be read or trained on; keep contents for later runs."""
        kept = load_contents_by_times(self.years)
        reports = []
        scans: list[tuple[int, ImageScan]] = []
        faults: list[Fault] = []
        left = list(self.years)
        with progress(sum(year.images for year in left), "checking images", "images") as bar:
            for part in scan_years(self.years, workers):
                scans += enumerate(part.images, part.first)
                faults += part.faults
                bar.advance(part.count)
                if part.first + part.count == left[0].images:
                    reports.append(self._finish(left.pop(0), scans, faults, kept))
                    scans, faults = [], []
        return tuple(reports)

    def _finish(
        self,
        year: YearFile,
        scans: Sequence[tuple[int, ImageScan]],
        faults: Sequence[Fault],
        kept: dict[int, YearContent],
    ) -> YearReport:
        kinds = row_kinds(year.boxes, year.height, year.width)
        report = YearReport(
            file=year,
            class_counts=class_counts(year.boxes, kinds),
            odd_rows=odd_rows(year.boxes, kinds),
            channels=tuple(_odd_channels(scans)),
            faults=tuple(faults),
        )
        for fault in faults:
            self.add(year.path, fault)
        for finding in report.channels:
            if finding.oddity != "constant":
                marks = f" (missing are {year.missing})" if finding.oddity == "missing" else ""
                self.add(year.path, f"dataset images, {finding}{marks}")
        if not faults:
            content = content_of(year, (scan for _, scan in scans))
            if year.year in kept and kept[year.year].digest != content.digest:
                self.add(
                    year.path,
                    "its values changed since the last check, but its size and times did not: the disk is faulty; or, "
                    f"if this is another version of the set with the same times, remove {FILE} (in the set, or in your "
                    "cache)",
                )
            else:
                self._contents[year.year] = content
                store_contents(self.root, [year], self._contents)
        return report

    def statistics(self, chosen: Sequence[YearFile]) -> ChannelStatistics | None:
        """Return the statistics of the `chosen` years; report channels that cannot be normalised."""
        if not chosen or any(year.year not in self._contents for year in chosen):
            return None
        whole = combined(self._contents[year.year].statistics for year in chosen)
        for reason in constant_channels(whole):
            self.add(self.root, f"{reason} in the training years {spans([year.year for year in chosen])}")
        return whole

    def content_fingerprint(self) -> str | None:
        """The fingerprint of all values, when all could be read."""
        return content_fingerprint(self._contents) if len(self._contents) == self._files else None


# ----------------------------------------------------------------------------------------------------
# The report as the JSON document of `data check ewa --json`.


def as_document(report: CheckReport) -> dict[str, Any]:
    """The report as `data check --json` prints it: bytes, seconds, pixels and rates as plain numbers."""
    return {
        "verdict": "pass" if report.passed else "fail",
        "root": as_utf8(report.root),
        "fingerprint": report.fingerprint,
        "content_fingerprint": report.content_fingerprint,
        "samples": {str(year.file.year): year.file.images for year in report.years},
        "classes": len(CLASSES),
        "broken": [{"path": found.path, "reason": found.reason} for found in report.broken],
        "years": [_year_document(year) for year in report.years],
        "boxes": [
            {"class": name, "boxes": count, "height": _quantiles(sizes.height), "width": _quantiles(sizes.width)}
            for name, count, sizes in zip(CLASSES, report.class_counts, report.box_sizes, strict=True)
        ],
        "training_years": list(report.training_years),
        "channels": _channel_documents(report),
        "input": [_cost_document(cost) for cost in report.costs],
        "seconds": report.seconds,
    }


def _quantiles(extents: Sequence[float] | None) -> dict[str, float] | None:
    return dict(zip(("p5", "median", "p95"), extents, strict=True)) if extents else None


def _year_document(year: YearReport) -> dict[str, Any]:
    file, storage = year.file, year.file.storage
    return {
        "year": file.year,
        "path": file.path.name,
        "images": file.images,
        "height": file.height,
        "width": file.width,
        "bytes": file.identity.size_bytes,
        "variant": file.variant.name,
        "evidence": file.variant.evidence,
        "storage": {
            "kind": storage.kind,
            "chunk": list(storage.chunk) if storage.chunk else None,
            "filters": list(storage.filters),
            "chunks_per_image": storage.chunks_per_image,
            "images_per_window": storage.window,
            "stored_bytes": storage.stored_bytes,
            "compression_ratio": compression_ratio(storage),
        },
        "per_class": dict(zip(CLASSES, year.class_counts, strict=True)),
        "odd_boxes": [
            {
                "kind": odd.kind.name.lower(),
                "boxes": odd.rows,
                "first_image": odd.first_image,
                "first_row": odd.first_row,
                "values": list(odd.first),
            }
            for odd in year.odd_rows
        ],
        "odd_channels": [
            {
                "channel": CHANNELS[odd.channel],
                "kind": odd.oddity.lower(),
                "images": odd.images,
                "values": odd.values,
                "first_image": odd.first_image,
            }
            for odd in year.channels
        ],
        "faults": [
            {
                "chunk": list(fault.chunk) if fault.chunk else None,
                "first_image": fault.images[0],
                "images": len(fault.images),
                "first_channel": fault.channels[0],
                "channels": len(fault.channels),
                "reason": fault.reason,
            }
            for fault in year.faults
        ],
    }


def _channel_documents(report: CheckReport) -> list[dict[str, Any]] | None:
    known = report.statistics
    if known is None:
        return None
    return [
        {
            "name": name,
            "mean": float(known.mean[channel]),
            "std": float(known.std[channel]),
            # JSON has no infinity: a channel without finite values has neither bound.
            "minimum": float(known.minimum[channel]) if known.count[channel] else None,
            "maximum": float(known.maximum[channel]) if known.count[channel] else None,
            "nan": int(known.nan[channel]),
            "infinite": int(known.infinite[channel]),
            "missing": int(known.missing[channel]),
        }
        for channel, name in enumerate(CHANNELS)
    ]


def _cost_document(cost: InputCost) -> dict[str, Any]:
    return {
        "measured_on": cost.file,
        "years": list(cost.years),
        "chunks_per_image": cost.chunks_per_image,
        "images_per_window": cost.window,
        "single_images_per_second": cost.single_images_per_second,
        "window_images_per_second": cost.window_images_per_second,
        "read_bytes_per_second": cost.bytes_per_second,
        "repacked_images_per_second": cost.repacked_images_per_second,
        "repack_gain": cost.gain,
    }


# ----------------------------------------------------------------------------------------------------
# The report for people.


# The most findings that are listed; --json lists all.
_LISTED = 20
# Boxes of 1979 by class, in the order of CLASSES (Prabhat et al. 2017).
_PUBLISHED_1979 = (433, 3190, 3437, 404)
_SHIPPED_YEAR = (1460, 768, 1152)


def report_lines(report: CheckReport) -> list[str]:
    """The report: aligned columns for people, and a last line with the verdict."""
    trained_on = f"years {spans(report.training_years)}" if report.training_years else "no years"
    broken, notes = [(found.path, found.reason) for found in report.broken], _notes(report)
    if (more := len(broken) - _LISTED) > 0:
        broken[_LISTED:] = [(f"and {more} more", "--json lists all")]
    if (more := len(notes) - _LISTED) > 0:
        notes[_LISTED:] = [f"and {more} more; --json lists all"]
    sections = [
        text_table("", [("set", str(report.root)), *_summary(report)]),
        text_table(
            "files", [_file(year) for year in report.years], ("year", "images", "stored", "values / stored", "how")
        ),
        text_table("boxes", _class_rows(report), ("year", *CLASSES, "all")),
        text_table("box sizes in pixels: 5 %, 50 %, 95 %", _size_rows(report.box_sizes), ("class", "height", "width")),
        text_table(f"channels, {trained_on}", _channel_rows(report), ("channel", "mean", "deviation", "least", "most")),
        text_table("broken", broken),
        *([f"note: {note}"] for note in notes),
        *(text_table(f"input, one process, years {spans(cost.years)}", _cost(cost, report)) for cost in report.costs),
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
        if "do not show" in year.file.variant.evidence:
            notes.append(f"{name}: {year.file.variant.evidence}; taken as {year.file.variant.name}")
        shape = (year.file.images, year.file.height, year.file.width)
        if year.file.year == 1979 and shape == _SHIPPED_YEAR and year.class_counts != _PUBLISHED_1979:
            notes.append(f"{name}: published class counts are {', '.join(map(str, _PUBLISHED_1979))}, in this order")
    if absent := [name for name, boxes in zip(CLASSES, report.class_counts, strict=True) if report.years and not boxes]:
        notes.append(f"no year has a box of {', '.join(absent)}: quality is measured on the other classes only")
    for year in report.years if not absent else ():
        if lacking := [name for name, boxes in zip(CLASSES, year.class_counts, strict=True) if not boxes]:
            name = year.file.path.name
            notes.append(f"{name}: no box of {', '.join(lacking)}: this year alone cannot evaluate every class")
    years = [year.file.year for year in report.years]
    if years and len(years) <= years[-1] - years[0]:
        notes.append(f"years are missing: the set has {spans(years)}")
    return notes


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
    """Whether another layout would be faster, and the command that writes it."""
    if cost.repacked:
        return f"{spans(cost.years)}: each image is one uncompressed piece of its file, the fastest layout"
    pieces = "one piece" if cost.chunks_per_image == 1 else f"{cost.chunks_per_image} pieces"
    shared = f", shared with {cost.window - 1} others" if cost.window > 1 else ""
    text = f"{spans(cost.years)}: an image is in {pieces} of its file{shared}; "
    if cost.gain <= _WORTH:
        return f"{text}one uncompressed chunk per image would gain little here"
    return (
        f"{text}one uncompressed chunk per image would be read {cost.gain:.2g} times as fast: "
        f"hpcai500 data repack ewa {report.root} NEW_FOLDER"
    )
