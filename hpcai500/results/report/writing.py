"""Where a page goes."""

from __future__ import annotations

from pathlib import Path

from hpcai500.errors import UsageError
from hpcai500.files import write_atomically


def write_page(target: Path, html: str) -> None:
    """Write `html` to `target`, whole or not at all.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        # A record may hold half a character that UTF-8 cannot have.
        write_atomically(target, html.encode("utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}; give another -o FILE") from error
