"""Commands of `hpcai500 data`, started by `python -m hpcai500.data COMMAND BENCHMARK JSON`; JSON holds the options.

Progress goes to stderr, the result to stdout: a table for people, or exactly one JSON document with --json.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from inspect import getfile
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hpcai500.data import ewa_command, ic_command
from hpcai500.data.climate.synthetic import SyntheticYears
from hpcai500.data.derived import MANIFEST, claim_folder, part_folder
from hpcai500.data.imagenet.synthetic import SyntheticSet
from hpcai500.data.stage_command import stage_set
from hpcai500.errors import DataError, ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.files import as_utf8
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
from hpcai500.streams import prepare_streams, print_error, say, show, with_result_printed

# ----------------------------------------------------------------------------------------------------
# `data make|check NAME` for the benchmark of a plug-in.


# Where a set's manifest has the hash of the file of code that made it.
_CODE = "code_sha256"


def _make(found: Found, chosen: SetOptions) -> int:
    make = function_of(found.name, "make_data")
    parameters = {"benchmark": found.name, "package": found.package, "version": found.version}
    file = Path(getfile(sys.modules[make.__module__]))
    code = {_CODE: sha256(file.read_bytes()).hexdigest()}
    try:
        with _named_errors(found, "make_data"):
            is_new = make_once(make, chosen.dir, parameters, code)
    except OSError as error:
        raise DataError(
            f"cannot write the synthetic set: {error.filename or chosen.dir}: {error.strerror or error}; choose a "
            "folder with space that you may write to"
        ) from error
    made_by = claim_folder(chosen.dir, parameters, [], code).get(_CODE)
    if made_by not in (None, code[_CODE]):
        say(
            f"warning: {chosen.dir}: made before {file} was changed: if the set would differ now, remove the folder, "
            "and it is made anew"
        )
    sentence = (
        f"{chosen.dir}: {'written' if is_new else 'exists already'}, by the plug-in {found.package} {found.version}"
    )
    show({"dir": as_utf8(chosen.dir), "written": is_new} if chosen.as_json else sentence, indent=1)
    return ExitCode.PASS


def make_once(make: Any, root: Path, parameters: Mapping[str, Any], notes: Mapping[str, Any]) -> bool:
    """Fill a new folder by `make(folder)` and rename it to `root` once it is complete; False if the set exists already.

    A set with other parameters, or that hpcai500 did not make, is left alone. `notes` as in `claim_folder`.

    Raises:
        DataError: `root` is such a set.
        OSError: it cannot be written.
    """
    if _exists(root, parameters, notes):
        return False
    root.absolute().parent.mkdir(parents=True, exist_ok=True)
    with part_folder(root.absolute().parent) as scratch:
        part = scratch / "set"
        part.mkdir()
        make(part)
        if not any(part.iterdir()):
            raise DataError(
                f"{parameters['package']}: make_data wrote no files; write the set into the folder that it is given"
            )
        claim_folder(part, parameters, [], notes)
        try:
            # This replaces an empty folder, but not a set that another process has just made.
            part.replace(root)
        except OSError:
            if not _exists(root, parameters, notes):
                raise
            return False
    return True


def _exists(root: Path, parameters: Mapping[str, Any], notes: Mapping[str, Any]) -> bool:
    if root.exists() and not root.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(root))
    if not (root.is_dir() and any(root.iterdir())):
        return False
    claim_folder(root, parameters, [] if (root / MANIFEST).exists() else ["files"], notes)
    return True


def _check(found: Found, chosen: SetOptions) -> int:
    check = function_of(found.name, "check_data")
    try:
        with _named_errors(found, "check_data"):
            facts = dict(check(chosen.dir) or {})
    except OSError as error:
        raise DataError(f"{error.filename or chosen.dir}: {error.strerror or error}: not a data set to read") from error
    head = f"{chosen.dir}: found to be intact by the plug-in {found.package} {found.version}"
    show(facts if chosen.as_json else [head, *(f"{key:12} {value}" for key, value in facts.items())], indent=1)
    return ExitCode.PASS


@contextmanager
def _named_errors(found: Found, function: str) -> Iterator[None]:
    """Report a programming error in a plug-in as a RunError with its place."""
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


# The options and the function of each command and benchmark.
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

# Messages after Ctrl-C.
_KEPT = "finished files are kept, none is half written; run the same command again to continue"
_KEPT_INDEX = "an existing index is unchanged; run the same command again to start over"
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_AGAIN_SECONDS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every expected error is one line on stderr."""
    prepare_streams()
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending)
    signal.signal(signal.SIGALRM, ending)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, ending)
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        kind, run = _chosen(*argv[:2])
        return with_result_printed(run(read_options(kind, argv[2:])))
    except HpcAi500Error as error:
        if ending.terminated:
            return _TERMINATED  # the error is that of a worker killed by the same signal
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        say(f"interrupted: {_KEPT_INDEX if 'index' in argv[:1] else _KEPT}")
        return _INTERRUPTED


def _chosen(command: str = "", benchmark: str = "") -> tuple[type, Callable[[Any], int]]:
    """The options type and the function of a command.

    Raises:
        UsageError: no such command, or its plug-in cannot be used.
    """
    if (command, benchmark) in COMMANDS:
        return COMMANDS[command, benchmark]
    found = find_plugin(benchmark)
    if found is None or command not in _OF_PLUGINS:
        raise UsageError(f"data {command} {benchmark}: no such command; use `hpcai500 data`, which starts this program")
    return SetOptions, partial(_OF_PLUGINS[command], found)


class _Ending:
    """Raises on Ctrl-C and on a scheduler's SIGTERM, so that pools end and temporary files are removed."""

    def __init__(self) -> None:
        self.terminated = False

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = _raise_again
        self.terminated |= number == signal.SIGTERM
        if not self.terminated:
            raise KeyboardInterrupt
        raise SystemExit(_TERMINATED)


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Let the handler raise once more: Python drops exceptions of a destructor or a weak reference's callback."""
    if dropped.exc_type not in (KeyboardInterrupt, SystemExit):
        sys.__unraisablehook__(dropped)
        return
    seconds = _AGAIN_SECONDS
    while True:
        try:
            # More than once: a first one might come just before a call that waits, which would not look at it.
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
            return
        except (KeyboardInterrupt, SystemExit):
            # It came while this function ran, and would be dropped, too.
            seconds *= 2
