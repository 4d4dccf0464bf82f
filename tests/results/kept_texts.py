"""Long texts that people read are kept in snapshots/, and compared whole.

`HPCAI500_WRITE_GOLDEN=1 pytest tests/results` writes them anew, for a change that is meant; its diff is then what users
will see.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from builders.snapshots import require_snapshot

SNAPSHOTS = Path(__file__).parent / "snapshots"


def require_text(name: str, lines: Iterable[str], **places: Path) -> None:
    """These lines are those of `snapshots/NAME.txt`, in which each of `places` stands by its name."""
    found = "".join(f"{line}\n" for line in lines)
    for word, path in places.items():
        found = found.replace(str(path), word.upper())
    require_snapshot(SNAPSHOTS / f"{name}.txt", found)
