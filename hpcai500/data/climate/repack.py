"""Rewrites climate years so that each image is one piece of its file and can be read at the speed of the disk.

A repacking is estimated before it starts. It may be killed at any time: years that have their final names are done, and
the next call continues with the others. HDF5's library reads the source; before a new file gets its final name, the
core's reader, which runs use, reads it back from the disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.index import build_index, load_content_fingerprint, open_years, spans, year_paths
from hpcai500.data.climate.values import (
    ALL_CHANNELS,
    BLOCK_BYTES,
    MOST_BLOCK_BYTES,
    Accumulator,
    FloatArray,
    ImageScan,
    UnreadableImagesError,
    YearContent,
    boxes_digest,
    channel_blocks,
    chunk_channels,
    content_of,
    digest_images,
    drop_from_memory,
    load_contents,
    ranges,
    read_by_hdf5,
    scan_years,
    store_contents,
)
from hpcai500.data.climate.writing import Layout, addresses_of, new_file, put_spool, sync, write_at, write_spool
from hpcai500.data.climate.years import (
    BOXES,
    CHANNELS,
    IMAGES,
    FileIdentity,
    YearFile,
    as_shipped,
    identity_of,
    is_dangling,
    open_hdf5,
    open_year,
    plain,
    storage_of,
    year_of,
)
from hpcai500.data.derived import map_in_order, workers_or_all
from hpcai500.data.staged import require_whole
from hpcai500.errors import DataError, RunError
from hpcai500.files import lock, nearest, sync_folder, write_atomically
from hpcai500.job_options import Filter
from hpcai500.progress import Tracker, silent
from hpcai500.text import size

# ----------------------------------------------------------------------------------------------------
# One repacking at a time writes into a folder.


LOCK_FILE = ".hpcai500-repack.lock"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which ends with the process. The lock file is kept: removal would allow two holders.

    Raises:
        RunError: another process holds it.
        OSError: the folder cannot be written.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if lock(descriptor) == "taken":
            raise RunError(f"{folder}: another repacking is writing there: wait for it, and run this command again")
        yield
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# Which file a repacked year was made from: recorded in its folder, so that a changed source is noticed.


ORIGIN_FILE = ".hpcai500-repack.json"
_FORMAT = "hpcai500 repack origins 1"


def note_origin(final: Path, identity: FileIdentity, source: YearFile) -> None:
    """Record that the file `final`, of `identity`, has the values of `source`. Raises OSError when the disk is full."""
    entries = _origins(final.parent) | {final.name: _origin(identity, source)}
    document = {"format": _FORMAT, "files": dict(sorted(entries.items()))}
    write_atomically(final.parent / ORIGIN_FILE, (json.dumps(document, indent=1) + "\n").encode())


def _origin(identity: FileIdentity, source: YearFile) -> dict[str, Any]:
    # The new file is renamed later, which changes its time of change.
    return {"file": identity.of_copy(), "source": {**asdict(source.identity), "boxes": boxes_digest(source).hex()}}


def _origins(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / ORIGIN_FILE).read_bytes())
        return dict(document["files"]) if document["format"] == _FORMAT else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        # An unreadable file counts as empty: values are then compared.
        return {}


# ----------------------------------------------------------------------------------------------------
# One year repacked: written under another name, range by range, read back, and only then given its own name.


FILTERS: dict[Filter, tuple[str, ...]] = {"none": (), "lzf": ("shuffle", "lzf")}


@dataclass(frozen=True, eq=False)
class YearJob:
    """The file to write for a year: in `folder`, with `boxes`, and one image per chunk by the filter `kind`."""

    year: YearFile
    folder: Path
    boxes: npt.NDArray[np.int32]
    kind: Filter

    @property
    def final(self) -> Path:
        """The final file, which exists once it is complete and verified."""
        return self.folder / self.year.path.name

    @property
    def part(self) -> Path:
        """The hidden file that is written until then."""
        return self.folder / f".{self.final.name}.part"

    def leftovers(self) -> list[Path]:
        """Unfinished files of this year, including those of earlier versions."""
        ours = re.compile(re.escape(f".{self.final.name}.") + r"(part|journal|spool|\d+\.spool)")
        return [path for path in self.folder.glob(f".{self.final.name}.*") if ours.fullmatch(path.name)]

    def remove_leftovers(self) -> None:
        for path in self.leftovers():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def repack_year(job: YearJob, workers: int, progress: Tracker, of: str) -> None:
    """Write, verify and name the file of `job`, in `workers` processes.

    `of` is "1 of 3" for the progress bar: the number of this year.

    Raises:
        DataError: the source cannot be read.
        RunError: the file does not read back as written.
        OSError: the disk is full.
    """
    job.remove_leftovers()
    try:
        with progress(job.year.images, f"writing {job.final.name} ({of})", "images") as bar:
            scans: list[ImageScan] = []
            tasks = _write_tasks(job, _lay_out(job))
            written = map_in_order(_write_range, tasks, min(workers, len(tasks)), what="repacks images")
            # Closed before leftovers are removed, so that no process is still writing.
            with closing(written):
                for task, found in zip(tasks, written, strict=True):
                    if task.addresses is None:
                        put_spool(task.target, job.part)
                    scans += found
                    bar.advance(task.count)
            sync(job.part)
        with progress(job.year.images, f"verifying {job.final.name} ({of})", "images") as bar:
            for count in _verified(job, scans, workers):
                bar.advance(count)
        _publish(job, scans)
    finally:
        job.remove_leftovers()


def _lay_out(job: YearJob) -> list[int] | None:
    """Write the file of `job` with everything that its source holds except the values of images.

    Returns the addresses of the images; None where they are compressed.
    """
    shape = job.year.storage.shape
    layout: Layout = "image" if job.kind == "none" else "lzf"
    with (
        open_hdf5(job.year.path) as source,
        # It marks missing values, as attributes do.
        new_file(job.part, shape, layout, job.boxes.nbytes, source[IMAGES].fillvalue or None) as file,
    ):
        file.create_dataset(BOXES, data=job.boxes, dtype="<i4")
        for name in source:
            if name in (IMAGES, BOXES):
                continue
            # Of a link without a target, only the link can be copied.
            if is_dangling(source, name):
                file[name] = source.get(name, getlink=True)
            else:
                source.copy(name, file)
        for old, new in ((source, file), *((source[name], file[name]) for name in (IMAGES, BOXES))):
            _copy_attributes(old, new)
        return addresses_of(file) if job.kind == "none" else None


def _copy_attributes(old: Any, new: Any) -> None:
    for name in old.attrs:
        kind = old.attrs.get_id(name).dtype
        # A reference is an address in the old file (dimension scales have them).
        if h5py.check_ref_dtype(kind) is None and h5py.check_vlen_dtype(kind) is None and kind.names is None:
            new.attrs.create(name, old.attrs[name], dtype=kind)
        elif h5py.check_string_dtype(kind) is not None:
            new.attrs[name] = old.attrs[name]


@dataclass(frozen=True, eq=False)
class _WriteTask:
    """A range of images, and the file that they go to: at `addresses`, or compressed into a spool if None."""

    year: YearFile
    first: int
    count: int
    target: Path
    addresses: list[int] | None


def _write_tasks(job: YearJob, addresses: list[int] | None) -> list[_WriteTask]:
    tasks = []
    for first, count in ranges(job.year):
        if addresses is None:
            tasks.append(_WriteTask(job.year, first, count, job.part.with_suffix(f".{first}.spool"), None))
        else:
            tasks.append(_WriteTask(job.year, first, count, job.part, addresses[first : first + count]))
    return tasks


def _write_range(task: _WriteTask) -> tuple[ImageScan, ...]:
    scans = Accumulator(task.year, task.count)
    if task.addresses is None:
        images = read_by_hdf5(task.year, task.first, task.count, ALL_CHANNELS)
        scans.add(images)
        places = ((image, 0, 0, 0) for image in range(task.first, task.first + task.count))
        write_spool(task.target, ((place, *compress(image)) for place, image in zip(places, images, strict=True)))
        return scans.scans()
    for channels in channel_blocks(task.year, task.count):
        block = read_by_hdf5(task.year, task.first, task.count, channels)
        scans.add(block)
        offset = channels.start * task.year.plane_bytes
        write_at(task.target, block, [address + offset for address in task.addresses])
        # Processes share the wait for the disk, which would otherwise all come at the end.
        sync(task.target)
    return scans.scans()


def compress(image: FloatArray) -> tuple[int, bytes]:
    """Compress one image (16, height, width) by shuffle and LZF; returns the mask of skipped filters and the chunk."""
    # Through h5py, in a file in memory: the bytes are those that HDF5 would write.
    with h5py.File("chunk", "w", driver="core", backing_store=False) as memory:
        chunk = (1, *image.shape)
        dataset = memory.create_dataset("chunk", data=image[None], chunks=chunk, shuffle=True, compression="lzf")
        memory.flush()
        mask, content = dataset.id.read_direct_chunk((0, 0, 0, 0))
        return int(mask), bytes(content)


def _verified(job: YearJob, scans: Sequence[ImageScan], workers: int) -> Iterator[int]:
    """Read the file back from the disk, compare it with the source, and yield the number of images for each range."""
    # Cached pages prove nothing about the disk.
    drop_from_memory(job.part)
    try:
        with open_hdf5(job.part) as file:
            written, boxes = replace(job.year, path=job.part, storage=storage_of(file[IMAGES])), file[BOXES][()]
        if not np.array_equal(boxes, job.boxes):
            raise _not_kept(job, "dataset boxes does not read back as written")
        tasks = [(written, first, count) for first, count in ranges(written)]
        read_back = map_in_order(_digest_range, tasks, min(workers, len(tasks)), what="verifies images")
        for (_, first, count), digests in zip(tasks, read_back, strict=True):
            for image, digest in enumerate(digests, first):
                if digest != scans[image].digest:
                    raise _not_kept(job, f"image {image} does not read back as written")
            yield count
    # Unlike a source, the new file cannot be copied again.
    except UnreadableImagesError as error:
        raise _not_kept(job, str(error.faults[0])) from error
    except DataError as error:
        raise _not_kept(job, "not the file that was written") from error


def _not_kept(job: YearJob, what: str) -> RunError:
    return RunError(
        f"{job.part}: {what}: the disk or the memory is faulty; run the same command again to rewrite this year"
    )


def _digest_range(task: tuple[YearFile, int, int]) -> tuple[bytes, ...]:
    return digest_images(*task)


def _publish(job: YearJob, scans: Sequence[ImageScan]) -> None:
    """Record the origin, then rename the file: a year with its final name is done. Then record the contents."""
    note_origin(job.final, identity_of(job.part), job.year)
    job.part.rename(job.final)
    sync_folder(job.folder)
    made = replace(job.year, path=job.final, boxes=job.boxes, identity=identity_of(job.final))
    store_contents(job.folder, [made], {made.year: content_of(made, scans)})


# ----------------------------------------------------------------------------------------------------
# What a repacking will write and how long it will take, estimated before it starts.


_PROBE_BYTES = 2**26
# Boxes, the index of chunks and the gaps between them.
_OVERHEAD_BYTES = 2**21


@dataclass(frozen=True)
class Estimate:
    """What the remaining images will take.

    `needed_bytes` is the most space that the new files and the spools beside them occupy at once;
    `memory_bytes` is over all processes.
    """

    images: int
    write_bytes: int
    needed_bytes: int
    free_bytes: int
    memory_bytes: int
    seconds: float


def estimate(jobs: Sequence[YearJob], workers: int) -> Estimate:
    """Estimate `jobs` from a sample that is read, compressed, written and read back.

    Raises DataError when the disk has no room for it, or the sample cannot be read.
    """
    if not jobs:
        return Estimate(0, 0, 0, 0, 0, 0.0)
    year, kind, folder = jobs[0].year, jobs[0].kind, jobs[0].folder
    images = sum(job.year.images for job in jobs)
    read_seconds = _read_seconds(jobs[0])
    ratio, compress_seconds = (1.0, 0.0) if kind == "none" else _compression(jobs[0])
    write_bytes = int(sum(job.year.images * job.year.image_bytes for job in jobs) * ratio) + _OVERHEAD_BYTES * len(jobs)
    # Compressed images of one year are in spools beside their file until they are copied into it.
    waiting_bytes = 0 if kind == "none" else int(max(job.year.images * job.year.image_bytes for job in jobs) * ratio)
    # Leftovers of a killed call are removed before their year is written again.
    left_bytes = sum(
        file.stat().st_blocks * 512
        for job in jobs
        for path in job.leftovers()
        for file in (path, *path.rglob("*"))
        if file.is_file()
    )
    needed_bytes, free_bytes = write_bytes + waiting_bytes, _free_bytes(folder) + left_bytes
    if needed_bytes > free_bytes:
        raise DataError(
            f"{folder}: repacking needs {size(needed_bytes)}, but {size(free_bytes)} are free: choose another folder, "
            "or fewer --years at a time"
        )
    # Uncompressed bytes are written once and read once; compressed ones are also copied into their file.
    disk_seconds = _disk_seconds_per_byte(folder, write_bytes) * year.image_bytes * ratio * (1 if kind == "none" else 2)
    seconds = images * ((read_seconds + compress_seconds) / workers + disk_seconds)
    memory_bytes = workers * max(_held_bytes(job) for job in jobs)
    return Estimate(images, write_bytes, needed_bytes, free_bytes, memory_bytes, seconds)


def _held_bytes(job: YearJob) -> int:
    """Bytes that one process holds: a block, or, to compress whole images, all images that share chunks."""
    year = job.year
    most = max(count for _, count in ranges(year))
    if job.kind != "none":
        return 2 * most * year.image_bytes
    return min(most * year.image_bytes, max(BLOCK_BYTES, most * chunk_channels(year) * year.plane_bytes))


def _read_seconds(job: YearJob) -> float:
    """Seconds that a process takes to read an image and compute its digest and statistics."""
    year = job.year
    channels = chunk_channels(year)
    count = min(year.storage.window, year.images, max(1, MOST_BLOCK_BYTES // (channels * year.plane_bytes)))
    start_seconds = time.perf_counter()
    Accumulator(year, count).add(read_by_hdf5(year, 0, count, slice(0, channels)))
    return (time.perf_counter() - start_seconds) / count * len(CHANNELS) / channels


def _compression(job: YearJob) -> tuple[float, float]:
    """Stored bytes / bytes of the values, and seconds to compress, of the first image."""
    image = read_by_hdf5(job.year, 0, 1, ALL_CHANNELS)[0]
    start_seconds = time.perf_counter()
    _, content = compress(image)
    return len(content) / image.nbytes, time.perf_counter() - start_seconds


def _disk_seconds_per_byte(folder: Path, most_bytes: int) -> float:
    """Seconds to write a byte to `folder`, sync it and read it back. Raises OSError when the disk is full."""
    path = nearest(folder) / f".hpcai500-probe-{os.getpid()}"
    # Zeros would cost nothing on a file system that compresses.
    content = os.urandom(2**20) * max(1, min(_PROBE_BYTES, most_bytes) // 2**20)
    start_seconds = time.perf_counter()
    try:
        with path.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        path.read_bytes()
        return (time.perf_counter() - start_seconds) / len(content)
    finally:
        path.unlink(missing_ok=True)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(nearest(folder)).free


# ----------------------------------------------------------------------------------------------------
# Whether an existing file is the repacked year: by its boxes and layout, then by all values.


def has_form(job: YearJob) -> bool:
    """Whether the file of `job` exists, with its boxes and layout. Raises DataError when a different file exists."""
    if not job.final.exists():
        return False
    if job.final.samefile(job.year.path):
        raise DataError(f"{job.final}: the same file as {job.year.path}; repack into another folder")
    try:
        there = open_year(job.final)
    except DataError as error:
        raise _different(job) from error
    if (
        there.storage.chunk != (1, *job.year.storage.shape[1:])
        or there.storage.filters != FILTERS[job.kind]
        or there.missing != job.year.missing
        or not np.array_equal(there.boxes, job.boxes)
    ):
        raise _different(job)
    return True


def require_values(job: YearJob, workers: int, progress: Tracker) -> None:
    """Raise DataError unless the existing file has the values of the source.

    All values are read and compared, unless this file is recorded as made from this source.
    """
    there = open_year(job.final)
    if _origins(job.folder).get(job.final.name) == _origin(there.identity, job.year):
        return
    expected = _content(job.year, job.boxes, workers, progress)
    try:
        found = _content(there, there.boxes, workers, progress)
    except UnreadableImagesError as error:
        raise _different(job) from error
    if found.digest != expected.digest:
        raise _different(job)
    note_origin(job.final, there.identity, job.year)


def _content(year: YearFile, boxes: npt.NDArray[np.int32], workers: int, progress: Tracker) -> YearContent:
    """The content of `year`, as if its boxes were `boxes`."""
    known = load_contents([year]).get(year.year)
    if known is not None and boxes is year.boxes:
        return known
    scans: list[ImageScan] = []
    with progress(year.images, f"comparing {year.path}", "images") as bar:
        for part in scan_years([year], workers):
            if part.faults:
                raise UnreadableImagesError(part.faults)
            scans += part.images
            bar.advance(part.count)
    return content_of(replace(year, boxes=boxes), scans)


def _different(job: YearJob) -> DataError:
    return DataError(f"{job.final}: differs from a repacked {job.year.path}; remove it, or choose another folder")


# ----------------------------------------------------------------------------------------------------
# A whole repacking: planned, estimated, run.


@dataclass(frozen=True)
class RepackReport:
    """What was done, and the fingerprints of the new set.

    `written` years were written and verified; `kept` ones existed already. `converted` years had boxes of the swapped
    variant. The fingerprint is that of the source's years, unless boxes were converted. `stored_bytes` is over all
    files.
    """

    root: Path
    written: tuple[int, ...]
    kept: tuple[int, ...]
    converted: tuple[int, ...]
    samples: int
    stored_bytes: int
    fingerprint: str
    content_fingerprint: str | None
    seconds: float


class Repacking:
    """A repacking of checked years: `estimate` estimates its cost, `run` does it."""

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        kind: Filter = "none",
        years: tuple[int, int] | None = None,
        convert_boxes: bool = False,
        workers: int | None = None,
        progress: Tracker = silent,
    ) -> None:
        """Open the years of `source` (`years`: first and last; default: all), to be repacked into the folder `target`.

        Raises:
            DataError: there is nothing to repack, a file does not follow the format, boxes need to be converted, the
                folders are the same, or `target` holds other files of these names.
        """
        _require_apart(source, target)
        self._workers, self._progress = workers_or_all(workers), progress
        self._source, self._target = source, target
        self._years = open_years(source, _chosen(source, years), progress)
        build_index(source, self._years)
        self._converted = tuple(year.year for year in self._years if _needs_converting(year, convert_boxes))
        self._kind = kind
        self._look()

    def _look(self) -> None:
        jobs = [self._job(year) for year in self._years]
        self._there = [job for job in jobs if has_form(job)]
        self.jobs = [job for job in jobs if job not in self._there]

    def _job(self, year: YearFile) -> YearJob:
        boxes = as_shipped(year.boxes) if year.year in self._converted else year.boxes
        return YearJob(year, self._target, boxes, self._kind)

    def estimate(self) -> Estimate:
        """Estimate what is left to do. Raises DataError when the disk has no room for it."""
        with _written_to(self._target):
            return estimate(self.jobs, self._workers)

    def run(self) -> RepackReport:
        """Repack what is left; may be killed at any time; the next call continues with the next year.

        Existing years are kept after a check that they have the values of the source.

        Raises:
            DataError: the source cannot be read, or an existing year has other values.
            RunError: the disk is full or faulty, or another repacking is writing there.
        """
        start_seconds = time.monotonic()
        with _written_to(self._target):
            self._target.mkdir(parents=True, exist_ok=True)
            with only_writer(self._target):
                # Another repacking may have finished since this one was planned.
                self._look()
                for job in self._there:
                    require_values(job, self._workers, self._progress)
                    job.remove_leftovers()
                for number, job in enumerate(self.jobs, 1):
                    repack_year(job, self._workers, self._progress, f"{number} of {len(self.jobs)}")
        return self._report(time.monotonic() - start_seconds)

    def _report(self, seconds: float) -> RepackReport:
        paths = [self._target / year.path.name for year in self._years]
        index = build_index(self._target, open_years(self._target, paths))
        before = build_index(self._source, self._years).fingerprint
        if not self._converted and index.fingerprint != before:
            raise RunError(
                f"{self._target}: another fingerprint than {self._source}, which changed meanwhile; run again"
            )
        return RepackReport(
            root=self._target,
            written=tuple(job.year.year for job in self.jobs),
            kept=tuple(job.year.year for job in self._there),
            converted=self._converted,
            samples=sum(year.images for year in index.years),
            stored_bytes=sum(year.identity.size_bytes for year in index.years),
            fingerprint=index.fingerprint,
            content_fingerprint=load_content_fingerprint(index),
            seconds=seconds,
        )


def _require_apart(source: Path, target: Path) -> None:
    origin, place = source.resolve(), target.resolve()
    if origin == place:
        raise DataError(f"{target}: this is the source folder; repack the set into another folder")
    if place.is_relative_to(origin):
        raise DataError(f"{target}: inside the set {source}; choose a folder outside it")
    if target.exists() and not target.is_dir():
        raise DataError(f"{target}: not a folder")


def _chosen(source: Path, years: tuple[int, int] | None) -> tuple[Path, ...]:
    paths = {year_of(path.name): path for path in year_paths(source)}
    if years is None:
        require_whole(source)
        return tuple(paths.values())
    missing = [year for year in range(years[0], years[1] + 1) if year not in paths]
    if missing or years[1] < years[0]:
        there = spans([year for year in paths if year is not None])
        raise DataError(f"{source}: no file for {spans(missing) or 'no years'}; the set has {there}")
    return tuple(path for year, path in paths.items() if year is not None and years[0] <= year <= years[1])


def _needs_converting(year: YearFile, convert_boxes: bool) -> bool:
    if year.variant.name == "ambiguous":
        raise DataError(
            f"{year.path}: dataset boxes: unknown variant ({year.variant.evidence}); correct the file first"
        )
    if year.variant.name == "swapped" and not convert_boxes:
        raise DataError(
            f"{year.path}: dataset boxes: x and y are swapped, and classes count from 1 ({year.variant.evidence}), "
            "which no run accepts; add --convert-boxes to convert them"
        )
    return year.variant.name == "swapped"


@contextmanager
def _written_to(target: Path) -> Iterator[None]:
    """Report a full or unwritable disk in one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else plain(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room, and run the same command again" if full else "fix it, and run the same command again"
        raise RunError(f"{target}: cannot be written: {reason}; finished years are kept: {remedy}") from error
