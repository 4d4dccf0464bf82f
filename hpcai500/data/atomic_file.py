"""Files that are either complete or absent, whatever kills the writer."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` (bytes) under a temporary name beside `path`, then rename it into place.

    Any number of processes may write the same path at once; one of them wins whole. Raises OSError when the folder
    cannot be written, and leaves nothing behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    # os.open applies the umask; tempfile would make a shared set's files readable by their owner only.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
