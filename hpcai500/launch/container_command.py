"""The tokens that run a command in the image. Pure: nothing is started, and no path is looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from hpcai500.errors import UsageError
from hpcai500.launch.site import NO_CONTAINER, ContainerTable, MpiTable
from hpcai500.system.container import IMAGE_FILE


def in_container(
    container: ContainerTable,
    command: Sequence[str],
    *,
    mpi: MpiTable | None = None,
    binds: Sequence[str] = (),
    folder: str | None = None,
) -> list[str]:
    """`command`, run in the image of `container`; as it is where there is no container.

    Args:
        mpi: whose MPI is used.
        binds: what the command needs of the host besides the site's binds: `SOURCE`, `SOURCE:TARGET[:ro]`.
        folder: where the command starts.

    Raises:
        UsageError: there is no image, or a path that cannot be bound.
    """
    if container.command == NO_CONTAINER:
        return list(command)
    if not container.image:
        raise UsageError(
            '[container] image: is missing; give its path, image = "/apps/hpcai500.sif", or run without a container: '
            f'command = "{NO_CONTAINER}"'
        )
    # So that a record can name the image's SHA-256.
    seen = [bind_of(container.image, f"/{IMAGE_FILE}", "ro")] if container.image.endswith(".sif") else []
    hosts_mpi = [bind_of(path, path, "ro") for path in _bound_folders(mpi or MpiTable())]
    return [
        *[container.command, "exec", *container.flags],
        *[token for bind in (*container.binds, *seen, *hosts_mpi, *binds) for token in ("--bind", bind)],
        *(["--pwd", folder] if folder else []),
        container.image,
        *command,
    ]


def bind_of(path: str, *rest: str) -> str:
    """The word for --bind that shows `path` inside: under the same name, or as `rest` says (target, options).

    Raises:
        UsageError: it holds a character that separates the parts of such a word.
    """
    if bad := [character for character in ",:" if character in path]:
        raise UsageError(f"{path}: a path with {bad[0]!r} cannot be bound into a container: rename it, or link to it")
    return ":".join([path, *rest])


def container_environment(container: ContainerTable, mpi: MpiTable) -> Mapping[str, str]:
    """Variables for the container that its runtime would not take over from the host: where the host's MPI lies."""
    if container.command == NO_CONTAINER or mpi.model != "bind":
        return {}
    prefix = "SINGULARITYENV" if PurePosixPath(container.command).name == "singularity" else "APPTAINERENV"
    paths = ":".join([f"{mpi.folder}/lib", *mpi.library_folders])
    # Without OPAL_PREFIX, the host's Open MPI would look for its plugins where the container's has them.
    return {f"{prefix}_LD_LIBRARY_PATH": paths, f"{prefix}_OPAL_PREFIX": mpi.folder}


def sources_on_host(tokens: Sequence[str]) -> list[str]:
    """What must exist on the host for a container to start: the first part of each bind."""
    return [bind.partition(":")[0] for option, bind in pairwise(tokens) if option == "--bind"]


def _bound_folders(mpi: MpiTable) -> list[str]:
    return [path for path in (mpi.folder, *mpi.library_folders) if path]
