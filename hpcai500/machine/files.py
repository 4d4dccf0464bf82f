"""Machines as files: a TOML file that people write, or the JSON file that `hpcai500 micro` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcai500.errors import UsageError
from hpcai500.machine.description import Machine
from hpcai500.machine.measured import measured_machine
from hpcai500.recipe import recipes_folder
from hpcai500.toml_source import Source, explain, parse_tables, read_source

# Tables that only the other kind of file in recipes/sites has (launch/site.py); both have one named [node].
_OF_SITES = {"slurm", "launcher", "container", "mpi", "environment"}


def find_machine(name_or_path: str | Path) -> Path:
    """The file of a machine: a path, or the short name of one that comes with hpcai500 (`v100-64`).

    Raises:
        UsageError: neither exists.
    """
    for path in (Path(name_or_path), recipes_folder() / "sites" / f"{name_or_path}.toml"):
        if path.is_file():
            return path
    given = Path(name_or_path)
    what = (
        "no regular file, which a machine file is" if given.exists() and not given.is_dir() else "no such machine file"
    )
    raise UsageError(
        f"{name_or_path}: {what}; known are {', '.join(shipped_machines())}; measure this machine: "
        "hpcai500 micro -o micro.json"
    )


def shipped_machines() -> list[str]:
    """Short names of the machines that come with hpcai500; site files, which lie beside them, are none."""
    files = sorted((recipes_folder() / "sites").glob("*.toml"))
    return [path.stem for path in files if is_machine(parse_tables(read_source(path, UsageError), UsageError))]


def is_machine(tables: dict[str, Any]) -> bool:
    """Whether a TOML file's tables are meant to be a machine's, right or wrong: a site file has none of these."""
    return bool(tables.keys() & (Machine.model_fields.keys() - {"node"})) and not tables.keys() & _OF_SITES


def load_machine(name_or_path: str | Path) -> Machine:
    """The machine of a TOML file, of a shipped name, or of the JSON file that `hpcai500 micro -o FILE` wrote.

    Raises:
        UsageError: there is no such file, or it is something else; with file, line, key and what is allowed.
    """
    return machine_of(read_source(find_machine(name_or_path), UsageError))


def machine_of(source: Source) -> Machine:
    """The machine that the text of `source`, TOML or JSON, describes; raises as `load_machine`."""
    if source.name.endswith(".json") or source.text.lstrip().startswith("{"):
        return measured_machine(source.text, source.name)
    return parse_machine(source)


def parse_machine(source: Source) -> Machine:
    """The machine that the TOML text of `source` describes; raises as `load_machine`."""
    tables = parse_tables(source, UsageError)
    if tables.keys() & _OF_SITES:
        raise UsageError(
            f"{source.name}: a site file ([{sorted(tables.keys() & _OF_SITES)[0]}]), which says how jobs are started "
            "(hpcai500 slurm render --site); a machine file says what a machine can reach and is a file of its own: "
            f"{', '.join(shipped_machines())}, or docs/roofline.md"
        )
    try:
        return Machine.model_validate(tables)
    except ValidationError as error:
        raise UsageError(*explain(Machine, source, error)) from error
