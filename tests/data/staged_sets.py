"""Orders for staging, and what lies in folders, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcai500.data.staged import FOLDER
from hpcai500.data.staging import Report, StageRequest, stage


def staged(source: Path, root: Path, benchmark: str = "ic", name: str = "somebody", **options: Any) -> Report:
    """Stage the set at `source` in `root`."""
    return stage(StageRequest(benchmark, source, root, name, **options))


def files_of(root: Path) -> dict[str, bytes]:
    """Path and content of all files of a folder that are data."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part.startswith(".hpcai500") for part in path.relative_to(root).parts)
    }


def parts_of(root: Path) -> list[str]:
    """Files that are not whole."""
    return [path.name for path in (*root.rglob(".hpcai500-part-*"), *(root / FOLDER).glob("seek-index"))]


def unlist(root: Path, path: str) -> None:
    """Leave the manifest as a staging does that was killed before it had listed a file."""
    manifest = root / FOLDER / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(line for line in lines if json.loads(line)["path"] != path))


class Counting:
    """A tracker that stops the work after so many megabytes."""

    def __init__(self, stop_after: int) -> None:
        self._left = stop_after

    def advance(self, n: int = 1) -> None:
        self._left -= n
        if self._left < 0:
            raise KeyboardInterrupt


def just_before_copying(action: Callable[[], object]) -> Any:
    """A tracker for `stage` that calls `action` once the set is listed, before the first file is copied."""

    @contextmanager
    def tracker(total: int, description: str, unit: str) -> Iterator[Counting]:
        if description == "staging":
            action()
        yield Counting(10**9)

    return tracker


def interrupting(after: int) -> Any:
    """A tracker for `stage` that behaves as Ctrl-C after so many megabytes."""

    @contextmanager
    def tracker(total: int, description: str, unit: str) -> Iterator[Counting]:
        yield Counting(after if description == "staging" else 10**9)

    return tracker
