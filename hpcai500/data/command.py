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
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import NoReturn

from hpcai500.data import ewa_command, ic_command
from hpcai500.data.plugin_command import PluginCommand, plugin_commands
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.streams import prepare_streams, say, tell

# One line a workload: a module with `NAME`, `HELP` and an `add_…(parser)` for each of the commands that it has; each
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

# What Ctrl-C leaves, unless a command sets its own words.
_KEPT = "finished files are kept, none is half written; the same command goes on"
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_AGAIN_SECONDS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every expected error is one line on stderr."""
    prepare_streams()
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending)
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
    """A parser whose mistakes are one line with a suggestion, instead of a usage text and exit code 2."""

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
            kind.set_defaults(parser=kind)
    return parser


class _Ending:
    """A scheduler's SIGTERM: unwinds, so that pools end and temporary files go."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, signal_number: int, frame: FrameType | None) -> NoReturn:
        self.asked = True
        sys.unraisablehook = _ask_again
        raise SystemExit(_TERMINATED)


def _ask_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a destructor or in a weak reference's callback: the signal comes once more."""
    if isinstance(dropped.exc_value, SystemExit):
        threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(dropped)
