"""Files that are whole or absent: nothing that this package writes is ever seen half-written.

And whether something is there, asked so that a folder that may not be searched is an answer and no error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from hpcai500.errors import UsageError


def is_there(path: Path) -> bool:
    """Whether this user can see `path`; not so below a folder that may not be searched (Path.exists raises there)."""
    try:
        return path.exists()
    except PermissionError:
        return False


def is_folder(path: Path) -> bool:
    """Whether this user can see `path`, and it is a folder."""
    return is_there(path) and path.is_dir()


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """`text` with its $VARIABLES and ${VARIABLES} as `environment` has them.

    Raises:
        UsageError: one of them is not set, or empty: a path without it would be another folder.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not environment.get(name):
            raise UsageError(f"{text}: ${name} is not set here: set it on all nodes, or give a folder without it")
        return environment[name]

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)


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

    def write(stream: IO[bytes]) -> None:
        stream.write(content)

    write_atomically_by(path, write)


def write_atomically_by(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """The same with what `write` puts into the stream that it is given: for content too large to hold twice.

    Raises:
        OSError: as above, or as `write` does.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
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
