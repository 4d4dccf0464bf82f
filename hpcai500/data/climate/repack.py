"""Rewrites climate years so that an image is one piece of its file, which is read as fast as the disk gives it.

A repacking is estimated before it starts, may be killed at any time and then resumed, and reads each year back from
the disk before the file gets its final name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.index import build_index, load_content_fingerprint, open_years, spans, year_paths
from hpcai500.data.climate.values import (
    BLOCK_BYTES,
    MOST_BLOCK_BYTES,
    Accumulator,
    ImageScan,
    UnreadableImagesError,
    YearContent,
    boxes_digest,
    channel_blocks,
    chunk_channels,
    content_of,
    digest_images,
    from_document,
    load_contents,
    processes,
    ranges,
    read_images,
    scan_years,
    store_contents,
)
from hpcai500.data.climate.years import (
    BOXES,
    CHANNELS,
    IMAGES,
    Storage,
    YearFile,
    as_shipped,
    leads_nowhere,
    open_hdf5,
    open_year,
    plain,
    storage_of,
    year_of,
)
from hpcai500.data.derived import map_in_order
from hpcai500.data.staged import require_whole
from hpcai500.errors import DataError, RunError
from hpcai500.files import allocate, sync_folder, write_atomically
from hpcai500.progress import Tracker, silent
from hpcai500.text import size

# ----------------------------------------------------------------------------------------------------
# One repacking at a time writes into a folder.


LOCK_FILE = ".hpcai500-repack.lock"
# Raised by file systems without such locks, as parallel ones mounted without them.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which ends with the process. The lock file stays: removed, it could be locked twice.

    Raises:
        RunError: another process holds it.
        OSError: the folder cannot be written.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"{folder}: another repacking writes there: wait for it, and run this command again"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# Which file a repacked year was made from: kept in its folder, so that a changed source is noticed.


ORIGIN_FILE = ".hpcai500-repack.json"
_FORMAT = "hpcai500 repack origins 1"


def is_made_from(new: YearFile, source: YearFile) -> bool:
    """Whether `new` is recorded as made from `source`, and neither file has changed since."""
    return _read(new.path.parent).get(new.path.name) == _entry(new, source)


def note_origin(new: YearFile, source: YearFile) -> None:
    """Record that `new` was made from `source`, or has the same values. Raises OSError when the disk is full."""
    folder = new.path.parent
    entries = _read(folder) | {new.path.name: _entry(new, source)}
    document = {"format": _FORMAT, "files": dict(sorted(entries.items()))}
    write_atomically(folder / ORIGIN_FILE, (json.dumps(document, indent=1) + "\n").encode())


def _entry(new: YearFile, source: YearFile) -> dict[str, Any]:
    return {"file": asdict(new.identity), "source": {**asdict(source.identity), "boxes": boxes_digest(source).hex()}}


def _read(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / ORIGIN_FILE).read_bytes())
        return dict(document["files"]) if document["format"] == _FORMAT else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        # A file that cannot be read counts as empty: values are then compared.
        return {}


# ----------------------------------------------------------------------------------------------------
# The journal of a year that is being repacked: a line for each range of images whose values are on the disk.
#
# A line is written after its images, so a repacking killed at any time resumes behind the last whole line.


_JOURNAL_FORMAT = "hpcai500 repack 1"


@dataclass(frozen=True)
class WrittenRange:
    """Images from `first` on that are on the disk; `chunks` has stored size and filter mask of each, if compressed."""

    first: int
    scans: tuple[ImageScan, ...]
    chunks: tuple[tuple[int, int], ...] = ()


class Journal:
    """The ranges of one year that are done, by first image. A journal kept for another `purpose` counts as none."""

    def __init__(self, path: Path, purpose: dict[str, Any]) -> None:
        self._path = path
        self._purpose = json.loads(json.dumps({"format": _JOURNAL_FORMAT, **purpose}))
        self.done: dict[int, WrittenRange] = {}
        self._whole_bytes = 0
        self.exists = self._read()

    def start(self) -> None:
        """Begin anew, with nothing done. Raises OSError when the disk is full."""
        line = _line(self._purpose)
        write_atomically(self._path, line)
        self._whole_bytes = len(line)
        self.done, self.exists = {}, True

    def add(self, written: WrittenRange) -> None:
        """Record that `written` is on the disk, and sync the record. Raises OSError when the disk is full."""
        images = [{"sha256": scan.digest.hex(), **scan.statistics.document()} for scan in written.scans]
        line = _line({"first": written.first, "images": images, "chunks": written.chunks})
        with self._path.open("r+b") as stream:
            # Nothing may be appended behind a torn line.
            stream.truncate(self._whole_bytes)
            stream.seek(self._whole_bytes)
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        self._whole_bytes += len(line)
        self.done[written.first] = written

    def scans(self) -> tuple[ImageScan, ...]:
        return tuple(scan for first in sorted(self.done) for scan in self.done[first].scans)

    def _read(self) -> bool:
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return False
        documents = _whole(lines)
        if not documents or documents[0] != self._purpose:
            return False
        try:
            self.done = {written.first: written for written in map(_written, documents[1:])}
        except (KeyError, TypeError, ValueError):
            return False
        self._whole_bytes = sum(map(len, lines[: len(documents)]))
        return True


def _whole(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    documents = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        documents.append(document)
    return documents


def _written(document: dict[str, Any]) -> WrittenRange:
    scans = tuple(ImageScan(bytes.fromhex(image["sha256"]), from_document(image)) for image in document["images"])
    return WrittenRange(document["first"], scans, tuple((size, mask) for size, mask in document["chunks"]))


def _line(document: dict[str, Any]) -> bytes:
    return (json.dumps(document) + "\n").encode()


# ----------------------------------------------------------------------------------------------------
# The file that a year is repacked into: laid out before it is filled, so that HDF5 never has to repair it.
#
# Uncompressed chunks have their addresses from the start, and images are written there without HDF5. The sizes of
# compressed ones are not known before: they wait in files beside it, and are put in when all are there.


Filter = Literal["none", "lzf"]
FILTERS: dict[Filter, tuple[str, ...]] = {"none": (), "lzf": ("shuffle", "lzf")}
FloatArray = npt.NDArray[np.float32]

# Images begin at pages, so that they can be mapped, or read past the page cache.
_PAGE_BYTES = 4096
# What HDF5 writes beside values: above all a table of chunks. It is allocated first, because HDF5 cannot even close a
# file that it cannot write to its end.
_INDEX_BYTES = 2**20


def lay_out(path: Path, year: YearFile, boxes: npt.NDArray[np.int32], kind: Filter) -> None:
    """Write the file of `year` at `path`, with `boxes` and all else that its own file holds except values of images.

    Raises OSError when the disk is full.
    """
    chunk = image_chunk(year)
    aligned = {"alignment_threshold": _PAGE_BYTES, "alignment_interval": _PAGE_BYTES}
    allocate(path, boxes.nbytes + _INDEX_BYTES)
    with open_hdf5(year.path) as source, _disk_errors(), h5py.File(path, "w", **aligned) as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunk)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        if kind == "none":
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        else:
            properties.set_shuffle()
            properties.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((year.images, *chunk[1:]))
        h5py.h5d.create(file.id, IMAGES.encode(), h5py.h5t.IEEE_F32LE, space, properties)
        file.create_dataset(BOXES, data=boxes, dtype="<i4")
        for name in source:
            if name in (IMAGES, BOXES):
                continue
            # A link that leads nowhere has nothing to copy but itself.
            if leads_nowhere(source, name):
                file[name] = source.get(name, getlink=True)
            else:
                source.copy(name, file)
        for old, new in ((source, file), *((source[name], file[name]) for name in (IMAGES, BOXES))):
            _copy_attributes(old, new)
    _sync(path)


def image_chunk(year: YearFile) -> tuple[int, ...]:
    """The shape of a chunk that is one image of `year`."""
    return (1, *year.storage.shape[1:])


def storage_at(path: Path) -> Storage:
    """Where the images lie in the file at `path`. Raises DataError when it is damaged."""
    with open_hdf5(path) as file:
        return storage_of(file[IMAGES])


def boxes_at(path: Path) -> npt.NDArray[np.int32]:
    """The boxes in the file at `path`. Raises DataError when it is damaged."""
    with open_hdf5(path) as file:
        rows: npt.NDArray[np.int32] = file[BOXES][()]
        return rows


def write_planes(path: Path, block: FloatArray, addresses: Iterable[int]) -> None:
    """Write each element of `block`, little-endian, at its byte address in the file at `path`, and sync it.

    Raises OSError when the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for planes, address in zip(block, addresses, strict=True):
            left = np.ascontiguousarray(planes, "<f4").data.cast("B")
            while left:
                count = os.pwrite(descriptor, left, address)
                left, address = left[count:], address + count  # noqa: PLW2901 - a write may be cut short
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def compress(image: FloatArray) -> tuple[bytes, int]:
    """The chunk of one image (16, height, width), by shuffle and LZF, and the mask of filters that were left out."""
    # By h5py's own filter, in a file that never leaves memory: the bytes are those that HDF5 would write.
    with h5py.File("chunk", "w", driver="core", backing_store=False) as memory:
        chunk = (1, *image.shape)
        dataset = memory.create_dataset("chunk", data=image[None], chunks=chunk, shuffle=True, compression="lzf")
        memory.flush()
        mask, content = dataset.id.read_direct_chunk((0, 0, 0, 0))
        return bytes(content), int(mask)


def put_chunks(path: Path, chunks: Iterable[tuple[int, bytes, int]], stored_bytes: int) -> None:
    """Put compressed `chunks` (image, content, mask), of `stored_bytes` in all, into the file at `path`, and sync it.

    Raises OSError when the disk is full; the file is then gone.
    """
    allocate(path, path.stat().st_size + stored_bytes + _INDEX_BYTES)
    with _disk_errors(), h5py.File(path, "r+") as file:
        dataset = file[IMAGES]
        for image, content, mask in chunks:
            dataset.id.write_direct_chunk((image, 0, 0, 0), content, filter_mask=mask)
    _sync(path)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise the system's own error where HDF5 wraps it."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _copy_attributes(old: Any, new: Any) -> None:
    for name in old.attrs:
        kind = old.attrs.get_id(name).dtype
        # A reference is an address in the old file (dimension scales have them).
        if h5py.check_ref_dtype(kind) is None and h5py.check_vlen_dtype(kind) is None and kind.names is None:
            new.attrs.create(name, old.attrs[name], dtype=kind)
        elif h5py.check_string_dtype(kind) is not None:
            new.attrs[name] = old.attrs[name]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# One year repacked: written under another name, range by range, read back, and only then given its own name.


@dataclass(frozen=True, eq=False)
class YearJob:
    """What becomes of a year: a file in `folder` with `boxes`, and images in chunks of one, by the filter `kind`."""

    year: YearFile
    folder: Path
    boxes: npt.NDArray[np.int32]
    kind: Filter

    @property
    def final(self) -> Path:
        """The final file, which exists once it is whole and was read back."""
        return self.folder / self.year.path.name

    @property
    def part(self) -> Path:
        """The hidden file that is written until then."""
        return self.folder / f".{self.final.name}.part"

    @property
    def spool(self) -> Path:
        """The folder of compressed images that wait to be put into the file."""
        return self.folder / f".{self.final.name}.spool"

    @cached_property
    def journal(self) -> Journal:
        """What is done, for this source, these boxes and this filter."""
        purpose = {
            "size_bytes": self.year.identity.size_bytes,
            "mtime_ns": self.year.identity.mtime_ns,
            "boxes": boxes_digest(replace(self.year, boxes=self.boxes)).hex(),
            "filter": self.kind,
            # Another version may cut a year into different ranges.
            "counts": [count for _, count in ranges(self.year)],
        }
        return Journal(self.journal_path, purpose)

    @property
    def journal_path(self) -> Path:
        return self.folder / f".{self.final.name}.journal"

    @property
    def resumable(self) -> bool:
        """Whether all files that the journal names are there."""
        if not self.journal.exists:
            return False
        needed = [self.part] if self.kind == "none" else [self.spooled(first) for first in self.journal.done]
        return all(path.exists() for path in needed)

    def spooled(self, first: int) -> Path:
        """The file of the compressed images of the range that begins at `first`."""
        return self.spool / f"{first:06d}.lzf"

    @property
    def images_left(self) -> int:
        """Images that no earlier call has written."""
        if not self.resumable:
            return self.year.images
        return self.year.images - sum(len(written.scans) for written in self.journal.done.values())


def repack_year(job: YearJob, workers: int, progress: Tracker, of: str) -> YearFile:
    """Write, verify and name the file of `job`, in `workers` processes; resumes where an earlier call was stopped.

    `of` tells the progress bar which of how many years this is.

    Raises:
        DataError: the source cannot be read.
        RunError: what is read back is not what was written.
        OSError: the disk is full; what was written stays.
    """
    if not job.resumable:
        _start(job)
    with progress(job.year.images, f"writing {job.final.name} ({of})", "images") as bar:
        bar.advance(job.year.images - job.images_left)
        tasks = _write_tasks(job)
        for written in map_in_order(_write_range, tasks, min(workers, len(tasks) or 1), what="repacks images"):
            job.journal.add(written)
            bar.advance(len(written.scans))
    if job.kind != "none":
        _assemble(job)
    with progress(job.year.images, f"verifying {job.final.name} ({of})", "images") as bar:
        for count in _verified(job, workers):
            bar.advance(count)
    return _publish(job)


def settle(job: YearJob) -> YearFile:
    """Keep contents and origin of the finished file, and remove what was needed to make it."""
    new = open_year(job.final)
    scans = job.journal.scans()
    if len(scans) == new.images:
        store_contents(job.folder, [new], {new.year: content_of(new, scans)})
    note_origin(new, job.year)
    shutil.rmtree(job.spool, ignore_errors=True)
    for path in (job.part, job.journal_path):
        path.unlink(missing_ok=True)
    return new


@dataclass(frozen=True, eq=False)
class _WriteTask:
    year: YearFile
    first: int
    count: int
    target: Path
    addresses: tuple[int, ...] | None


def _start(job: YearJob) -> None:
    shutil.rmtree(job.spool, ignore_errors=True)
    job.part.unlink(missing_ok=True)
    if job.kind == "none":
        lay_out(job.part, job.year, job.boxes, job.kind)
    else:
        job.spool.mkdir()
    job.journal.start()


def _write_tasks(job: YearJob) -> list[_WriteTask]:
    addresses = None
    if job.kind == "none":
        with _own_file(job):
            addresses = storage_at(job.part).addresses.tolist()
    return [
        _WriteTask(
            year=job.year,
            first=first,
            count=count,
            target=job.part if addresses else job.spooled(first),
            addresses=tuple(addresses[first : first + count]) if addresses else None,
        )
        for first, count in ranges(job.year)
        if first not in job.journal.done
    ]


def _write_range(task: _WriteTask) -> WrittenRange:
    scans = Accumulator(task.count)
    if task.addresses is None:
        images = read_images(task.year, task.first, task.count)
        scans.add(images)
        chunks = [compress(image) for image in images]
        with task.target.open("wb") as stream:
            for content, _ in chunks:
                stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        return WrittenRange(task.first, scans.scans(), tuple((len(content), mask) for content, mask in chunks))
    for channels in channel_blocks(task.year, task.count):
        block = read_images(task.year, task.first, task.count, channels=channels)
        scans.add(block)
        offset = channels.start * task.year.plane_bytes
        write_planes(task.target, block, [address + offset for address in task.addresses])
    return WrittenRange(task.first, scans.scans())


def _assemble(job: YearJob) -> None:
    """Put the compressed images into a file that is laid out anew: one that was stopped halfway is of no use."""
    lay_out(job.part, job.year, job.boxes, job.kind)
    stored_bytes = sum(size for written in job.journal.done.values() for size, _ in written.chunks)

    def chunks() -> Iterator[tuple[int, bytes, int]]:
        for first in sorted(job.journal.done):
            with job.spooled(first).open("rb") as stream:
                for place, (size, mask) in enumerate(job.journal.done[first].chunks):
                    yield first + place, stream.read(size), mask

    put_chunks(job.part, chunks(), stored_bytes)


def _verified(job: YearJob, workers: int) -> Iterator[int]:
    """Read the file back from the disk, compare it with the source, and yield how many more images agree."""
    expected = [scan.digest for scan in job.journal.scans()]
    descriptor = os.open(job.part, os.O_RDONLY)
    try:
        # Pages in memory prove nothing about the disk.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    with _own_file(job):
        written = replace(job.year, path=job.part, storage=storage_at(job.part))
        tasks = [(written, first, count) for first, count in ranges(written)]
        read_back = map_in_order(_digest_range, tasks, min(workers, len(tasks)), what="verifies images")
        for (_, first, count), digests in zip(tasks, read_back, strict=True):
            for image, digest in enumerate(digests, first):
                if digest != expected[image]:
                    raise _not_kept(job, f"image {image} reads back with other values than were written")
            yield count
        if not np.array_equal(boxes_at(job.part), job.boxes):
            raise _not_kept(job, "dataset boxes reads back with other values than were written")


@contextmanager
def _own_file(job: YearJob) -> Iterator[None]:
    """Report damage in the file that is being made as a RunError: unlike a source, it cannot be copied again."""
    try:
        yield
    except UnreadableImagesError as error:
        raise _not_kept(job, str(error.faults[0])) from error
    except DataError as error:
        raise _not_kept(job, "no longer the file that was written") from error


def _not_kept(job: YearJob, what: str) -> RunError:
    job.journal_path.unlink()
    return RunError(
        f"{job.part}: {what}: the disk or the memory is at fault; run the same command again, which writes this year "
        "anew"
    )


def _digest_range(task: tuple[YearFile, int, int]) -> tuple[bytes, ...]:
    return digest_images(*task)


def _publish(job: YearJob) -> YearFile:
    job.part.rename(job.final)
    sync_folder(job.folder)
    return settle(job)


# ----------------------------------------------------------------------------------------------------
# What a repacking will write and how long it will take, told before it starts.


_PROBE_BYTES = 2**26
# Boxes, the index of chunks and the gaps between them.
_OVERHEAD_BYTES = 2**21


@dataclass(frozen=True)
class Estimate:
    """What the images that are left will take.

    `needed_bytes` is the most that the new files, and the compressed images that wait beside them, occupy at once;
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
    images = sum(job.images_left for job in jobs)
    read_seconds = _read_seconds(jobs[0])
    ratio, compress_seconds = (1.0, 0.0) if kind == "none" else _compression(jobs[0])
    write_bytes = int(sum(job.images_left * job.year.image_bytes for job in jobs) * ratio) + _OVERHEAD_BYTES * len(jobs)
    # Compressed images of one year wait beside the file that they are put into.
    waiting_bytes = 0 if kind == "none" else int(max(job.year.images * job.year.image_bytes for job in jobs) * ratio)
    needed_bytes, free_bytes = write_bytes + waiting_bytes, _free_bytes(folder)
    if needed_bytes > free_bytes:
        raise DataError(
            f"{folder}: repacking needs {size(needed_bytes)}, and {size(free_bytes)} are free: choose another folder, "
            "or fewer --years at a time"
        )
    # Uncompressed bytes are written once and read once; compressed ones are copied into their file as well.
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
    Accumulator(count).add(read_images(year, 0, count, channels=slice(0, channels)))
    return (time.perf_counter() - start_seconds) / count * len(CHANNELS) / channels


def _compression(job: YearJob) -> tuple[float, float]:
    """Stored bytes / bytes of the values, and seconds to compress, of the first image."""
    image = read_images(job.year, 0, 1)[0]
    start_seconds = time.perf_counter()
    content, _ = compress(image)
    return len(content) / image.nbytes, time.perf_counter() - start_seconds


def _disk_seconds_per_byte(folder: Path, most_bytes: int) -> float:
    """Seconds to write a byte to `folder`, sync it and read it back. Raises OSError when the disk is full."""
    path = _existing(folder) / f".hpcai500-probe-{os.getpid()}"
    # Zeros would be free on a disk that compresses.
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
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


# ----------------------------------------------------------------------------------------------------
# Whether a file that is there already is what a year becomes: by its form, then by all values.


def has_form(job: YearJob) -> bool:
    """Whether the file of `job` is there, with its boxes and layout. Raises DataError when a different one is."""
    if not job.final.exists():
        return False
    if job.final.samefile(job.year.path):
        raise DataError(f"{job.final}: the same file as {job.year.path}; repack into another folder")
    try:
        there = open_year(job.final)
    except DataError as error:
        raise _another(job) from error
    if (
        there.storage.chunk != image_chunk(job.year)
        or there.storage.filters != FILTERS[job.kind]
        or not np.array_equal(there.boxes, job.boxes)
    ):
        raise _another(job)
    return True


def require_values(job: YearJob, workers: int, progress: Tracker) -> None:
    """Raise DataError unless the file that is there has the values of the source.

    All values are read and compared, unless this very file is recorded as made from this very source.
    """
    there = open_year(job.final)
    # It was renamed, and the process was killed before that was recorded.
    renamed = not job.part.exists() and len(job.journal.scans()) == there.images
    if renamed or is_made_from(there, job.year):
        return
    expected = _content(job.year, job.boxes, workers, progress)
    try:
        found = _content(there, there.boxes, workers, progress)
    except UnreadableImagesError as error:
        raise _another(job) from error
    if found.digest != expected.digest:
        raise _another(job)


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


def _another(job: YearJob) -> DataError:
    return DataError(f"{job.final}: not what {job.year.path} becomes; remove it, or choose another folder")


# ----------------------------------------------------------------------------------------------------
# A whole repacking: planned, estimated, run.


@dataclass(frozen=True)
class RepackReport:
    """What was done, and the fingerprints of the new set.

    `written` years were written now and read back; `kept` ones were there already. `converted` years had boxes of the
    swapped variant. The fingerprint is that of the source's years, unless boxes were converted. `stored_bytes` is over
    all files.
    """

    root: Path
    written: tuple[int, ...]
    kept: tuple[int, ...]
    converted: tuple[int, ...]
    images: int
    stored_bytes: int
    fingerprint: str
    content_fingerprint: str | None
    seconds: float


class Repacking:
    """A repacking that was found possible: `estimate` tells what it takes, `run` does it."""

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
                folders are one, or `target` holds other files of these names.
        """
        _require_apart(source, target)
        self._workers, self._progress = processes(workers), progress
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
        """Repack what is left; may be killed at any time, and resumes when called again.

        Years that are there already are kept once it is known that they have the values of the source.

        Raises:
            DataError: the source cannot be read, or a year that is there has other values.
            RunError: the disk is full, or does not keep what is written; or another repacking writes there.
        """
        start_seconds = time.monotonic()
        with _written_to(self._target):
            self._target.mkdir(parents=True, exist_ok=True)
            with only_writer(self._target):
                # Another repacking may have ended since this one was planned.
                self._look()
                for job in self._there:
                    require_values(job, self._workers, self._progress)
                    settle(job)
                for number, job in enumerate(self.jobs, 1):
                    repack_year(job, self._workers, self._progress, f"{number} of {len(self.jobs)}")
        return self._report(time.monotonic() - start_seconds)

    def _report(self, seconds: float) -> RepackReport:
        paths = [self._target / year.path.name for year in self._years]
        index = build_index(self._target, open_years(self._target, paths))
        before = build_index(self._source, self._years).fingerprint
        if not self._converted and index.fingerprint != before:
            raise RunError(f"{self._target}: another fingerprint than {self._source}: was it changed meanwhile?")
        return RepackReport(
            root=self._target,
            written=tuple(job.year.year for job in self.jobs),
            kept=tuple(job.year.year for job in self._there),
            converted=self._converted,
            images=sum(year.images for year in index.years),
            stored_bytes=sum(year.identity.size_bytes for year in index.years),
            fingerprint=index.fingerprint,
            content_fingerprint=load_content_fingerprint(index),
            seconds=seconds,
        )


def _require_apart(source: Path, target: Path) -> None:
    origin, place = source.resolve(), target.resolve()
    if origin == place:
        raise DataError(f"{target}: the set is there already; repack it into another folder")
    if place.is_relative_to(origin):
        raise DataError(f"{target}: inside the set {source}; repack it into a folder outside")
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
        raise DataError(f"{source}: no file for {spans(missing) or 'no years'}; there are {there}")
    return tuple(path for year, path in paths.items() if year is not None and years[0] <= year <= years[1])


def _needs_converting(year: YearFile, asked: bool) -> bool:
    if year.variant.name == "ambiguous":
        raise DataError(f"{year.path}: dataset boxes: of no known variant ({year.variant.evidence}); mend it first")
    if year.variant.name == "swapped" and not asked:
        raise DataError(
            f"{year.path}: dataset boxes: x and y are swapped, and classes count from 1 ({year.variant.evidence}), "
            "which no run accepts; add --convert-boxes to have them converted"
        )
    return year.variant.name == "swapped"


@contextmanager
def _written_to(target: Path) -> Iterator[None]:
    """Report a disk that takes no more in one line. What was written stays, and the next call resumes there."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else plain(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room, and run the same command again" if full else "mend it, and run the same command again"
        raise RunError(f"{target}: cannot be written: {reason}; what is done is kept: {remedy}") from error
