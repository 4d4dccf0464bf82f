"""Reads ZIP files of strangers: only the plain form that `hpcai500 submit` writes, every byte of it accounted for.

A ZIP tells everything twice: before each file, and in a directory at its end. Tools believe one or the other, so that
one file can show different content to different readers. Here both must agree, files lie back to back from the first
byte on, and nothing lies between, before or after them.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.results.submission.limits import LONGEST_PATH, MOST_ENTRIES

STORED, DEFLATED = 0, 8
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4sBBHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_FULL32, _FULL16 = 0xFFFFFFFF, 0xFFFF
_ZIP64_ID = 1
# Bit 11 says that names are UTF-8, and ours are ASCII; all others mean encryption, patches or sizes told afterwards.
_HARMLESS_FLAGS = 0x800
_CHUNK = 1 << 20
_DOS_FOLDER = 0x10


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in the ZIP: its path, sizes in bytes, CRC-32, method, and where its content begins."""

    path: str
    bytes: int
    packed_bytes: int
    crc: int
    method: int
    header_offset: int
    offset: int


class ZipReader:
    """An open ZIP file, its structure checked. A context manager.

    Raises:
        UsageError: there is no such file, or it is a folder, a pipe or a device.
        WrongAnswerError: it is no ZIP file, or not one as `submit` writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = _open(path)
        try:
            self._before = os.fstat(self._stream.fileno())
            self.size_bytes = self._before.st_size
            self.entries = self._read_directory()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> ZipReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """Content of `entry`, piece by piece; never more than the directory tells.

        Raises:
            WrongAnswerError: it is damaged, or not what the directory tells.
        """
        crc, left = 0, entry.bytes
        for chunk in self._stored(entry) if entry.method == STORED else self._inflated(entry):
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
            if left < 0:
                break
            yield chunk
        if left or crc != entry.crc:
            raise self._wrong(f"{entry.path}: damaged: its size or checksum is not what the ZIP tells")

    def require_unchanged(self) -> None:
        """Raise WrongAnswerError if the file was written while it was read."""
        now, before = os.fstat(self._stream.fileno()), self._before
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise self._wrong("changed while it was read: copy it, and look at the copy")

    def _wrong(self, what: str) -> WrongAnswerError:
        return WrongAnswerError(f"{self.path}: {what}")

    def _foreign(self, what: str) -> WrongAnswerError:
        return self._wrong(f"{what}: not written by `hpcai500 submit`")

    def _at(self, offset: int, size: int) -> bytes:
        if offset + size > self.size_bytes:
            raise self._wrong("cut off: copy it again")
        self._stream.seek(offset)
        content = self._stream.read(size)
        if len(content) != size:
            raise self._wrong("cut off: copy it again")
        return content

    def _stored(self, entry: Entry) -> Iterator[bytes]:
        done = 0
        while done < entry.packed_bytes:
            chunk = self._at(entry.offset + done, min(_CHUNK, entry.packed_bytes - done))
            done += len(chunk)
            yield chunk

    def _inflated(self, entry: Entry) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for packed in self._stored(entry):
                waiting = packed
                while waiting and not inflater.eof:
                    yield inflater.decompress(waiting, _CHUNK)
                    waiting = inflater.unconsumed_tail
                if inflater.unused_data or waiting:
                    raise self._wrong(f"{entry.path}: damaged: something lies behind its compressed content")
            while not inflater.eof and (more := inflater.decompress(b"", _CHUNK)):
                yield more
        except zlib.error as error:
            raise self._wrong(f"{entry.path}: damaged: {error}") from error
        if not inflater.eof:
            raise self._wrong(f"{entry.path}: damaged: its compressed content is cut off")

    def _read_directory(self) -> tuple[Entry, ...]:
        """All entries; every byte of the file belongs to one of them, or to the directory."""
        count, size, offset = self._read_end()
        if count > MOST_ENTRIES:
            raise self._wrong(f"{count} files, expected at most {MOST_ENTRIES}")
        if size > count * (_CENTRAL.size + LONGEST_PATH + 32):
            raise self._foreign(f"a directory of {size} bytes for {count} files")
        directory = self._at(offset, size)
        entries, place = [], 0
        position = 0
        for _ in range(count):
            entry, place = self._read_central(directory, place)
            if entry.header_offset != position:
                raise self._foreign(f"{entry.path}: does not begin where the file before it ends")
            entry = self._read_local(entry)
            position = entry.offset + entry.packed_bytes
            if position > offset:
                raise self._foreign(f"{entry.path}: reaches into the directory")
            entries.append(entry)
        if place != size or position != offset:
            raise self._foreign("bytes that belong to no file")
        return tuple(entries)

    def _read_end(self) -> tuple[int, int, int]:
        """Number of entries, size and offset of the directory."""
        if self.size_bytes < _END.size or self._at(0, 2) != b"PK":
            raise self._wrong("not a submission: no ZIP file")
        end = self.size_bytes - _END.size
        mark, disk, first, here, count, size, offset, comment = _END.unpack(self._at(end, _END.size))
        if mark != b"PK\5\6" or comment:
            raise self._wrong("not a whole ZIP file: cut off, or something was appended")
        if disk or first or here != count:
            raise self._foreign("one part of several")
        if offset + size == end:
            return count, size, offset
        return self._read_end64(end, (count, size, offset))

    def _read_end64(self, end: int, told: tuple[int, int, int]) -> tuple[int, int, int]:
        """The same in 64 bits, written before what ends at `end` by whoever needs more than 32 of them."""
        locator = end - _LOCATOR.size
        place = locator - _END64.size
        if place < 0:
            raise self._foreign("bytes that belong to no file")
        mark, disk, where, disks = _LOCATOR.unpack(self._at(locator, _LOCATOR.size))
        if mark != b"PK\6\7" or where != place or disk or disks != 1:
            raise self._foreign("bytes that belong to no file")
        mark, length, _, _, disk, first, here, count, size, offset = _END64.unpack(self._at(place, _END64.size))
        narrow = zip(told, (count, size, offset), (_FULL16, _FULL32, _FULL32), strict=True)
        if mark != b"PK\6\6" or length != _END64.size - 12 or disk or first or here != count:
            raise self._foreign("an odd directory")
        if offset + size != place or any(short not in (long, full) for short, long, full in narrow):
            raise self._foreign("bytes that belong to no file")
        return count, size, offset

    def _read_central(self, directory: bytes, place: int) -> tuple[Entry, int]:
        """The entry at `place`, and where the next one is."""
        if place + _CENTRAL.size > len(directory):
            raise self._foreign("a directory that is cut off")
        mark, _, _, _, flags, method, _, _, crc, packed, size, *rest = _CENTRAL.unpack_from(directory, place)
        named, extra, comment, disk, _, attributes, offset = rest
        after = place + _CENTRAL.size + named + extra + comment
        name = directory[place + _CENTRAL.size : place + _CENTRAL.size + named]
        if mark != b"PK\1\2" or after > len(directory) or comment or disk:
            raise self._foreign("an odd directory")
        path = self._path(name)
        self._check_form(path, flags, method, attributes)
        wide = directory[place + _CENTRAL.size + named : after]
        size, packed, offset = self._widened(path, wide, (size, packed, offset))
        return Entry(path, size, packed, crc, method, offset, 0), after

    def _path(self, name: bytes) -> str:
        if not name or len(name) > LONGEST_PATH or not name.isascii() or not name.decode().isprintable():
            raise self._wrong(f"{name[:60]!r}: a file name that no submission has")
        return name.decode()

    def _check_form(self, path: str, flags: int, method: int, attributes: int) -> None:
        mode = attributes >> 16
        if flags & 1:
            raise self._wrong(f"{path}: encrypted: a submission is open")
        if method not in (STORED, DEFLATED):
            raise self._foreign(f"{path}: compressed by the method {method}")
        if flags & ~_HARMLESS_FLAGS:
            raise self._foreign(f"{path}: ZIP flags {flags:#x}")
        if (mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG)) or attributes & _DOS_FOLDER:
            raise self._wrong(f"{path}: a link, a folder or a device, where only files may be")

    def _widened(self, path: str, extra: bytes, fields: tuple[int, ...]) -> tuple[int, ...]:
        """`fields` with those that are marked as too large for 32 bits replaced by their 64 bits."""
        wide = [position for position, field in enumerate(fields) if field == _FULL32]
        expected = struct.Struct(f"<HH{len(wide)}Q")
        if not wide and not extra:
            return fields
        if not wide or len(extra) != expected.size:
            raise self._foreign(f"{path}: extra fields")
        number, size, *values = expected.unpack(extra)
        if number != _ZIP64_ID or size != 8 * len(wide):
            raise self._foreign(f"{path}: extra fields")
        widened = list(fields)
        for position, value in zip(wide, values, strict=True):
            widened[position] = value
        return tuple(widened)

    def _read_local(self, entry: Entry) -> Entry:
        """`entry` with the place of its content; what is said before it must be what the directory says."""
        header = self._at(entry.header_offset, _LOCAL.size)
        mark, _, flags, method, _, _, crc, packed, size, named, extra = _LOCAL.unpack(header)
        if named + extra > LONGEST_PATH + 32:
            raise self._foreign(f"{entry.path}: told otherwise where it lies")
        rest = self._at(entry.header_offset + _LOCAL.size, named + extra)
        size, packed = self._widened(entry.path, rest[named:], (size, packed))
        told = (mark, flags & ~_HARMLESS_FLAGS, method, crc, packed, size, rest[:named])
        expected = (b"PK\3\4", 0, entry.method, entry.crc, entry.packed_bytes, entry.bytes, entry.path.encode())
        if told != expected:
            raise self._foreign(f"{entry.path}: told otherwise where it lies than in the directory")
        if entry.method == STORED and entry.bytes != entry.packed_bytes:
            raise self._foreign(f"{entry.path}: stored in another size")
        offset = entry.header_offset + _LOCAL.size + named + extra
        return Entry(entry.path, entry.bytes, entry.packed_bytes, entry.crc, entry.method, entry.header_offset, offset)


def _open(path: Path) -> IO[bytes]:
    """A regular file; nothing that would keep its reader waiting."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file: give a submission (`hpcai500 submit CAMPAIGN -o FILE`)") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path}: a folder, a pipe or a device: give the one file that `hpcai500 submit` wrote")
    return os.fdopen(descriptor, "rb")
