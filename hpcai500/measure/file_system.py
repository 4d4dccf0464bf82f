"""What training does to a file system: reads samples, opens and lists small files, saves and restores checkpoints.

Each function is one rank's part, on files of its own. Pages that are in this host's memory are found by the kernel's
own account (mincore), and what lies there is not counted. Every page of a file has its own content, random and stamped
with file and place, so that no storage can compress it or store it once, and wrong bytes are found.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcai500.files import sync_folder
from hpcai500.methodology.storage import Latencies, Samples

# ----------------------------------------------------------------------------------------------------
# Pieces of files, and which of their bytes are in this host's memory.


PAGE = 4096
_C = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Piece:
    """`size_bytes` of a file from `offset`. `identity` is that of the file's content (`Content`)."""

    path: Path
    offset: int
    size_bytes: int
    identity: int = 0


def drop_from_memory(piece: Piece) -> None:
    """Drop a piece from this host's memory; the memory of a file server or hypervisor is out of reach.

    Raises:
        OSError: the file cannot be opened.
    """
    with _opened(piece.path, os.O_RDONLY) as descriptor:
        os.posix_fadvise(descriptor, piece.offset, piece.size_bytes, os.POSIX_FADV_DONTNEED)


def resident_bytes(piece: Piece) -> int | None:
    """How many bytes of a piece are in this host's memory, in whole pages; None if the kernel does not say.

    Raises:
        OSError: the file cannot be opened.
    """
    with _opened(piece.path, os.O_RDONLY) as descriptor:
        first = piece.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        length = piece.offset + piece.size_bytes - first
        try:
            mapped = mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=first)
        except (OSError, ValueError):
            return None
    # An array's address, without touching the pages, which would read them.
    view = np.frombuffer(mapped, np.uint8)
    found = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    answer = _C.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(found.ctypes.data))
    del view
    mapped.close()
    return None if answer else min(int((found & 1).sum()) * mmap.PAGESIZE, piece.size_bytes)


@dataclass(frozen=True)
class Coldness:
    """What was in memory before a timed reading.

    Attributes:
        cold: pieces of which nothing is; only these are read.
        resident_bytes: of the other pieces, which are left out; None if the kernel does not say.
    """

    cold: Sequence[Piece]
    resident_bytes: int | None


def make_cold(pieces: Sequence[Piece], threads: int, alive: Callable[[], None] = lambda: None) -> Coldness:
    """Drop `pieces` from this host's memory, then look which of them stayed.

    Raises:
        OSError: a file cannot be opened.
    """

    def one(piece: Piece) -> int | None:
        drop_from_memory(piece)
        alive()
        return resident_bytes(piece)

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(one, pieces))
    if any(size is None for size in found):
        return Coldness(pieces, None)
    return Coldness([piece for piece, size in zip(pieces, found, strict=True) if not size], sum(filter(None, found)))


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    # A data set that is read may consist of links; nothing is ever written through one.
    descriptor = os.open(path, flags | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & os.O_CREAT else 0), 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# Content: random pages, each stamped with its file's identity and its number in the file.


CHUNK = 2**22
_PAGES = CHUNK // PAGE
_WORDS = PAGE // 8

Words = npt.NDArray[np.uint64]


class Content:
    """Makes the content of files, a chunk at a time, in memory that O_DIRECT accepts. For one thread."""

    def __init__(self, seed: int) -> None:
        self._memory = mmap.mmap(-1, CHUNK)
        words: Words = np.frombuffer(self._memory, np.uint64)
        words[:] = np.random.Generator(np.random.SFC64(seed)).integers(0, 2**64, len(words), np.uint64)
        self._pages = words.reshape(_PAGES, _WORDS)
        self._numbers = np.arange(_PAGES, dtype=np.uint64)

    def at(self, identity: int, offset: int) -> memoryview:
        """The chunk of the file `identity` from `offset`, a multiple of the page; valid until the next call."""
        self._pages[:, 0] = identity
        np.add(self._numbers, np.uint64(offset // PAGE), out=self._pages[:, 1])
        return memoryview(self._memory)

    def error(self, identity: int, offset: int, read: memoryview) -> str | None:
        """What is wrong with the bytes `read` (at most a chunk), byte by byte; None if nothing is."""
        differing = np.frombuffer(self.at(identity, offset)[: len(read)], np.uint8) != np.frombuffer(read, np.uint8)
        if not differing.any():
            return None
        return f"{int(differing.sum())} wrong bytes, the first at {offset + int(differing.argmax())}"


# Identity and number of a page.
_STAMP = struct.Struct("=QQ")


def _stamp_error(identity: int, offset: int, read: memoryview) -> str | None:
    """What is wrong with the stamps of the first and the last page in `read`: bytes of another file or place."""
    for at in (0, (len(read) - _STAMP.size) // PAGE * PAGE):
        if _STAMP.unpack_from(read, at) != (identity, (offset + at) // PAGE):
            return f"the page at {offset + at} is wrong"
    return None


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE


# ----------------------------------------------------------------------------------------------------
# Work of several threads, which ends when the time is over, or when one of them fails.


@dataclass
class Done:
    """What the threads of a rank did.

    Attributes:
        seconds: from the start to the end of the last operation.
        resident_bytes: read from memory, and not counted in `size_bytes`; None if unknown.
        wrong: what was wrong with content, in the order in which it was found.
    """

    operations: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    resident_bytes: int | None = 0
    wrong: list[str] = field(default_factory=list)


# An operation: returns the bytes that it moved, and what was wrong.
Operation = Callable[[], tuple[int, str | None]]


def in_threads(
    operations: Callable[[int], Iterable[Operation]],
    threads: int,
    seconds: float,
    alive: Callable[[], None] = lambda: None,
) -> Done:
    """Thread t does `operations(t)`, one after the other, and begins none after `seconds`.

    Raises:
        OSError: the first that an operation raised; the other threads end after their operation.
    """
    over = threading.Event()
    begin = time.perf_counter()
    limit = begin + seconds

    def work(thread: int) -> Done:
        done = Done()
        # Little is done beside the operations: they may take some microseconds only.
        taken: list[float] = []
        clock, end, size_bytes = time.perf_counter, begin, 0
        try:
            for operation in operations(thread):
                start = clock()
                if start >= limit or over.is_set():
                    break
                size, wrong = operation()
                end = clock()
                taken.append(end - start)
                size_bytes += size
                if wrong:
                    done.wrong.append(wrong)
                alive()
        except BaseException:
            over.set()
            raise
        done.operations, done.size_bytes, done.seconds = len(taken), size_bytes, end - begin
        for one in taken:
            done.latencies.add(one)
        return done

    with ThreadPoolExecutor(threads) as pool:
        parts = [future.result() for future in [pool.submit(work, thread) for thread in range(threads)]]
    return Done(
        sum(part.operations for part in parts),
        sum(part.size_bytes for part in parts),
        max(part.seconds for part in parts),
        Latencies.merged(part.latencies for part in parts),
        wrong=[one for part in parts for one in part.wrong],
    )


# ----------------------------------------------------------------------------------------------------
# Samples: a data set of this rank, and reading any rank's samples.


# Files in a folder, as in a class of ImageNet.
_FILES = 1000


@dataclass(frozen=True)
class Store:
    """The folder that a rank's files are in, and the seed of their content."""

    folder: Path
    seed: int

    def sample(self, kind: str, samples: Samples, rank: int, thread: int, number: int) -> Piece:
        """Sample `number` that `thread` of `rank` wrote."""
        file, place = divmod(number, samples.per_file)
        path = self.folder / f"{kind}-{rank}" / f"{thread}-{file // _FILES}" / f"{file % _FILES:03d}"
        return Piece(path, place * samples.size_bytes, samples.size_bytes, rank << 40 | thread << 28 | file)


def write_samples(
    store: Store, kind: str, samples: Samples, rank: int, threads: int, *,
    most_bytes: int, seconds: float, alive: Callable[[], None] = lambda: None,
) -> list[int]:  # fmt: skip
    """Write samples for `seconds`, at most `most_bytes`; returns the number that each thread wrote.

    They are on the storage when this returns: written around the page cache where that is possible, then synchronised.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    counts = [0] * threads
    most = most_bytes // threads // _padded(samples.size_bytes)

    def operations(thread: int) -> Iterator[Operation]:
        content = Content(store.seed)
        while counts[thread] < most:
            yield partial(_write, store.sample(kind, samples, rank, thread, counts[thread]), content)
            counts[thread] += 1

    in_threads(operations, threads, seconds, alive)
    sync(store.folder)
    return counts


def _write(piece: Piece, content: Content) -> tuple[int, None]:
    flags = os.O_WRONLY | os.O_CREAT
    if piece.offset == 0 and not piece.path.parent.is_dir():
        piece.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_by(piece, content, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        _write_by(piece, content, flags)
    return piece.size_bytes, None


def _write_by(piece: Piece, content: Content, flags: int) -> None:
    with _opened(piece.path, flags) as descriptor:
        end = piece.offset + piece.size_bytes
        for offset in range(piece.offset, end, CHUNK):
            wanted = min(CHUNK, _padded(end - offset))
            write_all(descriptor, content.at(piece.identity, offset)[:wanted], offset)
        if end % PAGE:
            os.ftruncate(descriptor, end)
        if not flags & os.O_DIRECT:
            os.fsync(descriptor)


def write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync(folder: Path) -> None:
    """Wait until the whole file system of `folder` is on its storage.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _C.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def can_read_direct(piece: Piece) -> bool:
    """Whether the file can be read around the page cache (O_DIRECT)."""
    buffer = mmap.mmap(-1, PAGE)
    try:
        with _opened(piece.path, os.O_RDONLY | os.O_DIRECT) as descriptor:
            os.preadv(descriptor, [buffer], 0)
    except OSError:
        return False
    return True


def read_samples(
    pieces: Sequence[Piece], request_bytes: int, threads: int, seconds: float, *,
    direct: bool = False, keep_open: bool = False, alive: Callable[[], None] = lambda: None,
) -> Done:  # fmt: skip
    """Read `pieces` in this order, each by one thread: open, read all of it, close; check its first and last page.

    `direct` reads around the page cache; `keep_open` opens each file once in a thread, as loaders of large files do.

    Raises:
        OSError: a file cannot be read.
    """
    following = itertools.count()
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    largest = max((piece.size_bytes for piece in pieces), default=0)

    def operations(thread: int) -> Iterator[Operation]:
        del thread
        memory = memoryview(mmap.mmap(-1, max(_padded(largest), PAGE)))
        opened: dict[Path, int] = {}
        try:
            # The counter's next number is taken by one thread only.
            while (number := next(following)) < len(pieces):
                piece = pieces[number]
                yield (
                    partial(_read_open, opened, flags, piece, request_bytes, memory)
                    if keep_open
                    else partial(_read, flags, piece, request_bytes, memory)
                )
        finally:
            for descriptor in opened.values():
                os.close(descriptor)

    return in_threads(operations, threads, seconds, alive)


def _read(flags: int, piece: Piece, request_bytes: int, memory: memoryview) -> tuple[int, str | None]:
    descriptor = os.open(piece.path, flags)
    try:
        return _read_from(descriptor, piece, request_bytes, memory)
    finally:
        os.close(descriptor)


# Of a thread: a process may have a thousand open files.
_MOST_OPEN = 16


def _read_open(
    opened: dict[Path, int], flags: int, piece: Piece, request_bytes: int, memory: memoryview
) -> tuple[int, str | None]:
    if piece.path not in opened:
        while len(opened) >= _MOST_OPEN:
            os.close(opened.popitem()[1])
        opened[piece.path] = os.open(piece.path, flags)
    return _read_from(opened[piece.path], piece, request_bytes, memory)


def _read_from(descriptor: int, piece: Piece, request_bytes: int, memory: memoryview) -> tuple[int, str | None]:
    read = read_all(descriptor, memory, piece.offset, piece.size_bytes, request_bytes)
    if read < piece.size_bytes:
        return read, f"{piece.path}: ends after {piece.offset + read} bytes"
    error = _stamp_error(piece.identity, piece.offset, memory[:read])
    return read, error and f"{piece.path}: {error}"


def read_all(descriptor: int, memory: memoryview, offset: int, size: int, request_bytes: int) -> int:
    """Read `size` bytes from `offset` into `memory`, `request_bytes` at a time; returns how many there were.

    With O_DIRECT, a request ends at the end of a page, beyond `size` perhaps: `memory` has room for whole pages.
    """
    read = 0
    while read < size:
        end = min(read + request_bytes, size)
        got = os.preadv(descriptor, [memory[read : _padded(end)]], offset + read)
        if not got:
            break
        read += got
    return min(read, size)


# ----------------------------------------------------------------------------------------------------
# Small files: making, listing, opening and removing them.


_SMALL_BYTES = 16


@dataclass(frozen=True)
class SmallFiles:
    """The small files of one rank: how many each of its threads made."""

    folder: Path
    counts: Sequence[int]

    def path(self, thread: int, number: int) -> Path:
        return self.folder / f"{thread}-{number // _FILES}" / f"{number % _FILES:03d}"

    @property
    def folders(self) -> dict[Path, int]:
        """Each folder, with its number of files."""
        return {
            self.path(thread, number).parent: min(_FILES, count - number)
            for thread, count in enumerate(self.counts)
            for number in range(0, count, _FILES)
        }


def _name_bytes(thread: int, number: int) -> bytes:
    return f"{thread:6d} {number:9d}".encode()[:_SMALL_BYTES]


def make_small(
    folder: Path, threads: int, most: int, seconds: float, alive: Callable[[], None] = lambda: None
) -> tuple[SmallFiles, Done]:
    """Make files of 16 bytes in `folder` for `seconds`, at most `most`, a thousand in a folder.

    Raises:
        OSError: the disk is full, or has no more inodes.
    """
    counts = [0] * threads
    files = SmallFiles(folder, counts)

    def make(path: Path, content: bytes) -> tuple[int, None]:
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            os.write(descriptor, content)
        return _SMALL_BYTES, None

    def operations(thread: int) -> Iterator[Operation]:
        while counts[thread] < most // threads:
            number = counts[thread]
            path = files.path(thread, number)
            if number % _FILES == 0:
                path.parent.mkdir(parents=True)

            yield partial(make, path, _name_bytes(thread, number))
            counts[thread] += 1

    return files, in_threads(operations, threads, seconds, alive)


def list_small(files: SmallFiles, threads: int, alive: Callable[[], None] = lambda: None) -> Done:
    """List all folders of `files`; an operation is one folder, and each name is counted as a byte.

    Raises:
        OSError: a folder cannot be listed.
    """
    folders = list(files.folders.items())

    def one(path: Path, expected: int) -> tuple[int, str | None]:
        with os.scandir(path) as entries:
            found = sum(1 for _ in entries)
        return found, None if found == expected else f"{path}: lists {found} names instead of {expected}"

    def operations(thread: int) -> Iterator[Operation]:
        yield from (partial(one, *folder) for folder in folders[thread::threads])

    return in_threads(operations, threads, float("inf"), alive)


def open_small(
    files: SmallFiles, threads: int, seconds: float, seed: int, alive: Callable[[], None] = lambda: None
) -> Done:
    """Open `files` in random order for `seconds`, read and check each.

    Raises:
        OSError: a file cannot be read.
    """
    numbers = [(thread, number) for thread, count in enumerate(files.counts) for number in range(count)]
    order = np.random.default_rng(seed).permutation(len(numbers))

    def one(thread: int, number: int) -> tuple[int, str | None]:
        path = files.path(thread, number)
        with _opened(path, os.O_RDONLY) as descriptor:
            os.fstat(descriptor)
            found = os.read(descriptor, 2 * _SMALL_BYTES)
        return len(found), None if found == _name_bytes(thread, number) else f"{path}: has other bytes than written"

    def operations(thread: int) -> Iterator[Operation]:
        for place in order[thread::threads]:
            yield partial(one, *numbers[place])

    return in_threads(operations, threads, seconds, alive)


def remove_small(files: SmallFiles, threads: int, alive: Callable[[], None] = lambda: None) -> Done:
    """Remove all of `files`.

    Raises:
        OSError: one cannot be removed.
    """

    def one(path: Path) -> tuple[int, None]:
        path.unlink()
        return _SMALL_BYTES, None

    def operations(thread: int) -> Iterator[Operation]:
        yield from (partial(one, files.path(thread, number)) for number in range(files.counts[thread]))

    return in_threads(operations, threads, float("inf"), alive)


# ----------------------------------------------------------------------------------------------------
# Checkpoints: one file of this rank, written as the engine writes one, and read back.


def save(path: Path, size: int, identity: int, content: Content, alive: Callable[[], None] = lambda: None) -> Done:
    """Write a file of `size` bytes through the page cache, synchronise it, rename it; an operation is 4 MiB.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    done = Done()
    begin = time.perf_counter()
    with _opened(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        for offset in range(0, size, CHUNK):
            start = time.perf_counter()
            write_all(descriptor, content.at(identity, offset)[: min(CHUNK, size - offset)], offset)
            done.latencies.add(time.perf_counter() - start)
            done.operations += 1
            alive()
        os.fsync(descriptor)
    part.rename(path)
    sync_folder(path.parent)
    done.size_bytes, done.seconds = size, time.perf_counter() - begin
    return done


def restore(path: Path, size: int, identity: int, content: Content, alive: Callable[[], None] = lambda: None) -> Done:
    """Read the file from storage, then read it from there once more and compare every byte.

    Only the first reading is timed: while bytes are compared, the kernel would read ahead unnoticed. Bytes that stay in
    memory are compared, but not counted.

    Raises:
        OSError: it cannot be read.
    """
    piece = Piece(path, 0, size)
    memory = memoryview(mmap.mmap(-1, CHUNK))

    def chunks(descriptor: int) -> Iterator[tuple[int, int, float]]:
        """Offset, bytes in `memory` and seconds of each request."""
        for offset in range(0, size, CHUNK):
            start = time.perf_counter()
            read = read_all(descriptor, memory, offset, min(CHUNK, size - offset), CHUNK)
            yield offset, read, time.perf_counter() - start
            alive()

    drop_from_memory(piece)
    resident = resident_bytes(piece) if size else 0
    done = Done(size_bytes=size - (resident or 0), resident_bytes=resident)
    begin = time.perf_counter()
    with _opened(path, os.O_RDONLY) as descriptor:
        for _, _, taken in chunks(descriptor):
            done.latencies.add(taken)
            done.operations += 1
    done.seconds = time.perf_counter() - begin
    drop_from_memory(piece)
    with _opened(path, os.O_RDONLY) as descriptor:
        for offset, read, _ in chunks(descriptor):
            error = content.error(identity, offset, memory[:read])
            if read < min(CHUNK, size - offset):
                error = f"ends after {offset + read} of {size} bytes"
            if error:
                done.wrong.append(f"{path}: {error}")
    return done


# ----------------------------------------------------------------------------------------------------
# How much may be written.


@dataclass(frozen=True)
class Room:
    """What a file system has for this command: bytes and inodes (None: it has no limit)."""

    free_bytes: int
    total_bytes: int
    free_inodes: int | None


# Of the file system's size, left free whatever the user asks for: nobody else's job may end because of us.
_RESERVE = 0.05
# Without --space: this share of what is free, and of the free inodes.
_SHARE = 0.2
# More data than memory, so that a cache that nobody can see holds a part of it only.
_MEMORIES = 2


def room_of(folder: Path) -> Room:
    """Raises OSError if the file system does not say."""
    found = os.statvfs(folder)
    inodes = found.f_favail if found.f_files else None
    return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, inodes)


def allowed_bytes(room: Room, memory_bytes: int, space: int | None) -> int:
    """Bytes that may be written: `space`, or twice the hosts' memory or a fifth of what is free, whichever is less.

    Never more than what is free without 5 % of the file system.
    """
    wanted = min(_MEMORIES * memory_bytes, int(_SHARE * room.free_bytes)) if space is None else space
    return max(0, min(wanted, room.free_bytes - int(_RESERVE * room.total_bytes)))


def allowed_files(room: Room, allowed: int) -> int:
    """Small files that may be made, each of which takes an inode and a page."""
    by_space = allowed // PAGE
    return by_space if room.free_inodes is None else min(by_space, int(_SHARE * room.free_inodes))


def remedy(error: OSError) -> str:
    """What to do about an error of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or give less: --space BYTES"
    return "look at the storage and its server (`mount`, `dmesg`)"
