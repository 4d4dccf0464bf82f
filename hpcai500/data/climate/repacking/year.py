"""One year repacked: written under another name, range by range, read back, and only then given its own name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.repacking.file import (
    Filter,
    boxes_at,
    compress,
    lay_out,
    put_chunks,
    storage_at,
    write_planes,
)
from hpcai500.data.climate.repacking.journal import Journal, WrittenRange
from hpcai500.data.climate.repacking.origin import note_origin
from hpcai500.data.climate.values.content import boxes_digest, content_of, store_contents
from hpcai500.data.climate.values.raw_images import UnreadableImagesError, channel_blocks, ranges, read_images
from hpcai500.data.climate.values.scan import Accumulator, digest_images
from hpcai500.data.climate.year_file import YearFile, open_year
from hpcai500.data.worker_pool import map_in_order
from hpcai500.errors import DataError, RunError
from hpcai500.files import sync_folder
from hpcai500.progress import Tracker


@dataclass(frozen=True, eq=False)
class YearJob:
    """What becomes of a year: its file in `folder` has `boxes`, and images in chunks of one, by the filter `kind`."""

    year: YearFile
    folder: Path
    boxes: npt.NDArray[np.int32]
    kind: Filter

    @property
    def final(self) -> Path:
        """The file, which exists once it is whole and was read back."""
        return self.folder / self.year.path.name

    @property
    def part(self) -> Path:
        """The file until then."""
        return self.folder / f".{self.final.name}.part"

    @property
    def spool(self) -> Path:
        """Folder of compressed images that wait to be put into the file."""
        return self.folder / f".{self.final.name}.spool"

    @cached_property
    def journal(self) -> Journal:
        """What is done."""
        purpose = {
            "size_bytes": self.year.identity.size_bytes,
            "mtime_ns": self.year.identity.mtime_ns,
            "boxes": boxes_digest(replace(self.year, boxes=self.boxes)).hex(),
            "filter": self.kind,
            # Another version may cut a year into other ranges.
            "counts": [count for _, count in ranges(self.year)],
        }
        return Journal(self.journal_path, purpose)

    @property
    def journal_path(self) -> Path:
        """The file of the journal."""
        return self.folder / f".{self.final.name}.journal"

    @property
    def resumable(self) -> bool:
        """Whether all that the journal speaks of is there."""
        if not self.journal.exists:
            return False
        needed = [self.part] if self.kind == "none" else [self.spooled(first) for first in self.journal.done]
        return all(path.exists() for path in needed)

    def spooled(self, first: int) -> Path:
        """The file of the compressed images from `first` on."""
        return self.spool / f"{first:06d}.lzf"

    @property
    def images_left(self) -> int:
        """Images that no earlier call has written."""
        if not self.resumable:
            return self.year.images
        return self.year.images - sum(len(written.scans) for written in self.journal.done.values())


def repack_year(job: YearJob, workers: int, progress: Tracker, of: str) -> YearFile:
    """Write, verify and name the file of `job`, in `workers` processes; goes on where an earlier call was stopped.

    `of` tells the progress bar which of how many years this is. Returns the new file.

    Raises:
        DataError: the source cannot be read.
        RunError: what was written is not what is read back.
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
    """Keep what is known of the finished file and its source, and remove what was needed to make it."""
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
    """Put the compressed images into a file laid out afresh: one that was stopped halfway is of no use."""
    lay_out(job.part, job.year, job.boxes, job.kind)
    stored_bytes = sum(size for written in job.journal.done.values() for size, _ in written.chunks)

    def chunks() -> Iterator[tuple[int, bytes, int]]:
        for first in sorted(job.journal.done):
            with job.spooled(first).open("rb") as stream:
                for place, (size, mask) in enumerate(job.journal.done[first].chunks):
                    yield first + place, stream.read(size), mask

    put_chunks(job.part, chunks(), stored_bytes)


def _verified(job: YearJob, workers: int) -> Iterator[int]:
    """Read the file back from the disk, and yield how many more images are those of the source."""
    expected = [scan.digest for scan in job.journal.scans()]
    descriptor = os.open(job.part, os.O_RDONLY)
    try:
        # What is in memory proves nothing about the disk.
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
    """Tell of damage in the file that is being made, which nobody can copy again."""
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
