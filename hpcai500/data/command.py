"""The in-job half of `hpcai500 data`: `python -m hpcai500.data make|check|index|repack|stage WORKLOAD DIR …`.

Progress goes to stderr, the result to stdout: a table for people, or exactly one JSON document with --json.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from hpcai500.data import ewa_command, ic_command
from hpcai500.data.derived import MANIFEST, claim_folder, part_folder
from hpcai500.errors import DataError, ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.plugins import Found, function_of, installed_plugins
from hpcai500.streams import prepare_streams, say, show, tell

# ----------------------------------------------------------------------------------------------------
# `data make|check NAME` for the benchmark of a plug-in: the plug-in writes and reads, the rest is here.


class PluginCommand:
    """The commands of a plug-in's benchmark, as `hpcai500.data.ic_command` has them for its own."""

    def __init__(self, found: Found) -> None:
        self.NAME = found.name
        self.HELP = f"plug-in {found.package} {found.version}"
        self._found = found

    def add_make(self, parser: argparse.ArgumentParser) -> None:
        parser.description = f"Write the synthetic set of the {self._found.title}; one that is there is left alone."
        parser.add_argument("dir", metavar="DIR", type=Path, help="folder of the set; made when missing")
        parser.set_defaults(run=partial(_make, self._found))

    def add_check(self, parser: argparse.ArgumentParser) -> None:
        parser.description = f"Read all of a data set of the {self._found.title}, as that does it."
        parser.add_argument("dir", metavar="DIR", type=Path, help="folder of the set")
        parser.set_defaults(run=partial(_check, self._found))


def plugin_commands() -> Iterator[PluginCommand]:
    """One for each name that a plug-in has; a defect of a plug-in is reported when its command is run."""
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
    """Fill a new folder by `make(folder)` and rename it to `root` once it is whole; False where the set exists already.

    A set that was made with other parameters, or is not one of ours, is left alone.

    Raises:
        DataError: `root` is such a set.
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
            # An empty folder is replaced; one that another process has just made is not.
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
    """Report a programming error within a plug-in as a RunError that says what and where."""
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


# ----------------------------------------------------------------------------------------------------
# The commands, their parser and their exit codes.


# One line for each workload: a module with `NAME`, `HELP` and an `add_…(parser)` for each command that it has, which
# sets `run` on its parser.
WORKLOADS = (ic_command, ewa_command)
COMMANDS = {
    "make": "write a learnable synthetic set in the real format",
    "check": "read every file; count, fingerprint, find broken ones",
    "index": "say where decoding can begin within each file, so that a crop costs what it shows (ic)",
    "anchors": "fit a detector's anchors to the boxes of a set (ewa)",
    "repack": "rewrite a set so that it can be read faster; JPEG files (ic) have nothing to gain",
    "stage": "copy a set, or what a run reads of it, to a node's own storage; release it",
}

# Said after Ctrl-C, unless a command sets its own words.
_KEPT = "finished files are kept, none is half written; the same command goes on"
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_AGAIN_SECONDS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every expected error is one line on stderr."""
    prepare_streams()
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, ending)
    kept = _KEPT
    try:
        chosen, unknown = _parser().parse_known_args(arguments)
        if unknown:
            # The chosen command's own parser knows the flags that may have been meant.
            chosen.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        kept = getattr(chosen, "kept", kept)
        return int(chosen.run(chosen))
    except HpcAi500Error as error:
        if ending.asked:
            return _TERMINATED  # a worker that the same signal has killed was noticed first
        tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        say(f"interrupted: {kept}")
        return _INTERRUPTED
    except BrokenPipeError:
        # `hpcai500 data check … | head`: the reader has what it wants.
        sys.stderr.close()
        return ExitCode.RUN_FAILED


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with a suggestion, instead of a usage text and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}{self._suggestion(message)}; see `{self.prog} --help`")

    def _suggestion(self, message: str) -> str:
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        words = [word.split("=")[0].rstrip(":,") for word in message.split()]
        wrong = [word for word in words if word.startswith("--") and word not in known]
        close = [match for word in wrong for match in difflib.get_close_matches(word, known, 1)]
        return f" (did you mean {close[0]}?)" if close else ""


def _parser() -> _Parser:
    parser = _Parser(
        prog="hpcai500 data",
        allow_abbrev=False,
        description="Make, check, index, repack and stage the data sets that the benchmarks train on.",
        epilog="Example: hpcai500 data make ewa /tmp/weather && hpcai500 data check ewa /tmp/weather",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS), parser_class=_Parser)
    workloads: tuple[ModuleType | PluginCommand, ...] = (*WORKLOADS, *plugin_commands())
    for name, meaning in COMMANDS.items():
        command = commands.add_parser(name, allow_abbrev=False, help=meaning)
        kinds = command.add_subparsers(dest="workload", required=True, metavar="WORKLOAD", parser_class=_Parser)
        for workload in workloads:
            add = getattr(workload, f"add_{name}", None)
            if add is None:
                continue
            kind = kinds.add_parser(workload.NAME, allow_abbrev=False, help=workload.HELP)
            add(kind)
            kind.add_argument("--json", action="store_true", help="print one JSON document instead of text")
            kind.set_defaults(parser=kind)
    return parser


class _Ending:
    """Unwinds on Ctrl-C and on a scheduler's SIGTERM, so that pools end and temporary files go."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        sys.unraisablehook = _ask_again
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        raise SystemExit(_TERMINATED)


_RAISED_BY = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}


def _ask_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a destructor or a weak reference's callback, so the signal is sent once more."""
    if number := _RAISED_BY.get(dropped.exc_type):
        threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(dropped)
