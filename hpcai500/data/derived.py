"""Files that are derived from a data set: kept inside it, or in the user's cache where the set is read-only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hpcai500.data.atomic_file import write_unsynced


def derived_paths(root: Path, name: str) -> tuple[Path, ...]:
    """Return where a file derived from the set at `root` may lie: in the set, or in the user's cache."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        # A container may run under a user id that has no home.
        return (root / name,)
    place = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return root / name, cache / "hpcai500" / place / name.removeprefix(".")


def write_derived(root: Path, name: str, content: bytes) -> None:
    """Keep `content` for later runs in the first place that can be written; in none, later runs compute it again."""
    for path in derived_paths(root, name):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_unsynced(path, content)
        except OSError:
            continue
        return
