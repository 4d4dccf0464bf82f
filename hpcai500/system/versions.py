"""Which software this is: image, package, rules and libraries, by hash and version. Nothing of it is imported."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import hpcai500
from hpcai500 import _core
from hpcai500.editions import editions
from hpcai500.plugins.code import facts_of
from hpcai500.plugins.finding import installed_plugins
from hpcai500.system.accelerator import Torch
from hpcai500.system.container import IMAGE_FILE, Container, image_description

SCHEMA = "hpcai500-version-1"
_PACKAGE = Path(hpcai500.__file__).parent
_DATA_FOLDERS = ("recipes", "docs")
_LIBRARIES = ("torch", "horovod", "numpy", "h5py", "pydantic")


def version_document(container: Container | None, mpi: str | None, benchmark: str | None = None) -> dict[str, Any]:
    """All of it; what is not known is None.

    Args:
        container: that of this process.
        mpi: the MPI here, as `mpi.installed_mpi` says.
        benchmark: that runs: of plug-ins, only the one that brings it is told; None: all that are installed.
    """
    torch = installed_torch()
    return {
        "schema": SCHEMA,
        "image": _image(container),
        "package": {
            "version": hpcai500.__version__,
            "revision": _revision(_PACKAGE.parent),
            "code_sha256": code_hash(_PACKAGE),
            "core_sha256": core_hash(),
        },
        "plugins": [facts_of(one) for one in installed_plugins() if benchmark in (None, one.name)],
        "editions": {name: file_hash(_PACKAGE / "editions" / f"{name}.toml") for name in editions()},
        "software": {
            "python": platform.python_version(),
            **{name: installed(name) for name in _LIBRARIES},
            "cuda": torch.cuda if torch else None,
            "mpi": mpi,
        },
    }


def version_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document for people."""
    package, image = document["package"], document["image"]
    revision = f", revision {package['revision']}" if package["revision"] else ""
    yield f"hpcai500  {package['version']}{revision}"
    yield f"code      {package['code_sha256']}"
    yield f"core      {package['core_sha256']}"
    for name, digest in document["editions"].items():
        yield f"edition   {name} {digest}"
    for plugin in document["plugins"]:
        yield f"plug-in   {plugin['name']} {plugin['package']} {plugin['version']} {plugin['code_sha256'] or 'unknown'}"
    for name, version in document["software"].items():
        yield f"{name:8}  {version or 'none'}"
    if image is None:
        yield "image     none"
        return
    yield f"image     {image['name']} {image['version'] or ''}".rstrip()
    yield f"content   {image['content_sha256'] or 'unknown'}"
    yield f"file      {image['path'] or 'unknown'} {image['file_sha256'] or ''}".rstrip()
    if image["note"]:
        yield f"          {image['note']}"


def installed(name: str) -> str | None:
    """Version of the distribution `name`, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def installed_torch() -> Torch | None:
    """The torch of this Python, as its own files say: to import it takes seconds."""
    try:
        path = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    except metadata.PackageNotFoundError:
        return None
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    version = _assigned(text, "__version__") or installed("torch") or "unknown"
    return Torch(version, _assigned(text, "cuda"), _assigned(text, "hip"))


def _assigned(text: str, name: str) -> str | None:
    """The string that `text` assigns to `name`."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def code_hash(folder: Path) -> str:
    """SHA-256 (hex) over names and contents of the Python files of the package in `folder`."""
    digest = hashlib.sha256()
    for path in code_files(folder):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def code_files(folder: Path) -> list[Path]:
    """The Python files of the package in `folder`, in the order in which they are hashed.

    Recipes lie within an installed package and beside that of a checkout: their adapters for test harnesses are no part
    of what runs, and would make the same code look like another.
    """
    return [path for path in sorted(folder.rglob("*.py")) if path.relative_to(folder).parts[0] not in _DATA_FOLDERS]


def package_code_hash() -> str:
    """`code_hash` of this package."""
    return code_hash(_PACKAGE)


def core_hash() -> str:
    """SHA-256 (hex) of the compiled core."""
    return file_hash(Path(_core.__file__))


@cache
def file_hash(path: Path) -> str:
    """SHA-256 (hex) of a file; images are large, and no file here changes under a running process."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _image(container: Container | None) -> dict[str, Any] | None:
    """What `image.json` says, the file's hash, or why there is none; of another's image, what can be seen of it."""
    description = container.description if container else image_description()
    if container is None and description is None:
        return None
    file = container.file if container else None
    return {
        **dict.fromkeys(("name", "version", "content_sha256")),
        **(description or {"name": container.name if container else None}),
        "path": container.path if container else None,
        "file_sha256": file_hash(file) if file else None,
        "note": None if file else _why_no_hash(container),
    }


def _why_no_hash(container: Container | None) -> str:
    if container is None:
        return "not started by Apptainer: which file this was, nobody knows"
    if container.is_sandbox:
        return "the image is a folder, which has no SHA-256 of its own"
    return f"the image cannot be seen from inside: add --bind {container.path or 'IMAGE'}:/{IMAGE_FILE}:ro"


def _revision(checkout: Path) -> str | None:
    """The commit that the package was made from, with +dirty where files were changed; None where nobody knows."""
    if description := image_description():
        return description.get("revision")
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    head = subprocess.run([git, "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        [git, "-C", str(checkout), "--no-optional-locks", "status", "--porcelain", "--untracked-files=no"],
        capture_output=True,
        text=True,
        check=False,
    )
    # A checkout of another user is refused by git, and then nothing is known.
    if head.returncode != 0 or changed.returncode != 0:
        return None
    return head.stdout.strip() + ("+dirty" if changed.stdout.strip() else "")
