"""Bytes from one file into another, digested on the way, read back and compared."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG

from hpcai500.data.staging.block_digest import BlockDigest
from hpcai500.errors import DataError, RunError

# What is read, digested, written and read back by one core before its cache forgets it.
_BLOCK_BYTES = 2**19
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Extent = tuple[int, int]


class Stopped(Exception):  # noqa: N818 - no error: another thread has met one, or the user has stopped all
    """The copy is wanted no more."""


def copy_extents(
    source: Original, target: int, extents: Iterable[Extent], count: Callable[[int], None], stop: Callable[[], bool]
) -> bytes:
    """Copy `extents` (start, bytes) of a file to the same places of `target`; returns the digest of all of them.

    What was written is read back and compared with what was read: in most cases it comes from the system's cache, which
    is also what the run will be given.

    Args:
        source: read here.
        target: descriptor to write to and to read from.
        extents: in the order of hashing.
        count: is told bytes that are done.
        stop: whether to give up.

    Raises:
        DataError: the source cannot be read, or ends too early.
        RunError: what was read back differs.
        OSError: the target takes no more.
        Stopped: as asked for.
    """
    digest = BlockDigest()
    for start, size in extents:
        if size > _BLOCK_BYTES:
            source.expect(start, size)
        for at in range(start, start + size, _BLOCK_BYTES):
            if stop():
                raise Stopped
            block = source.read(at, min(_BLOCK_BYTES, start + size - at))
            digest.update(block)
            _write(target, block, at)
            if _read(target, at, len(block)) != block:
                raise RunError(
                    f"{source.path}: its copy, read back, differs at byte {at}: the node's storage or memory is "
                    "faulty; stage into another folder, or on another node"
                )
            count(len(block))
    return digest.digest()


def digest_extents(
    descriptor: int, extents: Iterable[Extent], count: Callable[[int], None], stop: Callable[[], bool]
) -> bytes | None:
    """The digest of what is in a file, from its disk where the system allows; None where it ends too early.

    Raises:
        OSError: it cannot be read.
        Stopped: as asked for.
    """
    digest = BlockDigest()
    for start, size in extents:
        # Pages that are not on the disk yet stay.
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)
        for at in range(start, start + size, _BLOCK_BYTES):
            if stop():
                raise Stopped
            wanted = min(_BLOCK_BYTES, start + size - at)
            block = _read(descriptor, at, wanted)
            if len(block) != wanted:
                return None
            digest.update(block)
            count(wanted)
    return digest.digest()


class Original:
    """A file at the source, which must stay as it is while it is read.

    Attributes:
        path: for people.
        status: of the file when it was opened.
    """

    def __init__(self, path: str, name: str, folder: int | None = None) -> None:
        """Open `name`, in the open `folder`; `path` is the same file, for people.

        Raises:
            DataError: it cannot be read, or is no file.
        """
        self.path = path
        try:
            # A pipe would keep us waiting for somebody who writes.
            self._file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise _unreadable(path, error) from error
        self.status = os.fstat(self._file)
        if not S_ISREG(self.status.st_mode):
            self.close()
            raise DataError(f"{path}: no file; put the file itself, or a link to it, in its place")

    def expect(self, start: int, size: int) -> None:
        """Let the system fetch ahead what will be read."""
        os.posix_fadvise(self._file, start, size, os.POSIX_FADV_SEQUENTIAL)

    def read(self, start: int, size: int) -> bytes:
        """All of `size` bytes from `start` on."""
        try:
            block = _read(self._file, start, size)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if len(block) != size:
            raise changed(self.path)
        return block

    def digest(self, extents: Iterable[Extent], stop: Callable[[], bool]) -> bytes | None:
        """The digest of these bytes; None where there are fewer."""
        try:
            return digest_extents(self._file, extents, lambda _: None, stop)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def require_unchanged(self) -> None:
        """Raise DataError where the file was written since it was opened."""
        now = os.fstat(self._file)
        if (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise changed(self.path)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)

    def __enter__(self) -> Original:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def written_to(root: Path) -> Iterator[None]:
    """Tell of storage that takes no more in one line: what was staged stays, and the next call goes on there."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        reason = f"{os.strerror(error.errno or 0)}{f' ({where})' if where else ''}"
        remedy = "make room" if error.errno in _FULL else "mend it"
        raise RunError(
            f"{root}: cannot be written: {reason}; what is whole there is kept: {remedy}, and run the same "
            "command again"
        ) from error


def changed(path: str) -> DataError:
    """What to raise for a file that is no longer what it was."""
    return DataError(
        f"{path}: changed since the set was listed or staged: keep the source as it is, release what is staged "
        "of it (--release), and stage it again"
    )


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror}; check permissions, links and mount")


def _read(descriptor: int, start: int, size: int) -> bytes:
    block = os.pread(descriptor, size, start)
    while len(block) < size and (more := os.pread(descriptor, size - len(block), start + len(block))):
        block += more
    return block


def _write(descriptor: int, block: bytes, start: int) -> None:
    written = os.pwrite(descriptor, block, start)
    while written < len(block):
        written += os.pwrite(descriptor, memoryview(block)[written:], start + written)
