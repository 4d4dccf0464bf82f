"""The tokens that run a command in the image, whole."""

from __future__ import annotations

import shlex

import pytest

from hpcai500.errors import UsageError
from hpcai500.launch.slurm.script import bind_of, container_environment, in_container, sources_on_host
from hpcai500.launch.slurm.site import ContainerTable, MpiTable

IMAGE = ContainerTable(image="/apps/hpcai500.sif")
GPU = ContainerTable(command="singularity", image="/my apps/h.sif", flags=("--nv", "--contain"), binds=("/scratch:/s",))
HOSTS_MPI = MpiTable(model="bind", folder="/opt/openmpi", library_folders=("/opt/ucx/lib",))


def golden(tokens: list[str], *lines: str) -> None:
    assert shlex.join(tokens) == " ".join(lines)


def test_a_command_in_the_image_sees_the_image() -> None:
    golden(
        in_container(IMAGE, ["hpcai500", "ic"]),
        "apptainer exec --bind /apps/hpcai500.sif:/image.sif:ro /apps/hpcai500.sif hpcai500 ic",
    )


def test_binds_flags_and_folder_stand_before_the_image() -> None:
    golden(
        in_container(GPU, ["hpcai500", "ic"], binds=["/data"], folder="/home/me"),
        "singularity exec --nv --contain --bind /scratch:/s --bind '/my apps/h.sif:/image.sif:ro' --bind /data",
        "--pwd /home/me '/my apps/h.sif' hpcai500 ic",
    )


def test_the_hosts_mpi_is_bound_where_it_lies_and_comes_first() -> None:
    golden(
        in_container(IMAGE, ["hpcai500"], mpi=HOSTS_MPI),
        "apptainer exec --bind /apps/hpcai500.sif:/image.sif:ro --bind /opt/openmpi:/opt/openmpi:ro",
        "--bind /opt/ucx/lib:/opt/ucx/lib:ro /apps/hpcai500.sif hpcai500",
    )
    assert container_environment(IMAGE, HOSTS_MPI) == {
        "APPTAINERENV_LD_LIBRARY_PATH": "/opt/openmpi/lib:/opt/ucx/lib",
        "APPTAINERENV_OPAL_PREFIX": "/opt/openmpi",
    }
    assert next(iter(container_environment(GPU, HOSTS_MPI))) == "SINGULARITYENV_LD_LIBRARY_PATH"
    assert container_environment(IMAGE, MpiTable()) == {}


def test_a_folder_as_image_is_not_bound_as_a_file() -> None:
    golden(in_container(ContainerTable(image="/sandbox"), ["x"]), "apptainer exec /sandbox x")


def test_without_a_container_the_command_stays() -> None:
    none = ContainerTable(command="none")
    assert in_container(none, ["hpcai500", "ic"], binds=["/data"], mpi=HOSTS_MPI) == ["hpcai500", "ic"]
    assert container_environment(none, HOSTS_MPI) == {}


def test_what_must_be_on_the_host_is_the_source_of_each_bind() -> None:
    tokens = in_container(GPU, ["x"], binds=["/data:/data:ro"])
    assert sources_on_host(tokens) == ["/scratch", "/my apps/h.sif", "/data"]


def test_a_missing_image_is_told_with_the_line_to_write() -> None:
    with pytest.raises(UsageError, match=r'image: is missing; give its path, image = "/apps/hpcai500.sif"'):
        in_container(ContainerTable(), ["x"])


@pytest.mark.parametrize("path", ["/a,b", "/a:b"])
def test_a_path_that_apptainer_would_cut_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be bound"):
        bind_of(path)
    with pytest.raises(UsageError, match="cannot be bound"):
        in_container(ContainerTable(image=path + ".sif"), ["x"])
