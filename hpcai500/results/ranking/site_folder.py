"""Puts a site where it belongs, whole: a folder that is empty, or that holds a site of ours and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcai500.errors import UsageError

# Lists the files of a site, so that no other files are ever removed.
MARKER = ".hpcai500-site.json"
_SCHEMA = "hpcai500-site-1"


def check_place(folder: Path) -> None:
    """Make sure that `folder` is free or holds a site of ours.

    Raises:
        UsageError: it is neither.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: not a folder; give --html a new or an empty one")
    if not folder.is_dir():
        return
    there = set(_files(folder))
    ours = _ours(folder)
    if ours is None and there:
        raise UsageError(f"{folder}: holds {min(there)} and is no site of hpcai500; give --html an empty folder")
    if strange := there - (ours or frozenset()):
        raise UsageError(
            f"{folder}: holds {min(strange)}, which hpcai500 did not write and would remove; move it, or give --html "
            "another folder"
        )


def write_site(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` below `folder` in place of what is there: a reader sees the old site or the new one.

    Raises:
        UsageError: `folder` is not ours to replace, or cannot be written.
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
    """The file `name` of the site of ours in `folder`; None where there is no such site, or it has no such file.

    Raises:
        UsageError: the site has it, and it cannot be read.
    """
    if name not in (_ours(folder) or ()):
        return None
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{folder / name}: {error.strerror}, and the site was written with it; put back a copy of it, or give "
            "--html a new folder"
        ) from error


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, on the same file system; it is removed in the end."""
    made = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _exchange(made: Path, folder: Path) -> None:
    """Put `made` in the place of `folder`, with the permissions of what was there."""
    if not folder.exists():
        made.rename(folder)
        return
    made.chmod(folder.stat().st_mode & 0o7777)
    old = made.with_name(f"{made.name}.old")
    folder.rename(old)
    try:
        made.rename(folder)
    except BaseException:
        # On Ctrl-C too: without this, the site that was there would be gone.
        if not folder.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def _ours(folder: Path) -> frozenset[str] | None:
    """Files of the site in `folder`; None where it is no site of ours."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return frozenset([*map(str, marker["files"]), MARKER]) if marker["schema"] == _SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _marker(files: Mapping[str, str]) -> str:
    return json.dumps({"schema": _SCHEMA, "files": sorted(files)}) + "\n"
