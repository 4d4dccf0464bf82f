"""Long texts that people read are kept in files, and compared whole.

With `HPCAI500_WRITE_GOLDEN=1` a test writes its file anew, for a change that is meant: the diff is then what users
will see.
"""

from __future__ import annotations

import os
from pathlib import Path

# Read before a test clears its environment of our variables.
_WRITES = bool(os.environ.get("HPCAI500_WRITE_GOLDEN"))


def require_snapshot(file: Path, found: str) -> None:
    """`found` is what `file` keeps."""
    if _WRITES:
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")
