"""The fingerprint of a set's bytes, kept beside the index for the records of later runs."""

from __future__ import annotations

import hashlib
import json

from hpcai500.data.derived import derived_paths, write_derived
from hpcai500.data.imagenet.image_index import ImageIndex, pack_names

CONTENT = ".hpcai500-content.json"
_FORMAT = "hpcai500 image content 1"


class ContentDigest:
    """SHA-256 over every file's path and the SHA-256 of its bytes, in the order of the index."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(pack_names([_FORMAT]))

    def add(self, path: str, sha256: bytes) -> None:
        """Add the next file of the index: its path relative to the root, and the 32 bytes of its own digest."""
        self._digest.update(pack_names([path]) + sha256)

    def hexdigest(self) -> str:
        """Return the fingerprint of all files added so far."""
        return self._digest.hexdigest()


def store_content_fingerprint(index: ImageIndex, fingerprint: str) -> None:
    """Keep `fingerprint` (hex) as that of the files that `index` lists."""
    document = {"format": _FORMAT, "index_fingerprint": index.fingerprint, "content_fingerprint": fingerprint}
    write_derived(index.root, CONTENT, (json.dumps(document, indent=1) + "\n").encode())


def load_content_fingerprint(index: ImageIndex) -> str | None:
    """Return the fingerprint that the last complete check of exactly these files found, or None.

    Paths and sizes must be those of the check. A file overwritten since with as many bytes is not noticed: only
    another check reads all of them.
    """
    for path in derived_paths(index.root, CONTENT):
        try:
            document = json.loads(path.read_bytes())
            if (document["format"], document["index_fingerprint"]) == (_FORMAT, index.fingerprint):
                return str(document["content_fingerprint"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
