"""Values of whole years: read in windows, hashed, summarised by channel, and kept beside the data.

Digests and statistics depend on values alone, not on the layout of a file or the number of processes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500._core import ClimateError, ClimateReader
from hpcai500.data.climate.years import (
    ABSENT,
    CHANNELS,
    DAMAGED,
    IMAGES,
    Located,
    Missing,
    YearFile,
    identity_of,
    open_hdf5,
    plain,
    unreadable,
)
from hpcai500.data.derived import derived_paths, map_in_order, workers_or_all, write_derived
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent

# ----------------------------------------------------------------------------------------------------
# Which chunks of a file cannot be read, and why: HDF5 itself only says that some filter failed.


@dataclass(frozen=True)
class Fault:
    """A chunk that cannot be read (None: the file is not chunked), and the images and channels that it holds."""

    path: Path
    chunk: tuple[int, ...] | None
    images: range
    channels: range
    reason: str
    remedy: str = "copy the file again"

    def __str__(self) -> str:
        one = len(self.images) == 1
        images = f"image {self.images[0]}" if one else f"images {self.images[0]} to {self.images[-1]}"
        names = [CHANNELS[channel] for channel in self.channels]
        channels = f"channel {names[0]}" if len(names) == 1 else f"channels {names[0]} to {names[-1]}"
        chunk = f", chunk {self.chunk}" if self.chunk else ""
        return f"dataset {IMAGES}, {images}, {channels}{chunk}: {self.reason}"


def find_faults(path: Path, file: h5py.File, first: int, count: int, channels: slice) -> Iterator[Fault]:
    """Yield the chunks that hold `channels` of images `first` to `first + count` and cannot be read.

    A chunk is named by its place in the grid of chunks.
    """
    dataset = file[IMAGES]
    sides = dataset.chunks or (1, *dataset.shape[1:])
    low, high = (first, channels.start, 0, 0), (first + count, channels.stop, *dataset.shape[2:])
    cells = [range(a // side, -(-b // side)) for a, b, side in zip(low, high, sides, strict=True)]
    for cell in itertools.product(*cells):
        begin = tuple(at * side for at, side in zip(cell, sides, strict=True))
        end = tuple(min(at + side, most) for at, side, most in zip(begin, sides, dataset.shape, strict=True))
        try:
            dataset[tuple(map(slice, begin, end))]
        except DAMAGED as error:
            reason = _reason(dataset, begin, error) if dataset.chunks else plain(error)
            images, of_channels = (range(a, b) for a, b in list(zip(begin, end, strict=True))[:2])
            yield Fault(path, cell if dataset.chunks else None, images, of_channels, reason)


def _reason(dataset: h5py.Dataset, begin: tuple[int, ...], error: BaseException) -> str:
    if "filter" not in str(error):
        return f"unreadable: {plain(error)}"
    try:
        _, stored = dataset.id.read_direct_chunk(begin)
        if dataset.compression == "gzip":
            zlib.decompress(stored[: -4 if dataset.fletcher32 else None])
    except zlib.error as inflating:
        # "Error -3 while decompressing data: incorrect data check"
        return f"does not inflate: {str(inflating).rpartition(': ')[2]}"
    except DAMAGED as reading:
        return f"unreadable: {plain(reading)}"
    return "its checksum (fletcher32) does not match" if dataset.fletcher32 else plain(error)


# ----------------------------------------------------------------------------------------------------
# Values of images as the file holds them, read in windows: ranges of images that share chunks.


FloatArray = npt.NDArray[np.float32]
ALL_CHANNELS = slice(0, len(CHANNELS))

# A block is what one process holds at a time: at least one window, of as many channels as one chunk has.
BLOCK_BYTES = 2**28
MOST_BLOCK_BYTES = 2**30


class UnreadableImagesError(DataError):
    """Chunks that cannot be read; the message names the file and the first of them."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        more = f" (and {len(faults) - 1} more chunks)" if len(faults) > 1 else ""
        super().__init__(f"{faults[0].path}: {faults[0]}{more}; {faults[0].remedy}")
        self.faults = faults

    def __reduce__(self) -> tuple[type[UnreadableImagesError], tuple[tuple[Fault, ...]]]:
        # Pickled from the process that reads to the one that reports.
        return type(self), (self.faults,)


def read_images(year: YearFile, first: int, count: int, *, channels: slice = ALL_CHANNELS) -> FloatArray:
    """Read images `first` to `first + count` of `year`, as (count, channels, height, width) float32.

    `channels` has no step.

    Raises:
        UnreadableImagesError: a chunk cannot be read (checksum, inflate, the disk).
        DataError: the file was removed or replaced since it was opened.
    """
    values = np.empty((count, channels.stop - channels.start, *year.grid), np.float32)
    try:
        # One thread: callers that read much share the work between processes.
        with ClimateReader(
            [Located(year.path, year.storage)],
            channels=range(channels.start, channels.stop),
            mean=None,
            std=None,
            dtype="float32",
            left=0,
            width=year.width,
            threads=1,
        ) as reader:
            reader.read_window(0, first, count, values)
    except ClimateError as error:
        if faults := _faults(year, first, count, channels):
            raise faults from error
        if error.kind != "corrupt" or error.image is None or error.channel is None:
            raise unreadable(error, year.path, len(CHANNELS)) from error
        reason = f"{error.reason}, but HDF5's library reads it"
        raise UnreadableImagesError((_unlike(year, error.chunk, error.image, error.channel, reason),)) from error
    return values


def read_by_hdf5(year: YearFile, first: int, count: int, channels: slice) -> FloatArray:
    """As `read_images`, by HDF5's own library: slower, and independent of the core's reader."""
    with open_hdf5(year.path) as file:
        try:
            values: FloatArray = file[IMAGES][first : first + count, channels]
        except DAMAGED as error:
            raise _faults(year, first, count, channels) or DataError(
                f"{year.path}: dataset {IMAGES}, images {first} to {first + count - 1}: {plain(error)}, but "
                "readable when tried again: the disk or the network is faulty; run the same command again"
            ) from error
    return values


def unlike_hdf5(year: YearFile) -> Iterator[Fault]:
    """Yield chunks in which the core's reader finds other values than HDF5's library does.

    One chunk of each kind is compared (inside the grid or at which of its edges, with which filters, written or not),
    in its first image and channel: nobody knows what else HDF5 will have learnt to write.
    """
    storage = year.storage
    sides = storage.chunk or (1, *storage.shape[1:])
    cells = np.indices([-(-extent // side) for extent, side in zip(storage.shape, sides, strict=True)])
    ends = (cells.reshape(4, -1).T + 1) * sides > storage.shape
    kinds = [ends] + ([storage.masks[:, None], (storage.addresses == ABSENT)[:, None]] if storage.chunk else [])
    _, firsts = np.unique(np.hstack(kinds), axis=0, return_index=True)
    with open_hdf5(year.path) as file:
        for cell in cells.reshape(4, -1).T[firsts].tolist():
            image, channel, row, column = (at * side for at, side in zip(cell, sides, strict=True))
            block = (slice(row, row + sides[2]), slice(column, column + sides[3]))
            try:
                by_hdf5 = file[IMAGES][(image, channel, *block)]
                by_core = read_images(year, image, 1, channels=slice(channel, channel + 1))[0, 0][block]
            except (DataError, *DAMAGED):
                # Found by whoever reads all values.
                continue
            if by_core.tobytes() != by_hdf5.tobytes():
                chunk = tuple(cell) if storage.chunk else None
                yield _unlike(year, chunk, image, channel, "hpcai500 reads other values than HDF5's library")


def _unlike(year: YearFile, chunk: tuple[int, ...] | None, image: int, channel: int, reason: str) -> Fault:
    remedy = "rewrite the file with h5repack -f NONE -l CONTI, and report it to the authors of hpcai500"
    return Fault(year.path, chunk, range(image, image + 1), range(channel, channel + 1), reason, remedy)


def _faults(year: YearFile, first: int, count: int, channels: slice) -> UnreadableImagesError | None:
    """All damaged chunks of the range, found by HDF5's library: the core's reader stops at the first."""
    with open_hdf5(year.path) as file:
        faults = tuple(find_faults(year.path, file, first, count, channels))
    return UnreadableImagesError(faults) if faults else None


def drop_from_memory(path: Path) -> None:
    """Drop a file from the page cache, so that it is read from disk again. Raises OSError when it does not exist."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def ranges(year: YearFile) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of consecutive ranges that cover the year, each of whole windows where memory allows.

    Single images are joined up to BLOCK_BYTES; a window is split where one chunk's channels of it exceed a GiB.
    """
    window, images = year.storage.window, year.images
    most = max(1, MOST_BLOCK_BYTES // (chunk_channels(year) * year.plane_bytes))
    joined = max(1, BLOCK_BYTES // (window * year.image_bytes)) * window
    for start in range(0, images, joined):
        stop = min(start + joined, images)
        for first in range(start, stop, most):
            yield first, min(most, stop - first)


def channel_blocks(year: YearFile, count: int) -> Iterator[slice]:
    """Yield the ranges of channels in which to read `count` images: bounded in memory, no chunk read twice."""
    least = chunk_channels(year)
    step = max(1, BLOCK_BYTES // (least * count * year.plane_bytes)) * least
    for start in range(0, len(CHANNELS), step):
        yield slice(start, min(start + step, len(CHANNELS)))


def chunk_channels(year: YearFile) -> int:
    """How many channels a chunk holds; 1 where the file is one piece. With room for more, a chunk may be larger."""
    return min(year.storage.chunk[1], len(CHANNELS)) if year.storage.chunk else 1


# ----------------------------------------------------------------------------------------------------
# Moments of the 16 channels, accumulated over images and years without a second pass.
#
# Mean and sum of squared deviations of a union follow from those of its parts, in float64, without cancellation (Chan,
# Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances").


Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_COUNTS = ("count", "nan", "infinite", "missing")
_VALUES = ("mean", "m2", "minimum", "maximum")


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Statistics of each channel, as arrays of 16.

    Attributes:
        count: finite values that are not missing; mean, m2, minimum and maximum are over these.
        missing: finite values that stand for none (`Missing`).
        mean: in the channel's unit; 0 without values.
        m2: sum of squared deviations from the mean.
        minimum, maximum: infinity and minus infinity without values.
    """

    count: Counts
    nan: Counts
    infinite: Counts
    missing: Counts
    mean: Values
    m2: Values
    minimum: Values
    maximum: Values

    def merged(self, other: ChannelStatistics) -> ChannelStatistics:
        """The statistics of the values of both."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        difference = other.mean - self.mean
        return ChannelStatistics(
            count=count,
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            missing=self.missing + other.missing,
            mean=self.mean + difference * share,
            m2=self.m2 + other.m2 + difference**2 * self.count * share,
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    @property
    def std(self) -> Values:
        """Population standard deviation; 0 without values."""
        return np.sqrt(self.m2 / np.maximum(self.count, 1))

    @property
    def bad(self) -> Counts:
        """Values that no run can use."""
        return self.nan + self.infinite + self.missing

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Which channels have one value only, or none."""
        return self.minimum >= self.maximum

    def document(self) -> dict[str, list[int] | list[float]]:
        """Plain lists that JSON keeps to the bit."""
        return {name: getattr(self, name).tolist() for name in (*_COUNTS, *_VALUES)}


def no_values() -> ChannelStatistics:
    zeros, reals = np.zeros(len(CHANNELS), np.int64), np.zeros(len(CHANNELS))
    return ChannelStatistics(zeros, zeros, zeros, zeros, reals, reals, reals + math.inf, reals - math.inf)


def combined(parts: Iterable[ChannelStatistics]) -> ChannelStatistics:
    """The statistics of the values of all `parts`, in their order."""
    return reduce(ChannelStatistics.merged, parts, no_values())


def from_document(document: Any) -> ChannelStatistics:
    """The inverse of `document()`. Raises KeyError, TypeError or ValueError for impossible statistics."""
    arrays: dict[str, Any] = {name: _numbers(document[name], int, np.int64) for name in _COUNTS}
    arrays |= {name: _numbers(document[name], (int, float), np.float64) for name in _VALUES}
    statistics = ChannelStatistics(**arrays)
    if not _possible(statistics):
        raise ValueError("impossible statistics")
    return statistics


def _numbers(listed: Any, kind: Any, dtype: Any) -> npt.NDArray[Any]:
    if len(listed) != len(CHANNELS) or not all(isinstance(number, kind) for number in listed):
        raise ValueError("statistics with a wrong number of channels, or not numbers")
    try:
        return np.array(listed, dtype)
    except OverflowError as error:
        raise ValueError("statistics with numbers that are too large") from error


def _possible(found: ChannelStatistics) -> bool:
    counts = np.stack([getattr(found, name) for name in _COUNTS])
    low, high, some = found.minimum, found.maximum, found.count > 0
    extremes = np.where(
        some, np.isfinite(low) & np.isfinite(high) & (low <= high), (low == math.inf) & (high == -math.inf)
    )
    moments = np.isfinite(found.mean) & np.isfinite(found.m2) & (found.m2 >= 0)
    return bool((counts >= 0).all() and extremes.all() and moments.all())


def of_planes(planes: FloatArray, missing: Missing) -> ChannelStatistics:
    """The statistics of `planes` (channels, height, width), one element for each: all 16, or a block of them.

    Values that are `missing` are counted and left out.
    """
    # Signalling NaNs, and infinity minus infinity, are expected here.
    with np.errstate(invalid="ignore"):
        rows = [_of_plane(plane, missing) for plane in planes]
    columns: dict[str, Any] = dict(zip((*_COUNTS, *_VALUES), map(np.array, zip(*rows, strict=True)), strict=True))
    return ChannelStatistics(**columns)


def joined(blocks: Sequence[ChannelStatistics]) -> ChannelStatistics:
    """The statistics of an image from those of its `blocks` of channels, in their order."""
    columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in (*_COUNTS, *_VALUES)}
    return ChannelStatistics(**columns)


def _of_plane(plane: FloatArray, missing: Missing) -> tuple[int, int, int, int, float, float, float, float]:
    values = plane.astype(np.float64).ravel()
    nan = infinite = 0
    # Finite float32 values cannot overflow a float64 sum, and any other value makes the sum not finite.
    if not math.isfinite(values.sum()):
        nan = int(np.isnan(values).sum())
        values = values[np.isfinite(values)]
        infinite = plane.size - nan - values.size
    none = missing.among(values)
    if filled := int(none.sum()):
        values = values[~none]
    if not values.size:
        return 0, nan, infinite, filled, 0.0, 0.0, math.inf, -math.inf
    low, high = float(values.min()), float(values.max())
    mean = float(values.sum()) / values.size
    values -= mean
    # Corrects for the rounding of the mean.
    rest = float(values.sum())
    np.square(values, out=values)
    m2 = max(float(values.sum()) - rest * rest / values.size, 0.0)
    return values.size, nan, infinite, filled, mean, m2, low, high


# ----------------------------------------------------------------------------------------------------
# One pass over the values of images: digest and statistics of each, the same in every layout.


@dataclass(frozen=True)
class ImageScan:
    """An image's SHA-256 over its values (little-endian float32, channel by channel), and its statistics."""

    digest: bytes
    statistics: ChannelStatistics


@dataclass(frozen=True)
class RangeScan:
    """Consecutive images of one year. `images` is empty when there are `faults`: chunks that cannot be read."""

    year: int
    first: int
    count: int
    images: tuple[ImageScan, ...]
    faults: tuple[Fault, ...] = ()


class Accumulator:
    """Scans `count` images of `year`, given block by block of channels, in order."""

    def __init__(self, year: YearFile, count: int) -> None:
        self._missing = year.missing
        self._digests = [hashlib.sha256() for _ in range(count)]
        self._blocks: list[list[ChannelStatistics]] = [[] for _ in range(count)]

    def add(self, block: FloatArray) -> None:
        """Add the next channels of all images: (count, channels, height, width), C-contiguous."""
        for digest, blocks, planes in zip(self._digests, self._blocks, block, strict=True):
            digest.update(np.ascontiguousarray(planes, "<f4").data)
            blocks.append(of_planes(planes, self._missing))

    def scans(self) -> tuple[ImageScan, ...]:
        """The scans, once all 16 channels were added."""
        return tuple(
            ImageScan(digest.digest(), joined(blocks))
            for digest, blocks in zip(self._digests, self._blocks, strict=True)
        )


def digest_images(year: YearFile, first: int, count: int) -> tuple[bytes, ...]:
    """The digests of the values of images `first` to `first + count` of `year`. Raises UnreadableImagesError."""
    digests = [hashlib.sha256() for _ in range(count)]
    for channels in channel_blocks(year, count):
        for digest, planes in zip(digests, read_images(year, first, count, channels=channels), strict=True):
            digest.update(np.ascontiguousarray(planes, "<f4").data)
    return tuple(digest.digest() for digest in digests)


def scan_years(years: Sequence[YearFile], workers: int) -> Iterator[RangeScan]:
    """Scan all images of `years`, in order, in `workers` processes, each of which holds at most a block."""
    tasks = [(year, first, count) for year in years for first, count in ranges(year)]
    yield from map_in_order(_scan_range, tasks, min(workers, max(len(tasks), 1)), what="reads images")


def _scan_range(task: tuple[YearFile, int, int]) -> RangeScan:
    year, first, count = task
    scans, faults = Accumulator(year, count), [] if first else list(unlike_hdf5(year))
    for channels in channel_blocks(year, count):
        try:
            block = read_images(year, first, count, channels=channels)
        except UnreadableImagesError as error:
            faults += error.faults
            continue
        if not faults:
            scans.add(block)
    return RangeScan(year.year, first, count, () if faults else scans.scans(), tuple(faults))


# ----------------------------------------------------------------------------------------------------
# Digest and statistics of a year, measured once and kept beside the data.
#
# They are valid as long as the file keeps its identity and its boxes.


FILE = ".hpcai500-climate.json"
_FORMAT = "hpcai500 climate content 1"
_DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError)


@dataclass(frozen=True)
class YearContent:
    """SHA-256 (hex) of a year's values and boxes, the same in every layout; its statistics; and where they are bad.

    `first_bad` is, for each channel, the first image with values that no run can use; None without any.
    """

    digest: str
    statistics: ChannelStatistics
    first_bad: tuple[int | None, ...]


def content_of(year: YearFile, images: Iterable[ImageScan]) -> YearContent:
    """The content of `year` from the scans of all its images, in order."""
    scans = tuple(images)
    assert len(scans) == year.images
    digest = hashlib.sha256(f"{_FORMAT} {year.year} {year.images} {year.height} {year.width}\n".encode())
    for scan in scans:
        digest.update(scan.digest)
    digest.update(boxes_digest(year))
    bad = np.stack([scan.statistics.bad > 0 for scan in scans])
    first_bad = tuple(int(of_channel.argmax()) if of_channel.any() else None for of_channel in bad.T)
    return YearContent(digest.hexdigest(), combined(scan.statistics for scan in scans), first_bad)


def content_fingerprint(contents: Mapping[int, YearContent]) -> str:
    """SHA-256 (hex) over the years (keys) and their contents, ascending."""
    lines = [_FORMAT, *(f"{year} {contents[year].digest}" for year in sorted(contents))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def boxes_digest(year: YearFile) -> bytes:
    """SHA-256 of the year's boxes as stored in the file."""
    return hashlib.sha256(np.ascontiguousarray(year.boxes, "<i4").data).digest()


def load_contents(years: Iterable[YearFile]) -> dict[int, YearContent]:
    """The contents that are kept for `years`, by year; others are absent."""
    return _load(years, but=())


def load_contents_by_times(years: Iterable[YearFile]) -> dict[int, YearContent]:
    """As `load_contents`, of files with these sizes, times and boxes: whatever values they have now."""
    return _load(years, but=("drawn",))


def _load(years: Iterable[YearFile], but: Collection[str]) -> dict[int, YearContent]:
    found: dict[int, YearContent] = {}
    for year in years:
        expected = {name: value for name, value in _key(year).items() if name not in but}
        for path in derived_paths(year.path.parent, FILE):
            try:
                entry = _entries(path)[str(year.year)]
                if {name: value for name, value in entry["key"].items() if name not in but} == expected:
                    found[year.year] = _content(entry, year)
                    break
            except _DAMAGED:
                # A damaged file counts as empty.
                continue
    return found


def store_contents(root: Path, years: Iterable[YearFile], contents: Mapping[int, YearContent]) -> None:
    """Keep `contents` of `years` (files in `root`) for later runs, besides what is kept for other years.

    Files that have changed since they were opened are left out.
    """
    entries: dict[str, Any] = {}
    for path in reversed(derived_paths(root, FILE)):
        try:
            entries |= _entries(path)
        except _DAMAGED:
            continue
    for year in years:
        if year.year in contents and identity_of(year.path) == year.identity:
            content = contents[year.year]
            statistics = content.statistics.document()
            entries[str(year.year)] = {
                "key": _key(year),
                "digest": content.digest,
                "statistics": statistics,
                "first_bad": content.first_bad,
            }
    document = {"format": _FORMAT, "years": dict(sorted(entries.items()))}
    write_derived(root, FILE, (json.dumps(document, indent=1) + "\n").encode())


def _entries(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_bytes())
    if document["format"] != _FORMAT:
        return {}
    return dict(document["years"])


def _content(entry: Any, year: YearFile) -> YearContent:
    digest, statistics = entry["digest"], from_document(entry["statistics"])
    if len(bytes.fromhex(digest)) != hashlib.sha256().digest_size:
        raise ValueError("not a SHA-256")
    if (statistics.count + statistics.bad != year.images * year.height * year.width).any():
        raise ValueError("statistics of a wrong number of values")
    first_bad = tuple(entry["first_bad"])
    if [image in range(year.images) for image in first_bad] != (statistics.bad > 0).tolist():
        raise ValueError("not the images of the values that are bad")
    return YearContent(digest, statistics, first_bad)


def _key(year: YearFile) -> dict[str, Any]:
    return {**asdict(year.identity), "boxes": boxes_digest(year).hex(), "missing": repr(year.missing)}


# ----------------------------------------------------------------------------------------------------
# Mean and standard deviation of each channel over years of images: measured once, in parallel, and kept.


def constant_channels(whole: ChannelStatistics, channels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Describe those of `channels` (None: all) that have one value only, and cannot be normalised."""
    constant = whole.constant & (whole.count > 0)
    return tuple(
        f"channel {channel} {CHANNELS[channel]}: all values are {whole.minimum[channel]:g}"
        for channel in _selected(constant, channels)
    )


def require_varied(statistics: ChannelStatistics, channels: Sequence[int] | None, where: str) -> None:
    """Raise DataError, beginning with `where`, unless each of `channels` (None: all) has two different values."""
    if reasons := constant_channels(statistics, channels):
        raise DataError(
            f"{where}: {reasons[0]}, so the channel cannot be normalised; leave it out of the recipe's channels, "
            "or choose other training years"
        )


def _selected(marked: npt.NDArray[np.bool_], channels: Sequence[int] | None) -> list[int]:
    return [channel for channel in np.flatnonzero(marked).tolist() if channels is None or channel in channels]


def measure(
    years: Sequence[YearFile], *, workers: int | None = None, progress: Tracker = silent
) -> dict[int, YearContent]:
    """Read all images of `years` in `workers` processes (default: one per core of this job), and keep the contents.

    A process holds one block of images (`ranges`). An interrupted measurement resumes with the year it was at.

    Raises:
        UnreadableImagesError: chunks cannot be read.
    """
    contents: dict[int, YearContent] = {}
    scans: list[ImageScan] = []
    by_year = {year.year: year for year in years}
    with progress(sum(year.images for year in years), "measuring channels", "images") as bar:
        for part in scan_years(years, workers_or_all(workers)):
            if part.faults:
                raise UnreadableImagesError(part.faults)
            scans += part.images
            bar.advance(part.count)
            year = by_year[part.year]
            if len(scans) == year.images:
                contents[part.year] = content_of(year, scans)
                scans.clear()
                # Kept year by year, so that an interrupted measurement can resume.
                store_contents(year.path.parent, [year], contents)
    return contents


def load_or_measure(
    years: Sequence[YearFile],
    *,
    channels: Sequence[int] | None = None,
    workers: int | None = None,
    progress: Tracker = silent,
) -> tuple[ChannelStatistics, ...]:
    """The statistics of each of `years`; those not kept are measured, for all channels.

    Raises:
        DataError: one of `channels` (None: all) holds NaN, infinite or missing values, or chunks cannot be read.
    """
    known = load_contents(years)
    if missing := [year for year in years if year.year not in known]:
        known |= measure(missing, workers=workers, progress=progress)
    for year in years:
        found = known[year.year].statistics
        if odd := _selected(found.bad > 0, channels):
            channel, image = odd[0], known[year.year].first_bad[odd[0]]
            kinds = {"NaN": found.nan, "infinite": found.infinite, f"missing ({year.missing})": found.missing}
            counts = ", ".join(f"{count[channel]} {kind}" for kind, count in kinds.items() if count[channel])
            raise DataError(
                f"{year.path}: channel {channel} {CHANNELS[channel]}: values that cannot be used: {counts}, the first "
                f"in image {image}: correct the file, or leave the channel out of the recipe's channels; "
                f"`hpcai500 data check ewa {year.path.parent}` names the images"
            )
    return tuple(known[year.year].statistics for year in years)
