"""Writes a submission's ZIP: the same content gives the same bytes, and each file is hashed on its way."""

from __future__ import annotations

import contextlib
import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from hpcai500.results.submission.layout import kind_of
from hpcai500.results.submission.manifest import FileEntry

# The first moment that ZIP knows.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_CHUNK = 1 << 20
# zipfile reserves room for 64-bit sizes only where it is told to; the file may still grow.
_WIDE_BYTES = 1 << 30


class ZipWriter:
    """Adds files to the new ZIP in `stream`, which can be sought in. A context manager: leaving it ends the ZIP."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True)

    def __enter__(self) -> ZipWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What failed is on its way already; a ZipFile that is not closed complains once more when it is collected.
        with contextlib.suppress(OSError, ValueError) if error else contextlib.nullcontext():
            self._zip.close()

    def add(self, path: str, source: Path | bytes, told: Callable[[int], object] = lambda _: None) -> FileEntry:
        """Add `source`, a file or its content, as `path`; `told` is called with the length of each piece."""
        info = zipfile.ZipInfo(path, _TIME)
        info.create_system, info.external_attr = 3, _MODE << 16
        kind = kind_of(path)
        # Weights do not become smaller, and are read in place when they are stored.
        is_text = kind is not None and kind.form != "checkpoint"
        info.compress_type = zipfile.ZIP_DEFLATED if is_text else zipfile.ZIP_STORED
        digest, length = hashlib.sha256(), 0
        with _opened(source) as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            with self._zip.open(info, "w", force_zip64=size > _WIDE_BYTES) as target:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    length += len(chunk)
                    target.write(chunk)
                    told(len(chunk))
        return FileEntry(path=path, bytes=length, sha256=digest.hexdigest())


def _opened(source: Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
