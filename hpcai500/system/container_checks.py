"""The container, its image and the Python in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcai500.interpreter import NOT_HEEDED
from hpcai500.system.checks import Check
from hpcai500.system.container import IMAGE_FILE, Container, short_image


def container_check(container: Container | None, *, read_only: bool) -> Check:
    """Whether, and in which image, this process runs.

    Args:
        read_only: whether `/` is.
    """
    if container is None:
        return Check("container", "pass", "none: installed on this machine")
    kind = "a folder (sandbox)" if container.is_sandbox else "read-only" if read_only else "writable"
    if container.description is None:
        return Check("container", "pass", f"{container.program}, {container.name}, {kind}; no image of hpcai500")
    return Check("container", "pass", f"{container.program}, {short_image(container.description)}, {kind}")


def image_check(container: Container | None, arguments: Sequence[str]) -> Check:
    """Whether the record can hold the hash of the image's file."""
    if container is None:
        return Check("image", "pass", "none")
    if container.file is not None:
        return Check(
            "image", "pass", f"{container.path or container.file} can be seen: its SHA-256 goes into the record"
        )
    if container.is_sandbox:
        return Check("image", "pass", f"{container.path} is a folder, which has no SHA-256 of its own")
    bind = ["--bind", f"{container.path or 'IMAGE'}:/{IMAGE_FILE}:ro"]
    return Check(
        "image",
        "warn",
        f"{container.path or 'the image'} cannot be seen from inside: the record will lack the SHA-256 of its file",
        container.line(bind, arguments),
    )


def python_check(container: Container | None, environment: Mapping[str, str]) -> Check:
    """Whether somebody may miss packages: the command line ignores the variables that lead to some."""
    if names := [name for name in environment.get(NOT_HEEDED, "").split(", ") if name.startswith("PYTHON")]:
        is_set, it = ("is set", "it") if len(names) == 1 else ("are set", "them")
        return Check(
            "python",
            "warn",
            f"{', '.join(names)} {is_set} but ignored: packages on {it} are not used (docs/launching.md)",
            f"install them where hpcai500 is installed, or unset {it}",
        )
    return Check("python", "pass", "that of the image alone" if container else "that of the installation alone")
