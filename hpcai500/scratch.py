"""Where temporary files go, also in systems that can hardly be written to, such as an image without binds.

Output lies in --out or the working directory, and nowhere else: what libraries keep for themselves (torch a cache of
what it compiled, as soon as it counts operations; Matplotlib a list of fonts) goes into a folder that is removed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError
from hpcai500.files import nearest

VARIABLE = "TMPDIR"
# Memory comes last: process pools need it anyway, and it is scarce.
_USUAL = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - folders to try, each for a folder with a name of its own
# Who sets one of these keeps what is in it from run to run.
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "torch", "MPLCONFIGDIR": "matplotlib"}


def scratch_folder(environment: Mapping[str, str], work: Path) -> tempfile.TemporaryDirectory[str]:
    """A new folder in the first place that can be written: $TMPDIR, /tmp, /var/tmp, /dev/shm, `work`.

    Args:
        environment: where TMPDIR may be.
        work: a folder of the user's, which need not be there yet.

    Raises:
        EnvironmentLacksError: none can; with what helps.
    """
    tried = []
    for folder in _candidates(environment, work):
        try:
            return tempfile.TemporaryDirectory(prefix="hpcai500-", dir=folder, ignore_cleanup_errors=True)
        except OSError as error:
            tried.append(f"{folder} ({error.strerror})")
    raise EnvironmentLacksError(
        f"no folder for temporary files can be written: {', '.join(tried)}; set {VARIABLE} to one that can, in a "
        f"container with `--bind DIR --env {VARIABLE}=DIR`"
    )


@contextmanager
def scratch(environment: MutableMapping[str, str], work: Path) -> Iterator[Path]:
    """A folder for temporary files while the context is open, which libraries keep their caches in.

    Enter it before they are imported: `environment`, which they read then, is changed meanwhile.

    Raises:
        EnvironmentLacksError: as scratch_folder.
    """
    with scratch_folder(environment, work) as folder:
        places = {name: str(Path(folder, place)) for name, place in _CACHES.items() if name not in environment}
        changes = {**places, **_temporary(environment, folder)}
        before = {name: environment.get(name) for name in changes}
        environment.update(changes)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                environment.pop(name)
                environment.update({name: value} if value is not None else {})


def with_temporary_folder(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """`environment` with a TMPDIR that can be written, for programs that insist on one, such as MPI's launchers.

    As it was where nothing can be written: the program then says what it lacks.
    """
    folder = writable_folder(environment, work)
    return {**environment, **(_temporary(environment, folder) if folder else {})}


def writable_folder(environment: Mapping[str, str], work: Path) -> str | None:
    """The folder that scratch_folder would make its own in, or None."""
    return next((folder for folder in _candidates(environment, work) if _can_write(folder)), None)


def can_be_made(path: Path) -> bool:
    """Whether the folder `path`, or all that is missing of it, can be made and written by this user."""
    return _can_write(str(nearest(path)))


def _temporary(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """TMPDIR as `folder`, unless what would be taken without it can be written."""
    return {} if _can_write(environment.get(VARIABLE) or _USUAL[0]) else {VARIABLE: folder}


def _can_write(folder: str) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _candidates(environment: Mapping[str, str], work: Path) -> Iterator[str]:
    yield from dict.fromkeys((*filter(None, [environment.get(VARIABLE)]), *_USUAL, str(nearest(work))))
