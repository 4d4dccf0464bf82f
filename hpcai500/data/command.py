"""What `hpcai500 data` starts: `python -m hpcai500.data COMMAND BENCHMARK JSON`; the JSON holds the options.

Progress goes to stderr, the result to stdout: a table for people, or exactly one JSON document with --json.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hpcai500.data import ewa_command, ic_command
from hpcai500.data.climate.synthetic import SyntheticYears
from hpcai500.data.derived import MANIFEST, claim_folder, part_folder
from hpcai500.data.imagenet.synthetic import SyntheticSet
from hpcai500.data.stage_command import stage_set
from hpcai500.errors import DataError, ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.job_options import (
    AnchorsOptions,
    CheckYearsOptions,
    IndexOptions,
    MakeOptions,
    RepackOptions,
    SetOptions,
    StageOptions,
    read_options,
)
from hpcai500.plugins import Found, find_plugin, function_of
from hpcai500.streams import prepare_streams, say, show, tell

# ----------------------------------------------------------------------------------------------------
# `data make|check NAME` for the benchmark of a plug-in: the plug-in writes and reads, the rest is here.


def _make(found: Found, chosen: SetOptions) -> int:
    make = function_of(found.name, "make_data")
    parameters = {"benchmark": found.name, "package": found.package, "version": found.version}
    with _in_words(found, "make_data"):
        is_new = make_once(make, chosen.dir, parameters)
    sentence = (
        f"{chosen.dir}: {'made now' if is_new else 'there already'}, by the plug-in {found.package} {found.version}"
    )
    show({"dir": str(chosen.dir), "written": is_new} if chosen.as_json else sentence, indent=1)
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


def _check(found: Found, chosen: SetOptions) -> int:
    check = function_of(found.name, "check_data")
    with _in_words(found, "check_data"):
        facts = dict(check(chosen.dir) or {})
    lines = (f"{key:12} {value}" for key, value in facts.items())
    show(facts if chosen.as_json else [f"{chosen.dir}: every sample can be trained on", *lines], indent=1)
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
# The commands, and their exit codes.


# Of each command and benchmark, how its options are read, and what runs.
COMMANDS: dict[tuple[str, str], tuple[type, Callable[[Any], int]]] = {
    ("make", "ic"): (MakeOptions[SyntheticSet], ic_command.make),
    ("make", "ewa"): (MakeOptions[SyntheticYears], ewa_command.make),
    ("check", "ic"): (SetOptions, ic_command.check),
    ("check", "ewa"): (CheckYearsOptions, ewa_command.check),
    ("index", "ic"): (IndexOptions, ic_command.index),
    ("anchors", "ewa"): (AnchorsOptions, ewa_command.anchors),
    ("repack", "ewa"): (RepackOptions, ewa_command.repack),
    ("stage", "ic"): (StageOptions, partial(stage_set, "ic")),
    ("stage", "ewa"): (StageOptions, partial(stage_set, "ewa")),
}
_OF_PLUGINS = {"make": _make, "check": _check}

# Said after Ctrl-C.
_KEPT = "finished files are kept, none is half written; the same command goes on"
_KEPT_INDEX = "an index that was there is as it was; the same command begins anew"
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
    words = sys.argv[1:] if arguments is None else arguments
    try:
        kind, run = _chosen(*words[:2])
        return run(read_options(kind, words[2:]))
    except HpcAi500Error as error:
        if ending.asked:
            return _TERMINATED  # a worker that the same signal has killed was noticed first
        tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        say(f"interrupted: {_KEPT_INDEX if 'index' in words[:1] else _KEPT}")
        return _INTERRUPTED
    except BrokenPipeError:
        # `hpcai500 data check … | head`: the reader has what it wants.
        sys.stderr.close()
        return ExitCode.RUN_FAILED


def _chosen(command: str = "", benchmark: str = "") -> tuple[type, Callable[[Any], int]]:
    """The command of these words.

    Raises:
        UsageError: there is none, or its plug-in cannot be used.
    """
    if (command, benchmark) in COMMANDS:
        return COMMANDS[command, benchmark]
    found = find_plugin(benchmark)
    if found is None or command not in _OF_PLUGINS:
        raise UsageError(f"data {command} {benchmark}: no such command; `hpcai500 data` starts this program")
    return SetOptions, partial(_OF_PLUGINS[command], found)


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
