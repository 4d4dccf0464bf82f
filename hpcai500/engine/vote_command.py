"""Counts the votes of an ensemble's members, from their records, without a GPU and without their data.

`hpcai500 ensemble collect` starts it with `job_options.VoteOptions`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.engine.measurement import exit_code_of, load_torch
from hpcai500.errors import RecipeError, RunError
from hpcai500.files import scratch, write_atomically
from hpcai500.job_options import VoteOptions, read_options
from hpcai500.progress import track
from hpcai500.recipe import read_resolved


def main(arguments: Sequence[str] | None = None) -> int:
    """Vote; returns the exit code, 2 if a member is refused. Errors are one line on stderr."""

    def command() -> None:
        options = read_options(VoteOptions, arguments)
        recipe = read_resolved(options.recipe)
        if recipe.ensemble is None:
            raise RecipeError(f"{options.recipe}: has no table [ensemble], so there are no members to vote")
        with scratch(os.environ, options.result.parent):
            load_torch()
            from hpcai500.engine.vote import hold_vote, read_list

            def on_refused(number: int, reason: str) -> None:
                _write(options.refused, {"member": number, "reason": reason})

            members = read_list(options.records, options.recipe.parent)
            vote = hold_vote(recipe, members, track, on_refused)
        _write(options.result, vote)

    return exit_code_of(command)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        write_atomically(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; fix that, then run the command again") from error


if __name__ == "__main__":
    sys.exit(main())
