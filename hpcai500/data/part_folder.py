"""A folder for half-written files, which goes with the call that writes them, or with the next one."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = ".hpcai500-part-"
_NAME = re.compile(re.escape(_PREFIX) + r"(?P<host>.+)-(?P<process>\d+)-[^-]+")


@contextmanager
def part_folder(root: Path) -> Iterator[Path]:
    """Make a folder in `root` for the length of a `with` block.

    Folders of processes of this host that were killed are removed first: they can be as large as the set. Raises
    OSError when `root` cannot be written.
    """
    for found in root.glob(f"{_PREFIX}*"):
        if _is_abandoned(found.name):
            shutil.rmtree(found, ignore_errors=True)
    prefix = f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _is_abandoned(name: str) -> bool:
    match = _NAME.fullmatch(name)
    # Whether a process of another host lives cannot be known.
    if match is None or match["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(match["process"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
