"""What a repacking will write, and how long it will take, told before it starts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.data.climate.layout import CHANNELS
from hpcai500.data.climate.repacking.file import compress
from hpcai500.data.climate.repacking.year import YearJob
from hpcai500.data.climate.values.raw_images import BLOCK_BYTES, MOST_BLOCK_BYTES, chunk_channels, ranges, read_images
from hpcai500.data.climate.values.scan import Accumulator
from hpcai500.data.text_table import size
from hpcai500.errors import DataError

_PROBE_BYTES = 2**26
# Boxes, the index of chunks and the gaps between them.
_OVERHEAD_BYTES = 2**21


@dataclass(frozen=True)
class Estimate:
    """What the images that are left will take.

    `needed_bytes` is the most that the new files and those that wait beside them occupy at once; `memory_bytes` what
    all processes hold together.
    """

    images: int
    write_bytes: int
    needed_bytes: int
    free_bytes: int
    memory_bytes: int
    seconds: float


def estimate(jobs: Sequence[YearJob], workers: int) -> Estimate:
    """Return what `jobs` will take, from a sample that is read, compressed, written and read back.

    Raises DataError when the disk has no room for it, or the sample cannot be read.
    """
    if not jobs:
        return Estimate(0, 0, 0, 0, 0, 0.0)
    year, kind, folder = jobs[0].year, jobs[0].kind, jobs[0].folder
    images = sum(job.images_left for job in jobs)
    read_seconds = _read_seconds(jobs[0])
    ratio, compress_seconds = (1.0, 0.0) if kind == "none" else _compression(jobs[0])
    write_bytes = int(sum(job.images_left * job.year.image_bytes for job in jobs) * ratio) + _OVERHEAD_BYTES * len(jobs)
    # Compressed images of one year wait beside the file that they are then put into.
    waiting_bytes = 0 if kind == "none" else int(max(job.year.images * job.year.image_bytes for job in jobs) * ratio)
    needed_bytes, free_bytes = write_bytes + waiting_bytes, _free_bytes(folder)
    if needed_bytes > free_bytes:
        raise DataError(
            f"{folder}: repacking needs {size(needed_bytes)}, and {size(free_bytes)} are free: choose another folder, "
            "or fewer --years at a time"
        )
    # Uncompressed bytes are written once and read once; compressed ones are put into their file as well.
    disk_seconds = _disk_seconds_per_byte(folder, write_bytes) * year.image_bytes * ratio * (1 if kind == "none" else 2)
    seconds = images * ((read_seconds + compress_seconds) / workers + disk_seconds)
    memory_bytes = workers * max(_held_bytes(job) for job in jobs)
    return Estimate(images, write_bytes, needed_bytes, free_bytes, memory_bytes, seconds)


def _held_bytes(job: YearJob) -> int:
    """Bytes that one process holds: a block, or, to compress whole images, all that share chunks."""
    year = job.year
    most = max(count for _, count in ranges(year))
    if job.kind != "none":
        return 2 * most * year.image_bytes
    return min(most * year.image_bytes, max(BLOCK_BYTES, most * chunk_channels(year) * year.plane_bytes))


def _read_seconds(job: YearJob) -> float:
    """Seconds that a process takes to read an image and take its digest and statistics."""
    year = job.year
    channels = chunk_channels(year)
    count = min(year.storage.window, year.images, max(1, MOST_BLOCK_BYTES // (channels * year.plane_bytes)))
    start_seconds = time.perf_counter()
    Accumulator(count).add(read_images(year, 0, count, channels=slice(0, channels)))
    return (time.perf_counter() - start_seconds) / count * len(CHANNELS) / channels


def _compression(job: YearJob) -> tuple[float, float]:
    """Bytes stored / bytes of the values, and seconds to compress, of the first image."""
    image = read_images(job.year, 0, 1)[0]
    start_seconds = time.perf_counter()
    content, _ = compress(image)
    return len(content) / image.nbytes, time.perf_counter() - start_seconds


def _disk_seconds_per_byte(folder: Path, most_bytes: int) -> float:
    """Seconds to write a byte to `folder`, wait for the disk, and read it back. Raises OSError when it is full."""
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
