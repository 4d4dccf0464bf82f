"""`hpcai500 data make|check NAME` for the benchmark of a plug-in: the plug-in writes and reads, we keep the order."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hpcai500.data.part_folder import part_folder
from hpcai500.data.synthetic_manifest import MANIFEST, claim_folder
from hpcai500.errors import DataError, ExitCode, HpcAi500Error, RunError
from hpcai500.plugins.finding import Found, installed_plugins
from hpcai500.plugins.loading import function_of
from hpcai500.streams import show


class PluginCommand:
    """What `hpcai500.data.ic_command` is for its benchmark."""

    def __init__(self, found: Found) -> None:
        self.NAME = found.name
        self.HELP = f"plug-in {found.package} {found.version}"
        self._found = found

    def add_make(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `data make NAME`."""
        parser.description = f"Write the synthetic set of the {self._found.title}; one that is there is left alone."
        parser.add_argument("dir", metavar="DIR", type=Path, help="folder of the set; made when missing")
        self._add_json(parser)
        parser.set_defaults(run=partial(_make, self._found))

    def add_check(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `data check NAME`."""
        parser.description = f"Read all of a data set of the {self._found.title}, as that does it."
        parser.add_argument("dir", metavar="DIR", type=Path, help="folder of the set")
        self._add_json(parser)
        parser.set_defaults(run=partial(_check, self._found))

    def _add_json(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def plugin_commands() -> Iterator[PluginCommand]:
    """One for each name that a plug-in has; what is wrong with a plug-in is told when its command is run."""
    named = {found.name: found for found in reversed(installed_plugins())}
    return (PluginCommand(found) for _, found in sorted(named.items()))


def _make(found: Found, chosen: argparse.Namespace) -> int:
    make = function_of(found.name, "make_data")
    parameters = {"benchmark": found.name, "package": found.package, "version": found.version}
    with _in_words(found, "make_data"):
        is_new = make_once(make, chosen.dir, parameters)
    sentence = (
        f"{chosen.dir}: {'made now' if is_new else 'there already'}, by the plug-in {found.package} {found.version}"
    )
    show({"dir": str(chosen.dir), "written": is_new} if chosen.json else sentence, indent=1)
    return ExitCode.PASS


def make_once(make: Any, root: Path, parameters: Mapping[str, Any]) -> bool:
    """Have `make(folder)` fill a new folder, and put that in place of `root`, whole; returns False where it is there.

    A set that was made with other parameters, or is not one of ours, is left alone.

    Raises:
        DataError: it is such a one.
        OSError: it cannot be written.
    """
    if _is_there(root, parameters):
        return False
    root.absolute().parent.mkdir(parents=True, exist_ok=True)
    with part_folder(root.absolute().parent) as scratch:
        part = scratch / "set"
        part.mkdir()
        make(part)
        if not any(part.iterdir()):
            raise DataError(f"{parameters['package']}: its make_data has written nothing into the folder that it got")
        claim_folder(part, parameters, [])
        try:
            # An empty folder gives way; one that another process has just made does not.
            part.replace(root)
        except OSError:
            if not _is_there(root, parameters):
                raise
            return False
    return True


def _is_there(root: Path, parameters: Mapping[str, Any]) -> bool:
    if not (root.is_dir() and any(root.iterdir())):
        return False
    claim_folder(root, parameters, [] if (root / MANIFEST).exists() else ["files"])
    return True


def _check(found: Found, chosen: argparse.Namespace) -> int:
    check = function_of(found.name, "check_data")
    with _in_words(found, "check_data"):
        facts = dict(check(chosen.dir) or {})
    lines = (f"{key:12} {value}" for key, value in facts.items())
    show(facts if chosen.json else [f"{chosen.dir}: every sample can be trained on", *lines], indent=1)
    return ExitCode.PASS


@contextmanager
def _in_words(found: Found, function: str) -> Iterator[None]:
    """A mistake within a plug-in is told by what, and where it is."""
    try:
        yield
    except (HpcAi500Error, OSError):
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise RunError(
            f"{found.name}: {function} of the plug-in {found.package} {found.version} failed at {at.filename}:"
            f"{at.lineno}: {type(error).__name__}: {error}"
        ) from error
