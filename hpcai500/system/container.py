"""The container of this process, from the variables of Apptainer or Singularity, and the command that starts it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hpcai500.errors import EnvironmentLacksError
from hpcai500.files import is_folder

# Where an image expects its own file: `--bind IMAGE:/image.sif:ro`. The image has an empty file as the mount point.
IMAGE_FILE = "image.sif"
_IMAGE_WORD = "hpcai500.sif"
_VARIABLES = ("CONTAINER", "COMMAND", "BIND")
# Enough of a hash to distinguish it.
_SHOWN_CHARACTERS = 12


@dataclass(frozen=True)
class Container:
    """The container of this process.

    Attributes:
        program: `apptainer` or `singularity`.
        path: of the image on the host; None if unknown.
        file: path of the image's file inside the container; None if it is not visible, or is a folder.
        is_sandbox: whether the image is a folder, which has no file hash.
        action: how it was started: `run`, `exec` or `shell`.
        binds: folders that were bound into it (their names inside).
        has_driver: whether it was started with the NVIDIA driver (`--nv`).
        description: content of `image.json`; None for an image that is not from hpcai500.
    """

    program: str
    path: str | None = None
    file: Path | None = None
    is_sandbox: bool = False
    action: str = "run"
    binds: tuple[str, ...] = ()
    has_driver: bool = False
    description: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def name(self) -> str:
        """Name of the image for people."""
        if self.description:
            return f"{self.description.get('name')} {self.description.get('version')}"
        return Path(self.path).name if self.path else "an image without a name"

    def line(self, options: Sequence[str], arguments: Sequence[str]) -> str:
        """The command to type on the host that starts `hpcai500 ARGUMENTS` again, with more `options`."""
        driver = ["--nv"] if self.has_driver and "--nv" not in options else []
        start = ["run"] if self.action == "run" else ["exec"]
        command = list(arguments) if self.action == "run" else ["hpcai500", *arguments]
        line = shlex.join([self.program, *start, *driver, *options, self.path or _IMAGE_WORD, *command])
        # Only the names inside are known here, not the sources on the host.
        return f"{line} (in addition to your --bind options)" if self.binds else line


# What is at the top of a data set, as patterns; a set of a plug-in may have anything there.
TOP_OF_SET: Mapping[str, Sequence[str]] = {"ic": ("train/", "val/"), "ewa": ("climo_*.h5",)}


def links_of(data: Path, benchmark: str | None) -> Iterator[tuple[Path, Path]]:
    """The links of a data set that lead elsewhere, each with the folder that must be bound for it.

    These are the set's own path, what is at its top, and what is in these folders. It need not be visible here where
    they lead; without a benchmark, only the set's own path is looked at.
    """
    place = Path(os.path.realpath(data))
    path = Path(os.path.abspath(data))  # noqa: PTH100 - resolve() would follow links
    # No container shows a link in /, and hosts may have different ones.
    if place != Path(os.path.realpath(Path(*path.parts[:2])), *path.parts[2:]):
        yield path, place
    names = TOP_OF_SET.get(benchmark, ("*",)) if benchmark else ()
    first = [entry for entry in _listed(place) if any(fnmatch(entry.name, name.rstrip("/")) for name in names)]
    for entry in (*first, *(inner for folder in first for inner in _listed(Path(folder)))):
        if entry.is_symlink() and not (target := Path(os.path.realpath(entry))).is_relative_to(place):
            # One bind for all classes, or all years.
            yield Path(entry), target if entry in first and not target.suffix else target.parent


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def find_container(
    environment: Mapping[str, str], root: Path = Path("/"), prefix: Path = Path(sys.prefix)
) -> Container | None:
    """The container that this process runs in, or None; `prefix` is the folder of the Python environment.

    Raises:
        EnvironmentLacksError: `image.json` is damaged.
    """
    program = next((name for name in ("apptainer", "singularity") if f"{name.upper()}_CONTAINER" in environment), None)
    if program is None and not (root / ".singularity.d").is_dir():
        return None
    values = {key: environment.get(f"{program.upper()}_{key}", "") if program else "" for key in _VARIABLES}
    path = values["CONTAINER"] or None
    libraries = root / ".singularity.d" / "libs"
    candidates = [root / IMAGE_FILE, *([root / path.lstrip("/")] if path else [])]
    return Container(
        program=program or "apptainer",
        path=path,
        file=next(filter(_is_bound, candidates), None),
        is_sandbox=path is not None and is_folder(root / path.lstrip("/")),
        action=values["COMMAND"] or "run",
        binds=tuple(filter(None, values["BIND"].split(","))),
        has_driver=libraries.is_dir() and any(libraries.glob("libcuda.so*")),
        description=image_description(prefix),
    )


def image_description(prefix: Path = Path(sys.prefix)) -> dict[str, Any] | None:
    """`image.json` of an image of hpcai500; None outside one.

    Raises:
        EnvironmentLacksError: the file is damaged.
    """
    path = prefix / "share" / "hpcai500" / "image.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EnvironmentLacksError(f"{path}: cannot be read ({error}): download or build the image again") from error
    if not isinstance(document, dict):
        raise EnvironmentLacksError(f"{path}: expected a JSON object: download or build the image again")
    return document


def short_image(image: Mapping[str, Any]) -> str:
    """`hpcai500-cpu 0.1.0, content 0123456789ab, file ba9876543210`: enough to distinguish images."""
    hashes = [("content", image.get("content_sha256")), ("file", image.get("file_sha256"))]
    shown = [f"{name} {value[:_SHOWN_CHARACTERS]}" for name, value in hashes if isinstance(value, str)]
    name = " ".join(str(image[key]) for key in ("name", "version") if image.get(key))
    return ", ".join([name or "an image without a name", *shown])


def _is_bound(image: Path) -> bool:
    """Whether an image is bound to this file: an empty file is only the mount point, and a folder may be hidden."""
    return os.access(image, os.R_OK) and image.is_file() and image.stat().st_size > 0
