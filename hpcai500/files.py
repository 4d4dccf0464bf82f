"""Files that are whole or absent: nothing that this package writes is ever seen half-written.

And whether something is there, asked so that a folder that may not be searched is an answer and no error.
"""

from __future__ import annotations

import os
from pathlib import Path


def is_there(path: Path) -> bool:
    """Whether this user can see `path`; not so below a folder that may not be searched (Path.exists raises there)."""
    try:
        return path.exists()
    except PermissionError:
        return False


def is_folder(path: Path) -> bool:
    """Whether this user can see `path`, and it is a folder."""
    return is_there(path) and path.is_dir()


def nearest(path: Path) -> Path:
    """`path`, or the nearest above it that this user can see."""
    path = path.absolute()
    return next(one for one in (path, *path.parents) if is_there(one))


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, also after a crash.

    Raises:
        OSError: the disk is full or the folder cannot be written; `path` is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def allocate(path: Path, size_bytes: int) -> None:
    """Make `path` own at least `size_bytes` of its disk, so that writing into it cannot fail for want of space.

    What the file holds is kept. File systems that cannot allocate are written to instead, which is what the C library
    does for a descriptor that it may read and write.

    Raises:
        OSError: the disk is full; the file is then removed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
