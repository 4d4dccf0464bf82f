"""The folders that a run reads and writes: whether they are there, can be written, and have space."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcai500.files import is_folder, is_there, nearest
from hpcai500.layers import Recipe
from hpcai500.scratch import writable_folder
from hpcai500.system.checks import Check
from hpcai500.system.container import Container

DATA = "data"
OUT = "out"
TEMPORARY = "temporary"
# A few checkpoints of ResNet-50 with its momentum (205 MB each), and what a run writes beside them.
_LEAST_FREE_BYTES = 2 * 10**9
# Docker's default, which is too small for the messages between ranks of a node, is 64 MiB.
_LEAST_SHARED_BYTES = 256 * 2**20
# By whether the user named a folder of the image, or just started in one.
_IN_THE_IMAGE = {True: "give --out with a folder of the host", False: "start in a folder of the host, or add --out DIR"}


def data_check(
    data: Path | None, recipe: Recipe | None, container: Container | None, arguments: Sequence[str]
) -> Check:
    """Whether the data set's folder is there and can be read; its content is read later."""
    if data is None:
        return _no_data_named(recipe)
    if unseen := _unseen_data(data, recipe, container, arguments):
        return unseen
    if not os.access(data, os.R_OK | os.X_OK):
        fix = f"chmod -R u+rX {shlex.quote(str(data))}, or ask its owner"
        return Check(DATA, "fail", f"{data}: you may not read it", fix)
    if not any(data.iterdir()):
        fix = "see whether its file system is mounted, or give another --data DIR"
        return Check(DATA, "fail", f"{data}: empty", fix)
    return Check(DATA, "pass", f"{data} can be read")


def _unseen_data(
    data: Path, recipe: Recipe | None, container: Container | None, arguments: Sequence[str]
) -> Check | None:
    """The error where no folder can be seen at `data`."""
    dataset = f"the folder of {recipe.problem.dataset}" if recipe else "the folder of the data set"
    if reason := _why_hidden(data):
        fix = f"ask the owner of {nearest(data)}, or give another folder with --data DIR"
        return Check(DATA, "fail", f"{data}: may not be read by this user ({reason})", fix)
    if not is_there(data):
        if container:
            return _not_visible(DATA, data, container, arguments)
        return Check(DATA, "fail", f"{data}: no such folder", f"give {dataset} with --data DIR")
    if not data.is_dir():
        return Check(DATA, "fail", f"{data}: not a folder", f"give {dataset} with --data DIR")
    return None


def _no_data_named(recipe: Recipe | None) -> Check:
    if recipe is None:
        return Check(DATA, "pass", "none named")
    dataset = recipe.problem.dataset
    if dataset.startswith("synthetic-"):
        return Check(DATA, "pass", f"{dataset}: hpcai500 makes it itself")
    return Check(DATA, "fail", f"{recipe.benchmark}: the recipe trains on {dataset}", "give its folder with --data DIR")


def out_check(out: Path, container: Container | None, arguments: Sequence[str]) -> Check:
    """Whether the record can be written: `out` itself, or the folder that it will be made in."""
    folder = nearest(out)
    other = "give another folder with --out DIR"
    if not is_folder(folder):
        return Check(OUT, "fail", f"{folder}: not a folder", other)
    if os.access(folder, os.W_OK | os.X_OK):
        return _lasting(out, folder, container) or _space(out, folder)
    if not is_read_only(folder):
        return Check(OUT, "fail", f"{folder}: you may not write there", other)
    if container is None:
        return Check(OUT, "fail", f"{folder}: on a file system that is read-only", other)
    return _read_only_inside(out, folder, container, arguments)


def _read_only_inside(out: Path, folder: Path, container: Container, arguments: Sequence[str]) -> Check:
    root = Path("/")
    if folder == root and out.absolute() != root:
        # What is wanted lies below a folder that the container does not have.
        return _not_visible(OUT, out, container, arguments)
    if folder.stat().st_dev != root.stat().st_dev:
        fix = f"bind it without :ro: --bind {shlex.quote(str(folder))}"
        return Check(OUT, "fail", f"{folder}: read-only inside the container", fix)
    # What is relative is right where the command starts in a folder that can be written.
    options = ["--bind", "DIR"] if out.is_absolute() else ["--bind", "DIR", "--pwd", "DIR"]
    arguments = _with_out(arguments, "DIR") if out.is_absolute() else arguments
    return Check(
        OUT,
        "fail",
        f"{folder}: lies in the image, which is read-only",
        f"{_IN_THE_IMAGE[out.is_absolute()]}: {container.line(options, arguments)}",
    )


def _with_out(arguments: Sequence[str], folder: str) -> list[str]:
    """`arguments` with another --out: the one that was given is what is wrong."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return [*kept, "--out", folder]


def temporary_check(environment: Mapping[str, str], container: Container | None, out: Path) -> Check:
    """Whether temporary files can be written where TMPDIR says; else a run takes another folder (scratch.py)."""
    name = "TMPDIR" if environment.get("TMPDIR") else "/tmp"  # noqa: S108 - the folder itself is what is looked at
    folder = temporary_folder(environment)
    if is_folder(folder) and os.access(folder, os.W_OK | os.X_OK):
        return Check(TEMPORARY, "pass", f"{folder} can be written")
    there = is_there(folder) or _why_hidden(folder)
    why = "it may not be written by this user" if there else "it is not there"
    place = f"TMPDIR={folder}" if name == "TMPDIR" else name
    fix = "set TMPDIR to a folder that exists on every node"
    if container:
        fix = f"{container.program} {container.action} --bind {shlex.quote(str(folder))} …, or --env TMPDIR=/tmp"
    if instead := writable_folder(environment, out):
        return Check(TEMPORARY, "warn", f"{place}: {why}: temporary files go to {instead}", fix)
    return Check(TEMPORARY, "fail", f"{place}: {why}, and no other folder can be written", fix)


def temporary_folder(environment: Mapping[str, str]) -> Path:
    """Where programs put temporary files that are told nothing else."""
    return Path(environment.get("TMPDIR") or "/tmp")  # noqa: S108


def shared_memory_check(size_bytes: int | None, ranks: int, container: Container | None) -> Check:
    """Whether the ranks of a node have room to talk through memory (/dev/shm)."""
    if size_bytes is None:
        return Check("shared memory", "skip", "/dev/shm is not there")  # noqa: S108
    size = f"/dev/shm has {size_bytes / 2**20:.0f} MiB"  # noqa: S108
    if size_bytes >= _LEAST_SHARED_BYTES or ranks < 2:
        return Check("shared memory", "pass", size)
    fix = "have a larger one mounted"
    if container:
        fix = f"leave out --contain, or {container.program} {container.action} --bind /dev/shm …"
    return Check("shared memory", "warn", f"{size}: NCCL and MPI need more for {ranks} ranks", fix)


def shared_memory_bytes(folder: Path = Path("/dev/shm")) -> int | None:  # noqa: S108
    """Size of the file system at /dev/shm; None where there is none."""
    return shutil.disk_usage(folder).total if folder.is_dir() else None


def is_read_only(folder: Path) -> bool:
    """Whether the file system of `folder` is mounted read-only, whoever asks."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _lasting(out: Path, folder: Path, container: Container | None) -> Check | None:
    """A warning where the container will take the record with it."""
    if container is None:
        return None
    in_image = folder.stat().st_dev == Path("/").stat().st_dev
    if in_image or file_system_type(folder) == "tmpfs":
        where = "the container's own layer" if in_image else "memory (tmpfs)"
        return Check(
            OUT,
            "warn",
            f"{out.absolute()} lies in {where}: the record is gone when the container ends, or the node",
            f"{container.program} {container.action} --bind DIR …, and --out DIR with that folder of the host",
        )
    return None


def file_system_type(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """`ext4`, `lustre`, `tmpfs`: what `folder` lies on; None where the kernel does not say."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines() if mounts.is_file() else []:
        # Optional fields end with a dash (proc(5)).
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return None


def _space(out: Path, folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        return Check(
            OUT,
            "warn",
            f"{folder} has {free / 1e9:.2g} GB left: checkpoints may not fit",
            "make space, or give another folder with --out DIR",
        )
    return Check(OUT, "pass", f"{out.absolute()} can be written, {free / 1e9:.3g} GB free")


def _not_visible(name: str, path: Path, container: Container, arguments: Sequence[str]) -> Check:
    """What the host has there, the container does not show."""
    path = path.absolute()
    top = Path(*path.parts[:2])
    bound, what = (top, "not visible") if not is_there(top) else (path, "no such folder")
    return Check(
        name,
        "fail",
        f"{path}: {what} inside the container",
        f"add --bind {shlex.quote(str(bound))}: {container.line(['--bind', str(bound)], arguments)}",
    )


def _why_hidden(path: Path) -> str | None:
    """Why this user may not know whether `path` is there; None where that is known."""
    try:
        path.exists()
    except PermissionError as error:
        return error.strerror
    return None
