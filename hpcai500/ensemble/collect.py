"""Collects an ensemble: who counts and who is missing, their vote, and what they amount to. Again, it gives the same.

Members are read one after the other, so that ten thousand take no more memory than their rows of the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.ensemble.examining import Member, Missing, examine, of_other_data
from hpcai500.ensemble.figures import draw_ensemble
from hpcai500.ensemble.reading import DONE, RESULT, VOTE, Ensemble, read_ensemble
from hpcai500.ensemble.result import EnsembleResult, derive_ensemble
from hpcai500.ensemble.voting import Voting, hold_vote, run_vote
from hpcai500.ensemble.writing import append
from hpcai500.errors import RecordError
from hpcai500.files import write_atomically
from hpcai500.progress import Tracker, silent
from hpcai500.results.figure_files import write_figures
from hpcai500.rulebook import rulebook


@dataclass(frozen=True)
class CollectOrder:
    """What the user asked for.

    Attributes:
        folder: of the ensemble.
        accept_incomplete: whether those who are there vote although some are missing.
    """

    folder: Path
    accept_incomplete: bool = False


@dataclass(frozen=True)
class Collected:
    """An ensemble that was collected.

    Attributes:
        ensemble: as it is now.
        result: what it amounts to.
        figures: pictures that were drawn.
    """

    ensemble: Ensemble
    result: EnsembleResult
    figures: Sequence[Path] = ()


def collect_ensemble(order: CollectOrder, tracker: Tracker = silent, voting: Voting = run_vote) -> Collected:
    """Collect what is there, and write vote.json, result.json, pictures, the event `collect` and DONE.

    Where members are missing and that is not accepted, nobody votes: result.json says who is missing and why.

    Raises:
        HpcAi500Error: there is no ensemble, the vote failed, or the folder cannot be written.
    """
    ensemble = read_ensemble(order.folder)
    rules = rulebook(str(ensemble.start["edition"]), str(ensemble.start["benchmark"]))
    members, missing = read_members(ensemble, rules, tracker)
    # What an earlier collection said does not hold while this one is going on.
    for name in (DONE, RESULT, VOTE):
        (ensemble.path / name).unlink(missing_ok=True)
    is_held = bool(members) and (order.accept_incomplete or not missing)
    vote = hold_vote(ensemble, members, voting) if is_held else None
    result = derive_ensemble(ensemble, members, missing, vote, rules)
    content = (json.dumps(result.as_json(), indent=1) + "\n").encode()
    told = {
        "status": "incomplete" if missing else "complete",
        "missing": [one.number for one in missing],
        "heads": {str(one.number): one.head for one in members},
        "vote_sha256": vote.sha256 if vote else None,
        "result_sha256": hashlib.sha256(content).hexdigest(),
    }
    try:
        write_atomically(ensemble.path / RESULT, content)
        ensemble = _told(ensemble, told)
        figures = write_figures(ensemble.path, draw_ensemble(result)) if members else []
        if vote:
            write_atomically(ensemble.path / DONE, f"{ensemble.head}\n".encode())
    except OSError as error:
        raise RecordError(f"{error.filename or ensemble.path}: cannot be written: {error.strerror}") from error
    return Collected(ensemble, result, figures)


def read_members(
    ensemble: Ensemble, rules: Mapping[str, Any], tracker: Tracker = silent
) -> tuple[list[Member], list[Missing]]:
    """Who counts, and who is missing, each by number."""
    members: list[Member] = []
    missing: list[Missing] = []
    with tracker(ensemble.shape.members, "collecting", "members") as progress:
        for number in ensemble.members:
            found = examine(ensemble, number, rules)
            if isinstance(found, Member):
                members.append(found)
            else:
                missing.append(found)
            progress.advance()
    strangers = of_other_data(members)
    numbers = {one.number for one in strangers}
    members = [one for one in members if one.number not in numbers]
    return members, sorted([*missing, *strangers], key=lambda one: one.number)


def _told(ensemble: Ensemble, told: Mapping[str, Any]) -> Ensemble:
    """The ensemble with the event `collect` at the end of its journal: once for one state of its members."""
    last = ensemble.events[-1]
    return ensemble if last["key"] == "collect" and last["value"] == told else append(ensemble, "collect", told)
