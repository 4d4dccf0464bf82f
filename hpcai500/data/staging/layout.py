"""What a staged folder holds beside the data, and where.

    DEST/.hpcai500-staging/
        lock            held by whoever changes anything here
        set.json        which set this is; written when all that readers need is here
        index.npz       ic: the index of the whole set
        years.json      ewa: size and time of each file at the source, and how its images are cut into pieces
        digests.bin     32 bytes a piece: digest of what was read at the source; zeros: not here
        names/          who needs which pieces
        progress.json   how far the staging is that holds the lock
        part/           files that are not whole yet: of ewa, and the seek index of ic

A piece is what is copied, checked and removed as one: an image file (ic); the images of a file that share chunks, or
all of the file but its images (ewa). Readers import this module alone, and `reading`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import DataError
from hpcai500.files import write_unsynced

FOLDER = ".hpcai500-staging"
LOCK, SET, INDEX, YEARS, DIGESTS = "lock", "set.json", "index.npz", "years.json", "digests.bin"
NAMES, PROGRESS, PART = "names", "progress.json", "part"
FORMAT = "hpcai500 staging 1"
DIGEST_BYTES = 32


@dataclass(frozen=True)
class StagedSet:
    """Which set a folder holds copies of.

    Attributes:
        benchmark: `ic` or `ewa`.
        source: folder that they were copied from.
        fingerprint: of the whole set (hex).
        pieces: that the whole set has.
        boot: of the node when all pieces were last known to be right.
    """

    benchmark: str
    source: str
    fingerprint: str
    pieces: int
    boot: str


def state_folder(root: Path) -> Path:
    """Where a staged folder keeps what is no data."""
    return root / FOLDER


def is_staged(root: Path) -> bool:
    """Whether `root` was made by `hpcai500 data stage`."""
    return (root / FOLDER / SET).is_file()


def read_set(root: Path) -> StagedSet | None:
    """Which set is staged in `root`; None where nothing is.

    Raises:
        DataError: it cannot be read.
    """
    path = state_folder(root) / SET
    try:
        document = json.loads(path.read_bytes())
        if document.pop("format") != FORMAT:
            raise ValueError("another format")
        return StagedSet(**document)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; check permissions and mount") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error}); remove {root}, and stage the set again") from error


def write_set(root: Path, staged: StagedSet) -> None:
    """Say which set is staged in `root`. Raises OSError when the disk is full."""
    write_document(state_folder(root) / SET, {"format": FORMAT, **asdict(staged)})


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write JSON, whole or not at all. Raises OSError when the disk is full."""
    # Waiting for the disk would take longer than many a copy. What a crash of the node loses is read again then.
    write_unsynced(path, (json.dumps(document) + "\n").encode())
