"""Files that can be made again: complete or absent when the writer is killed, and cheap by the thousand."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_unsynced(path: Path, content: bytes, scratch: Path | None = None) -> None:
    """Write `content` (bytes) under a temporary name in `scratch` (default: beside `path`), then rename it into place.

    Unlike `hpcai500.files.write_atomically` it does not wait for the disk, which would make 3,500 images a matter of
    minutes on some file systems. Any number of processes, also of different nodes, may write the same path at once;
    one of them wins whole. Raises OSError when the folder cannot be written, and leaves nothing behind.
    """
    temporary = (scratch or path.parent) / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part"
    # os.open applies the umask; tempfile would make a shared set's files readable by their owner only.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
