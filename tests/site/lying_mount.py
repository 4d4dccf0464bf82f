"""A FUSE file system that keeps its files in a folder, and gives back one wrong byte of some of them.

`python lying_mount.py FOLDER MOUNT WORD`: byte 5,000,000 (or the last one) of each file with WORD in its path is wrong
whenever it is read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from mfusepy import FUSE, Operations

_AT = 5_000_000


class Lying(Operations):
    """Passes everything on to `folder`, except the truth about some files."""

    use_ns = True

    def __init__(self, folder: Path, word: str) -> None:
        self._folder, self._word = folder, word

    def _at(self, path: str) -> Path:
        return self._folder / path.lstrip("/")

    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
        found = self._at(path).lstat()
        times = {f"st_{one}time": getattr(found, f"st_{one}time_ns") for one in "amc"}
        keys = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
        return times | {key: getattr(found, key) for key in keys}

    def readdir(self, path: str, fh: Any) -> list[str]:
        return [".", "..", *(one.name for one in self._at(path).iterdir())]

    def mkdir(self, path: str, mode: int) -> None:
        self._at(path).mkdir(mode)

    def rmdir(self, path: str) -> None:
        self._at(path).rmdir()

    def unlink(self, path: str) -> None:
        self._at(path).unlink()

    def rename(self, old: str, new: str) -> None:
        self._at(old).rename(self._at(new))

    def chmod(self, path: str, mode: int) -> None:
        self._at(path).chmod(mode)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        keys = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize", "f_namemax")
        return {key: getattr(found, key) for key in keys}

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_DIRECT)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        read = bytearray(os.pread(fh, size, offset))
        place = min(_AT, os.fstat(fh).st_size - 1) - offset
        if self._word in path and 0 <= place < len(read):
            read[place] ^= 1
        return bytes(read)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: Any = None) -> None:
        os.truncate(self._at(path), length)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)


if __name__ == "__main__":
    FUSE(Lying(Path(sys.argv[1]).absolute(), sys.argv[3]), sys.argv[2], foreground=True, nothreads=True)
