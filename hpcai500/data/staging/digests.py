"""What is here: a digest for each piece whose copy was read back and found right; zeros for the others.

A record is written after its piece, and wiped before the piece is removed: killed at any moment, no piece counts that
is not here.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcai500.data.staging.layout import DIGEST_BYTES, DIGESTS, state_folder

Pieces = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

_ABSENT = bytes(DIGEST_BYTES)


class Digests:
    """The records of a staged folder, to be changed by whoever holds it; from any thread, a piece by one of them."""

    def __init__(self, root: Path, pieces: int) -> None:
        """Open them. Raises OSError."""
        self._pieces = pieces
        self._file = os.open(state_folder(root) / DIGESTS, os.O_RDWR | os.O_CLOEXEC)

    @staticmethod
    def create(root: Path, pieces: int) -> None:
        """Begin with nothing. Raises OSError."""
        with (state_folder(root) / DIGESTS).open("wb") as stream:
            stream.truncate(pieces * DIGEST_BYTES)

    def here(self) -> Marks:
        """Which pieces are here."""
        return _marks(os.pread(self._file, self._pieces * DIGEST_BYTES, 0), self._pieces)

    def get(self, piece: int) -> bytes:
        """The digest of a piece that is here."""
        return os.pread(self._file, DIGEST_BYTES, piece * DIGEST_BYTES)

    def put(self, piece: int, digest: bytes) -> None:
        """A piece is here."""
        os.pwrite(self._file, digest, piece * DIGEST_BYTES)

    def wipe(self, pieces: Pieces) -> None:
        """Pieces are no longer to be counted on."""
        for piece in pieces.tolist():
            self.put(piece, _ABSENT)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def here(root: Path, first: int, count: int) -> Marks:
    """Which of `count` pieces from `first` on are here, for readers. Raises OSError."""
    with (state_folder(root) / DIGESTS).open("rb", buffering=0) as stream:
        return _marks(os.pread(stream.fileno(), count * DIGEST_BYTES, first * DIGEST_BYTES), count)


def _marks(content: bytes, count: int) -> Marks:
    found = np.frombuffer(content.ljust(count * DIGEST_BYTES, b"\0"), np.uint64).reshape(count, DIGEST_BYTES // 8)
    return np.asarray(found.any(axis=1))
