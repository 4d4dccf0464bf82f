"""Whether the record of a whole run fits where it will be written."""

from __future__ import annotations

import shutil
from pathlib import Path

from hpcai500.files import nearest
from hpcai500.system.checks import Check
from hpcai500.system.preflight import DISK

# The last two checkpoints and the first at the target are kept; the space of the next one is reserved before its epoch.
CHECKPOINTS = 4
# Events, system, pictures, traces and power samples of a long run on many ranks.
RECORD_BYTES = 200 * 10**6
# A disk that is used by others too should not be filled to the last byte.
_MARGIN = 1.2


def space_check(out: Path, free_bytes: int, checkpoint_bytes: int) -> Check:
    """Whether `free_bytes` are enough for the record `out`, whose checkpoints have `checkpoint_bytes` each."""
    checkpoints = CHECKPOINTS * checkpoint_bytes
    needed = checkpoints + RECORD_BYTES
    told = (
        f"{nearest(out)} has {_megabytes(free_bytes)} free; a run needs {_megabytes(needed)}: {CHECKPOINTS} "
        f"checkpoints of {_megabytes(checkpoint_bytes)}, {_megabytes(RECORD_BYTES)} for the rest"
    )
    fix = "make space, or give another folder with --out DIR"
    if free_bytes < checkpoints:
        return Check(DISK, "fail", told, fix)
    if free_bytes < _MARGIN * needed:
        return Check(DISK, "warn", f"{told}: little is left for anybody else", fix)
    return Check(DISK, "pass", told)


def free_bytes(out: Path) -> int:
    """What this user may still write at `out`, or where it will be made."""
    return shutil.disk_usage(nearest(out)).free


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"
