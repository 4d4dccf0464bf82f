"""Counts the votes of an ensemble's members, from their records, without a GPU and without their data.

`python -m hpcai500.engine.vote_command --recipe FILE --records LIST -o vote.json`, as `hpcai500 ensemble collect` has
it. LIST has a line for each member: its number, a tab, the folder of its record, relative to that of the recipe.
With `--refused FILE`, the first member that cannot vote is written there, {member, reason}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.engine.measurement import CommandParser, exit_code_of, let_threads_spin
from hpcai500.errors import RecipeError, RunError
from hpcai500.files import scratch, write_atomically
from hpcai500.layers import Recipe
from hpcai500.progress import track
from hpcai500.recipe import parse_resolved


def main(arguments: Sequence[str] | None = None) -> int:
    """Vote; returns the exit code: 2 for a member that is refused. Errors are one line on stderr."""

    def command() -> None:
        options = _options(arguments)
        recipe = _read_recipe(options.recipe)
        with scratch(os.environ, options.out.parent):
            let_threads_spin()
            from hpcai500.engine.vote import hold_vote, read_list  # torch after OpenMP's variables

            def on_refused(number: int, reason: str) -> None:
                if options.refused is not None:
                    _write(options.refused, {"member": number, "reason": reason})

            members = read_list(options.records, options.recipe.parent)
            vote = hold_vote(recipe, members, track, on_refused)
        _write(options.out, vote)

    return exit_code_of(command)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        write_atomically(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; mend it, then vote again") from error


def _read_recipe(path: Path) -> Recipe:
    try:
        recipe = parse_resolved(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not a text in UTF-8: {error.reason}") from error
    if recipe.ensemble is None:
        raise RecipeError(f"{path}: of one model: without a table [ensemble] nobody votes")
    return recipe


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(prog="python -m hpcai500.engine.vote_command", description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", type=Path, required=True, help="recipe.toml of the ensemble, or of any member")
    parser.add_argument(
        "--records", type=Path, required=True, help="list: a member's number, a tab, its record; a line"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="file that the vote is written to")
    parser.add_argument("--refused", type=Path, help="file that the first member that cannot vote is written to")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
