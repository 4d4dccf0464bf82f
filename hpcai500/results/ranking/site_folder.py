"""Replaces a site as a whole, in a folder that is empty or holds only a site of hpcai500."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcai500.errors import UsageError

# Lists the files of a site, so that no other files are removed.
MARKER = ".hpcai500-site.json"
_SCHEMA = "hpcai500-site-1"


def check_place(folder: Path) -> None:
    """Require that `folder` is absent, empty, or holds only a site of hpcai500.

    Raises:
        UsageError: it holds other files.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: not a folder; give --html a new or an empty one")
    if not folder.is_dir():
        return
    present = set(_files(folder))
    ours = _ours(folder)
    if ours is None and present:
        raise UsageError(f"{folder}: holds {min(present)} and is not a site of hpcai500; give --html an empty folder")
    if others := present - (ours or frozenset()):
        raise UsageError(
            f"{folder}: holds {min(others)}, which hpcai500 did not write and would remove; move it, or give --html "
            "another folder"
        )


def write_site(folder: Path, files: Mapping[str, str]) -> None:
    """Replace `folder` by a site with `files`: a reader sees either the old site or the new one.

    Raises:
        UsageError: `folder` holds other files, or cannot be written.
    """
    check_place(folder)
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _beside(folder) as made:
            for name, content in {**files, MARKER: _marker(files)}.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # A record may hold half of a surrogate pair, which UTF-8 cannot encode.
                path.write_text(content, encoding="utf-8", errors="replace")
            _exchange(made, folder)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}; give --html another folder") from error


def content_before(folder: Path, name: str) -> bytes | None:
    """The file `name` of the site in `folder`; None without a site of hpcai500, or if the site does not have the file.

    Raises:
        UsageError: the file belongs to the site, but cannot be read.
    """
    if name not in (_ours(folder) or ()):
        return None
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{folder / name}: {error.strerror}, but the site requires it; restore a copy of it, or give --html a new "
            "folder"
        ) from error


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, on the same file system; removed at the end."""
    made = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _exchange(made: Path, folder: Path) -> None:
    """Replace `folder` by `made`, which gets its permissions."""
    if not folder.exists():
        made.rename(folder)
        return
    made.chmod(folder.stat().st_mode & 0o7777)
    old = made.with_name(f"{made.name}.old")
    folder.rename(old)
    try:
        made.rename(folder)
    except BaseException:
        # Also on Ctrl-C, as the old site would be lost.
        if not folder.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def _ours(folder: Path) -> frozenset[str] | None:
    """Files of the site in `folder`; None if it is not a site of hpcai500."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return frozenset([*map(str, marker["files"]), MARKER]) if marker["schema"] == _SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _marker(files: Mapping[str, str]) -> str:
    return json.dumps({"schema": _SCHEMA, "files": sorted(files)}) + "\n"
