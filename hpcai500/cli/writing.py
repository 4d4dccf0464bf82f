"""Files that a command writes beside its result, where the user asked for them."""

from __future__ import annotations

from pathlib import Path

from hpcai500.errors import UsageError
from hpcai500.streams import say


def write_asked_for(target: Path, content: bytes, option: str) -> None:
    """Write `content` to `target`, whole or not at all, and say so on stderr.

    Args:
        target: as the user named it.
        content: of the file.
        option: that it was named by, for an error.

    Raises:
        UsageError: it cannot be written there.
    """
    from hpcai500.files import write_atomically  # noqa: PLC0415 - keeps `--help` fast

    if target.is_dir():
        raise UsageError(f"{target}: a folder; give a file: {option} {target / 'NAME'}")
    try:
        write_atomically(target, content)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}; give another {option} FILE") from error
    say(f"{target}: written")
