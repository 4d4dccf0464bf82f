"""Site files: all that differs from one cluster to the next. `recipes/sites/example.toml` explains every field."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hpcai500.errors import UsageError
from hpcai500.files import why_not
from hpcai500.machine import is_machine, shipped_machines
from hpcai500.recipe import recipes_folder
from hpcai500.system.container import find_container
from hpcai500.toml_source import Source, explain, parse_tables, read_source

NO_CONTAINER = "none"

# ----------------------------------------------------------------------------------------------------
# Types of values; their errors say what was expected.


_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)")


def seconds(time_limit: str) -> int | None:
    """Seconds of a Slurm time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for no limit (`UNLIMITED`).

    Raises:
        ValueError: it is none of these.
    """
    if time_limit.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if re.fullmatch(r"\d+", time_limit, re.ASCII):
        parts = ["0", "0", time_limit, "0"]
    elif match := _DAYS.fullmatch(time_limit):
        parts = [*match.groups(default="0")]
    elif match := _CLOCK.fullmatch(time_limit):
        parts = ["0", *match.groups(default="0")]
    else:
        raise ValueError(f'expected a time of Slurm, as in "04:00:00" or "2-12:00:00", got {time_limit!r}')
    days, hours, minutes, rest = map(int, parts)
    if days + hours + minutes + rest == 0:
        raise ValueError(f'expected a time above zero, as in "04:00:00", got {time_limit!r}')
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _time_limit(text: str) -> str:
    seconds(text)
    return text


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"expected {expected}, got {text!r}")
        return text

    return AfterValidator(check)


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"expected one line of printable characters, got {text!r}")
    return text


def _absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"expected an absolute path, got {text!r}")
    return _line(text)


def _bind(text: str) -> str:
    if "," in text or not 1 <= len(_absolute(text).split(":")) <= 3 or not text:
        raise ValueError(f'expected one "/source", "/source:/target" or "/source:/target:ro", got {text!r}')
    return text


def _flag(text: str) -> str:
    """Apptainer gets it as one word; a value after `=` may have spaces."""
    option, _, rest = _line(text).partition(" ")
    if option.startswith("-") and rest and "=" not in option:
        raise ValueError(
            f'{text!r} would be one word: write "{option}", "{rest.strip()}": each flag and each value is a string'
        )
    return text


Word = Annotated[str, _matching(r"[\w.,:@%+=/-]*", "one word of letters, digits and . , : @ % + = / - _")]
Option = Annotated[str, _matching(r"--?[a-zA-Z][^\n]*", 'options on one line, as in "--constraint=a100"')]
Line = Annotated[str, AfterValidator(_line)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
Flag = Annotated[str, AfterValidator(_flag)]
Bind = Annotated[str, AfterValidator(_bind)]
TimeLimit = Annotated[str, AfterValidator(_time_limit)]
Count = Annotated[int, Field(ge=1, le=10**6)]
CountOrNone = Annotated[int, Field(ge=0, le=10**6)]
# TOML has arrays, not tuples; strict mode would refuse them.
_ARRAY = Field(default=(), strict=False)


# ----------------------------------------------------------------------------------------------------
# The tables of a site file.


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SlurmTable(_Table):
    """Options of sbatch, and what happens when the time is up."""

    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    time_limit: TimeLimit = "01:00:00"
    exclusive: bool = True
    extra: tuple[Option, ...] = _ARRAY
    warning_seconds: Annotated[int, Field(ge=0, le=65535)] = 300
    requeue: bool = True
    most_requeues: CountOrNone = 20
    restarts: CountOrNone = 0

    @model_validator(mode="after")
    def _warns_before_the_end(self) -> SlurmTable:
        limit = seconds(self.time_limit)
        if limit is not None and self.warning_seconds >= limit:
            raise ValueError(
                f"warning_seconds is {self.warning_seconds}, but time_limit {self.time_limit} is {limit} s: give less "
                "than that, or 0 for no warning"
            )
        return self


class NodeTable(_Table):
    """Ranks on a node, and what each of them gets."""

    tasks: Count = 1
    cores_per_task: CountOrNone = 0
    gpus: CountOrNone = 0
    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    gpu_type: Word = ""


class LauncherTable(_Table):
    """What starts the ranks."""

    program: Literal["srun", "mpirun"] = "srun"
    pmi: Literal["pmix", "pmi2", "none"] = "none"
    interface: Word = ""
    modules: tuple[Word, ...] = _ARRAY


# These take neither an image file nor Apptainer's options.
_OTHER_RUNTIMES = {"docker", "podman", "enroot", "sarus", "shifter", "ch-run"}
# Options that hide the launcher's variables from a rank, which then does not know its number: --compat implies
# --containall, which implies --cleanenv; so do -e, -C, and variables that Apptainer reads as options.
_LOSING_OPTIONS = ("cleanenv", "containall", "compat")
_LOSING_VARIABLES = {
    f"{runtime}_{option}".upper() for runtime in ("apptainer", "singularity") for option in _LOSING_OPTIONS
}


def _loses_variables(flag: str) -> bool:
    if flag.startswith("--"):
        return flag[2:].partition("=")[0] in _LOSING_OPTIONS
    # What follows one of B, H, S, W, o in a word is its value: -B/data/eC.
    return re.match("-[^=BHSWoeC]*[eC]", flag) is not None


class ContainerTable(_Table):
    """What each rank runs in."""

    command: Annotated[str, Field(min_length=1), AfterValidator(_line)] = "apptainer"
    image: AbsolutePath = ""
    flags: tuple[Flag, ...] = _ARRAY
    binds: tuple[Bind, ...] = _ARRAY

    @model_validator(mode="after")
    def _can_hold_ranks(self) -> ContainerTable:
        if Path(self.command).name in _OTHER_RUNTIMES:
            raise ValueError(
                f"command: expected apptainer, singularity, a path to one of them, or none, got {self.command}"
            )
        if lost := next(filter(_loses_variables, self.flags), None):
            raise ValueError(
                f"flags: {lost} hides the launcher's variables from the ranks, so that each would be a separate run: "
                "leave it out (--contain is fine)"
            )
        return self


class MpiTable(_Table):
    """Which MPI is used in the container."""

    model: Literal["hybrid", "bind"] = "hybrid"
    folder: AbsolutePath = ""
    library_folders: tuple[AbsolutePath, ...] = _ARRAY

    @model_validator(mode="after")
    def _has_what_it_binds(self) -> MpiTable:
        if self.model == "bind" and not self.folder:
            raise ValueError('folder: model = "bind" needs the folder of the MPI of the host: folder = "/opt/openmpi"')
        if self.model == "hybrid" and (self.folder or self.library_folders):
            raise ValueError('folder and library_folders are for model = "bind"; the container has its own MPI')
        return self


class Site(_Table):
    """One cluster. A field that its file leaves out has the value that works on most."""

    slurm: SlurmTable = SlurmTable()
    node: NodeTable = NodeTable()
    launcher: LauncherTable = LauncherTable()
    container: ContainerTable = ContainerTable()
    mpi: MpiTable = MpiTable()
    environment: Mapping[str, Line] = {}

    @model_validator(mode="after")
    def _can_be_exported(self) -> Site:
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"[environment] {name!r} is not a name of a variable: use letters, digits and _")
            if name in _LOSING_VARIABLES:
                raise ValueError(
                    f"[environment] {name} hides the launcher's variables from the ranks, so that each would be a "
                    "separate run: leave it out"
                )
        return self


# ----------------------------------------------------------------------------------------------------
# How a site file is found and read.


def sites_folder() -> Path:
    """The folder of the site files that come with hpcai500."""
    return recipes_folder() / "sites"


def find_site(name: str) -> Path:
    """The file of `name`: a path, or the short name of a site file that comes with hpcai500 (`local`).

    Raises:
        UsageError: neither exists.
    """
    for path in (Path(name), sites_folder() / f"{name}.toml"):
        if path.is_file():
            return path
    known = ", ".join(shipped_sites())
    unseen = ", or one that is not bound into this container (--bind FOLDER)" if find_container(os.environ) else ""
    raise UsageError(
        f"--site {name}: {why_not('file', Path(name))}{unseen}; known are {known}; to write one: "
        "hpcai500 slurm example > mysite.toml"
    )


def shipped_sites() -> list[str]:
    """Short names of the site files that come with hpcai500, without the machine files in the same folder."""
    return sorted({path.stem for path in sites_folder().glob("*.toml")} - set(shipped_machines()))


def load_site(name: str) -> Site:
    """The site of the file `name`.

    Raises:
        UsageError: with file, line, table, key and the allowed values, one line for each mistake.
    """
    return parse_site(read_source(find_site(name), UsageError))


def parse_site(source: Source) -> Site:
    """The site that `source` describes; raises as `load_site`."""
    tables = parse_tables(source, UsageError)
    if is_machine(tables):
        raise UsageError(
            f"{source.name}: a machine file (for hpcai500 roofline --machine), not a site file, which says how jobs "
            "are started; to write one: hpcai500 slurm example > mysite.toml"
        )
    try:
        return Site.model_validate(tables)
    except ValidationError as error:
        raise UsageError(*explain(Site, source, error)) from error
