"""Long texts that people read are kept in snapshots/, and compared whole.

`HPCAI500_WRITE_GOLDEN=1 pytest tests/results` writes them anew, for a change that is meant; its diff is then what users
will see.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

SNAPSHOTS = Path(__file__).parent / "snapshots"


def require_text(name: str, lines: Iterable[str], **places: Path) -> None:
    """These lines are those of `snapshots/NAME.txt`, in which each of `places` stands by its name."""
    found = "".join(f"{line}\n" for line in lines)
    for word, path in places.items():
        found = found.replace(str(path), word.upper())
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("HPCAI500_WRITE_GOLDEN"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")
