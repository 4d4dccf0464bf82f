"""Which files of the package were changed before it ran, and what layer each belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import hpcai500
from hpcai500 import __version__
from hpcai500.system.versions import code_files

# Longest prefix wins. What is in no line measures, records or judges: whoever changes it changes the measuring itself.
LAYERS: dict[str, int] = {
    "optim/": 8,
    "workloads/": 7,
    "engine/": 6,
    "data/": 4,
    "engine/devices.py": 4,
    "engine/precision.py": 4,
    "side_stream.py": 4,
    "comm/": 3,
    "cli/": 2,
    "launch/": 2,
    "hostlist.py": 2,
    "placement.py": 2,
    "streams.py": 2,
}
# In folders of a layer, what takes times, counts, evaluates, or writes down.
TRUSTED = (
    "comm/timeline/",
    "engine/announcement.py",
    "engine/attribution.py",
    "engine/ceilings.py",
    "engine/checkpoints.py",
    "engine/costs.py",
    "engine/job.py",
    "engine/journal.py",
    "engine/measurement.py",
    "engine/power.py",
    "engine/replay_command.py",
    "engine/replicas.py",
    "engine/tally.py",
    "engine/trainer.py",
    "workloads/quality/",
)

How = Literal["changed", "added", "missing"]


@dataclass(frozen=True)
class Changed:
    """One Python file that is not that of this version.

    Attributes:
        path: within the package.
        how: what became of it.
        layer: that it belongs to; None for what measures, records or judges.
    """

    path: str
    how: How
    layer: int | None


def layer_of(path: str) -> int | None:
    """Number of the layer of a file of the package; None for what measures, records or judges."""
    if path.startswith(TRUSTED):
        return None
    prefixes = [prefix for prefix in LAYERS if path.startswith(prefix)]
    return LAYERS[max(prefixes, key=len)] if prefixes else None


def code_changes(folder: Path, version: str) -> tuple[Changed, ...] | None:
    """Files of the package in `folder` that are not as in the one that is installed here.

    None where that one is of another version than `version`, so that nothing can be said.
    """
    if version != __version__:
        return None
    ours = Path(hpcai500.__file__).parent
    names = sorted({path.relative_to(one).as_posix() for one in (folder, ours) for path in code_files(one)})
    found = ((name, _how(folder / name, ours / name)) for name in names)
    return tuple(Changed(name, how, layer_of(name)) for name, how in found if how)


def _how(theirs: Path, ours: Path) -> How | None:
    if not theirs.is_file():
        return "missing"
    if not ours.is_file():
        return "added"
    return "changed" if theirs.read_bytes() != ours.read_bytes() else None
