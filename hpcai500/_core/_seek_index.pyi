"""Seek points of JPEG files: places between MCUs where decoding can begin, and the file that keeps them for a set."""

from typing import final

from typing_extensions import Buffer

def seek_points(data: Buffer) -> bytes | None:
    """Packed points of a JPEG: at most 4 % of its bytes.

    b"" where no point is worth keeping: the file is too small for one before its end, or its restart markers are too
    far apart. None where our own decoder leaves it to libjpeg-turbo: no JPEG, another kind, or damaged.
    """

def seek_key(data: Buffer) -> tuple[int, int]:
    """What an index knows a file by: the CRC-32 of its bytes, and how many they are."""

@final
class SeekIndex:
    """An index as `hpcai500 data index` writes it. Holds 20 bytes a file; shared by all that have it open."""

    def __init__(self, path: str | bytes) -> None:
        """Raises OSError where it cannot be read, and ValueError, whose text is as "is truncated", where it cannot be
        used."""

    def __len__(self) -> int:
        """Files that it knows."""

    def find(self, data: Buffer) -> bytes | None:
        """Packed points of a file: b"" where it has none, None where the index does not know it.

        Raises ValueError where what the index says of the file is damaged.
        """

@final
class SeekIndexWriter:
    """Writes an index. Same files in the same order make the same bytes. Several threads may use it."""

    def __init__(self, path: str | bytes) -> None:
        """Makes the file, which must not be there. Raises OSError, as all functions."""

    def add(self, checksum: int, size: int, points: Buffer | None) -> None:
        """Adds a file: its `seek_key` and its `seek_points`; b"" and None are the same here."""

    def finish(self) -> int:
        """Writes what makes it an index; returns its bytes. RuntimeError, also of `add`, when called again."""
