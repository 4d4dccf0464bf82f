"""Paths on the command line, touched before any command does: a dead mount would hang it for ever, without a word."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcai500.cli.running import report_runs
from hpcai500.cli.telling import tell
from hpcai500.errors import EnvironmentLacksError, HpcAi500Error
from hpcai500.placement import find_placement
from hpcai500.plugins.finding import TAKEN
from hpcai500.system.mounts import require_reachable

# `--data=/x`, `-o/x`, `--set table.key=/x`, `--power csv:/x,offset=1`.
_SEPARATORS = re.compile(r"[=:,]")


def refuse_dead_paths(arguments: Sequence[str]) -> int | None:
    """None where all that `arguments` may name answers; else say what does not, and return the exit code.

    A command whose stdout ends with a verdict, or is one JSON document, keeps to that.
    """
    try:
        require_reachable(_paths(arguments))
    except EnvironmentLacksError as error:
        return _refuse(error, arguments)
    return None


def _paths(arguments: Sequence[str]) -> Iterator[str]:
    """Every word that may be a path, beside the folders that every command uses.

    A word that is none names nothing, which answers at once. Help needs none of them. `doctor` is left out: a folder
    that is dead is a check of it that fails.
    """
    if "--help" in arguments or arguments[:1] in ([], ["version"]):
        return
    yield os.curdir
    if "doctor" in arguments[:1]:
        return
    yield from filter(None, map(os.environ.get, ("TMPDIR", "HOME", "XDG_CACHE_HOME")))
    for word in arguments:
        yield word
        yield from _SEPARATORS.split(word)
        if re.match(r"-[a-z].", word):
            yield word[2:]


def _refuse(error: EnvironmentLacksError, arguments: Sequence[str]) -> int:
    command, as_json = next(iter(arguments), ""), "--json" in arguments
    scores = command in ("ic", "ewa", "score") or command not in TAKEN or list(arguments[:2]) == ["campaign", "run"]
    if not (scores or command == "scale") or _is_follower():
        tell(error)
    elif scores:
        return report_runs(_runs_that_never_began(error), as_json)
    else:
        from hpcai500.results.scale_report import report_broken_scaling  # noqa: PLC0415 - keeps `--help` fast

        report = report_broken_scaling([], tell(error), error.exit_code)
        print(json.dumps(report.document()) if as_json else "\n".join(report.lines()))  # noqa: T201
    return error.exit_code


def _runs_that_never_began(error: HpcAi500Error) -> Iterator[tuple[Path, int]]:
    yield from ()
    raise error


def _is_follower() -> bool:
    """Whether another rank prints the result."""
    try:
        return find_placement(os.environ).rank > 0
    except HpcAi500Error:
        return False
