"""Site files: what is in them, what is said of a mistake; and the words that run a command in a site's image."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest
from pydantic import BaseModel

from hpcai500.errors import UsageError
from hpcai500.launch.slurm.script import bind_of, container_environment, in_container, sources_on_host
from hpcai500.launch.slurm.site import (
    ContainerTable,
    MpiTable,
    Site,
    find_site,
    load_site,
    parse_site,
    seconds,
    shipped_sites,
    sites_folder,
)
from hpcai500.recipe import shipped_recipes
from hpcai500.toml_source import Source

EXAMPLE = sites_folder() / "example.toml"


def tables() -> dict[str, type[BaseModel]]:
    kinds = {name: field.annotation for name, field in Site.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def site(text: str) -> Site:
    return parse_site(Source("my.toml", text))


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, kind in tables().items() for key in kind.model_fields]
)
def test_the_example_explains_every_field(table: str, key: str) -> None:
    text = EXAMPLE.read_text()
    body = re.split(r"^\[", text.partition(f"\n[{table}]")[2], flags=re.MULTILINE)[0]
    line = re.search(rf"^{key} = .*$", body, re.MULTILINE)
    assert line, f"[{table}] {key} is not in {EXAMPLE}"
    comment = line.group().partition("# ")[2]
    assert len(comment) > 15
    default = tables()[table].model_fields[key].get_default(call_default_factory=True)
    words = body[line.start() :].partition("\n\n")[0]
    assert "default" in words
    if isinstance(default, int) and not isinstance(default, bool) and default:
        assert f"default {default}" in words


@pytest.mark.parametrize(
    "path", [sites_folder() / f"{name}.toml" for name in shipped_sites()], ids=lambda path: path.stem
)
def test_every_site_file_that_is_shipped_loads(path: Path) -> None:
    assert load_site(path.stem) == load_site(str(path))


def test_a_site_file_is_no_recipe_and_no_machine_file_and_may_be_empty() -> None:
    assert shipped_recipes()
    assert not [name for name in shipped_recipes() if name.startswith("sites")]
    with pytest.raises(UsageError, match=r"v100-64.toml: a machine file .*roofline --machine.*slurm example > "):
        load_site("v100-64")
    assert site("") == Site()


def test_an_unknown_site_is_told_which_are_known() -> None:
    with pytest.raises(UsageError, match=r"--site nowhere: no such file; known are example, local; to write one"):
        find_site("nowhere")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[slurm]\npartitoin = "x"', r"my.toml:2: \[slurm\] partitoin: unknown key; did you mean partition\? allowed:"),
        ("[slurmm]\n", r"my.toml:1: slurmm: unknown table or key; did you mean slurm\?"),
        ('[slurm]\npartition = "a b"', r"my.toml:2: \[slurm\] partition: expected one word"),
        ('[slurm]\ntime_limit = "4h"', r"my.toml:2: \[slurm\] time_limit: expected a time of Slurm, as in"),
        ("[slurm]\ntime_limit = 04:00:00", r"my.toml:2: \[slurm\] time_limit: expected a valid string"),
        ('[slurm]\ntime_limit = "5"', r"my.toml:1: slurm: warning_seconds is 300, but time_limit 5 is 300 s"),
        ('[slurm]\nextra = ["a\\n#SBATCH b"]', r"my.toml:2: \[slurm\] extra.0: expected options on one line"),
        ('[slurm]\nextra = ["--a\\nrm"]', r"my.toml:2: \[slurm\] extra.0: expected options on one line"),
        ("[node]\ntasks = 0", r"my.toml:2: \[node\] tasks: expected greater than or equal to 1, got 0"),
        ('[node]\ntasks = "4"', r"my.toml:2: \[node\] tasks: expected a valid integer, got '4'"),
        ('[launcher]\nprogram = "ibrun"', r"my.toml:2: \[launcher\] program: expected 'srun' or 'mpirun', got 'ibrun'"),
        ('[container]\ncommand = "docker"', r"my.toml:1: container: command: expected apptainer.* got docker"),
        ('[container]\nimage = "hpcai500.sif"', r"my.toml:2: \[container\] image: expected an absolute path"),
        ('[container]\nflags = ["--cleanenv"]', r"my.toml:1: container: flags: --cleanenv hides the launcher's"),
        ('[container]\nflags = ["--nv --contain"]',
         r'flags.0: .--nv --contain. would be one word: write "--nv", "--contain"'),
        ('[container]\nflags = ["--env A=B"]', 'write "--env", "A=B": each flag and each value is a string'),
        ('[container]\nbinds = ["/a,/b"]', r"my.toml:2: \[container\] binds.0: expected one \"/source\""),
        ('[container]\nbinds = ["data"]', r"my.toml:2: \[container\] binds.0: expected an absolute path"),
        ('[mpi]\nmodel = "bind"', r"my.toml:1: mpi: folder: model = \"bind\" needs the folder"),
        ('[mpi]\nfolder = "/opt/mpi"', r"my.toml:1: mpi: folder and library_folders are for model = \"bind\""),
        ("[environment]\nAPPTAINER_CLEANENV = '1'", r"\[environment\] APPTAINER_CLEANENV hides the launcher's"),
        ("[environment]\nSINGULARITY_CONTAINALL = '1'", r"\[environment\] SINGULARITY_CONTAINALL hides the launcher's"),
        ('[environment]\n"A B" = "c"', r"\[environment\] 'A B' is not a name of a variable"),
        ("[environment]\nA = 1", r"my.toml:2: \[environment\] A: expected a valid string, got 1"),
        ('[environment]\nA = "b\\nc"', r"my.toml:2: \[environment\] A: expected one line"),
        ("x y", "my.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_line_and_key_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        site(text)


@pytest.mark.parametrize("flag", ["-e", "-ce", "-C", "-pC", "-e=true", "--cleanenv=true", "--containall", "--compat"])
def test_a_flag_that_hides_the_launchers_variables_is_refused_however_it_is_written(flag: str) -> None:
    said = rf"flags: {flag} hides the launcher's variables from the ranks.* leave it out"
    with pytest.raises(UsageError, match=said):
        site(f'[container]\nflags = ["--nv", "{flag}"]')


def test_flags_that_only_look_like_it_and_values_with_spaces_are_taken() -> None:
    flags = ("--nv", "-c", "--contain", "-B/data/eC", "-pW/Ce", "--env", "A=B C", "--env=E=-e C", "--env-file=/e")
    assert site(f"[container]\nflags = {list(flags)}").container.flags == flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 1800), ("10:30", 630), ("04:00:00", 14400), ("2-12", 216000), ("1-00:30", 88200), ("1-00:00:01", 86401),
     ("UNLIMITED", None)],
)  # fmt: skip
def test_times_are_those_of_slurm(text: str, expected: int | None) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "1:2:3:4", "-5", "1-", "½"])
def test_what_is_no_time_of_slurm_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        seconds(text)


def test_the_site_file_of_the_guide_is_one() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "site-guide.md").read_text()
    block = re.search(r"\n\n(    \[slurm\]\n.*?)\n\n(?! )", guide, re.DOTALL)
    assert block
    assert site(textwrap.dedent(block.group(1))).node.gpus == 4


# --- the words that run a command in the image, whole


IMAGE = ContainerTable(image="/apps/hpcai500.sif")
GPU = ContainerTable(command="singularity", image="/my apps/h.sif", flags=("--nv", "--contain"), binds=("/scratch:/s",))
NONE = ContainerTable(command="none")
HOSTS_MPI = MpiTable(model="bind", folder="/opt/openmpi", library_folders=("/opt/ucx/lib",))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (in_container(IMAGE, ["hpcai500", "ic"]),
         "apptainer exec --bind /apps/hpcai500.sif:/image.sif:ro /apps/hpcai500.sif hpcai500 ic"),
        (in_container(GPU, ["hpcai500", "ic"], binds=["/data"], folder="/home/me"),
         "singularity exec --nv --contain --bind /scratch:/s --bind '/my apps/h.sif:/image.sif:ro' --bind /data "
         "--pwd /home/me '/my apps/h.sif' hpcai500 ic"),
        (in_container(IMAGE, ["hpcai500"], mpi=HOSTS_MPI),
         "apptainer exec --bind /apps/hpcai500.sif:/image.sif:ro --bind /opt/openmpi:/opt/openmpi:ro "
         "--bind /opt/ucx/lib:/opt/ucx/lib:ro /apps/hpcai500.sif hpcai500"),
        (in_container(ContainerTable(image="/sandbox"), ["x"]), "apptainer exec /sandbox x"),
        (in_container(NONE, ["hpcai500", "ic"], binds=["/data"], mpi=HOSTS_MPI), "hpcai500 ic"),
    ],
    ids=["an image", "binds, flags and folder", "the host's MPI", "a folder as image", "no container"],
)  # fmt: skip
def test_a_command_in_a_container_has_these_words(words: list[str], expected: str) -> None:
    assert shlex.join(words) == expected


def test_the_hosts_mpi_comes_first_where_it_is_bound() -> None:
    assert container_environment(IMAGE, HOSTS_MPI) == {
        "APPTAINERENV_LD_LIBRARY_PATH": "/opt/openmpi/lib:/opt/ucx/lib",
        "APPTAINERENV_OPAL_PREFIX": "/opt/openmpi",
    }
    assert next(iter(container_environment(GPU, HOSTS_MPI))) == "SINGULARITYENV_LD_LIBRARY_PATH"
    assert container_environment(IMAGE, MpiTable()) == container_environment(NONE, HOSTS_MPI) == {}


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
