"""Collects an ensemble: who counts and who is missing, their vote, and what they amount to. Again, it gives the same.

Members are read one after the other, so that ten thousand take no more memory than their rows of the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.campaign.outcome import ODD
from hpcai500.ensemble.collecting import CannotWriteError, alone, forget, written
from hpcai500.ensemble.examining import Member, Missing, counted_before, examine, of_other_data, refused_by_vote
from hpcai500.ensemble.figures import PICTURES, draw_ensemble
from hpcai500.ensemble.reading import DONE, RESULT, Ensemble, read_ensemble
from hpcai500.ensemble.result import EnsembleResult, derive_ensemble
from hpcai500.ensemble.voting import RefusedError, Vote, Voting, hold_vote, run_vote
from hpcai500.ensemble.writing import append
from hpcai500.files import write_atomically
from hpcai500.progress import Tracker, silent
from hpcai500.rulebook import rulebook
from hpcai500.streams import say


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
        missing: who does not count, why, and what helps.
    """

    ensemble: Ensemble
    result: EnsembleResult
    figures: Sequence[Path] = ()
    missing: Sequence[Missing] = ()


def collect_ensemble(
    order: CollectOrder, tracker: Tracker = silent, voting: Voting = run_vote, say: Callable[[str], None] = say
) -> Collected:
    """Collect what is there, and write vote.json, result.json, pictures, the event `collect` and DONE.

    Where members are missing and that is not accepted, nobody votes: result.json says who is missing and why. Where
    somebody else collects, his end is waited for. Where nothing can be written, what was collected before is given if
    it still holds.

    Args:
        order: what the user asked for.
        tracker: shows how many members were read.
        voting: has the members vote.
        say: is told what is waited for.

    Raises:
        HpcAi500Error: there is no ensemble, the vote failed, or the folder cannot be written.
    """
    read_ensemble(order.folder)
    try:
        with alone(order.folder, say):
            return _collect(order, tracker, voting)
    except CannotWriteError as error:
        if (before := _collected_before(order.folder)) is None:
            raise
        say(f"{error}; this is what was collected before, and it still holds")
        return before


def _collect(order: CollectOrder, tracker: Tracker, voting: Voting) -> Collected:
    ensemble = read_ensemble(order.folder)
    rules = rulebook(str(ensemble.start["edition"]), str(ensemble.start["benchmark"]))
    with written(ensemble.path):
        forget(ensemble.path)
    vote, members, missing = _voted(ensemble, read_members(ensemble, rules, tracker), order, voting)
    result = derive_ensemble(ensemble, members, missing, vote, rules)
    content = (json.dumps(result.as_json(), indent=1) + "\n").encode()
    told = {
        "status": "incomplete" if missing else "complete",
        "missing": [one.number for one in missing],
        "heads": {str(one.number): one.head for one in members},
        "vote_sha256": vote.sha256 if vote else None,
        "result_sha256": hashlib.sha256(content).hexdigest(),
    }
    pictures = draw_ensemble(result) if members else {}
    with written(ensemble.path):
        write_atomically(ensemble.path / RESULT, content)
        ensemble = _told(ensemble, told)
        for name, picture in pictures.items():
            write_atomically(ensemble.path / name, picture)
        if vote:
            write_atomically(ensemble.path / DONE, f"{ensemble.head}\n".encode())
    return Collected(ensemble, result, [ensemble.path / name for name in pictures], missing)


def _voted(
    ensemble: Ensemble, found: tuple[list[Member], list[Missing]], order: CollectOrder, voting: Voting
) -> tuple[Vote | None, list[Member], list[Missing]]:
    """The vote, if one is held, who counts in it, and who is missing: also whom the vote refuses."""
    members, missing = found
    while members and (order.accept_incomplete or not missing):
        try:
            return hold_vote(ensemble, members, voting), members, missing
        except RefusedError as error:
            refused = [one for one in members if one.number == error.member]
            if not refused:
                raise
            members = [one for one in members if one.number != error.member]
            missing = sorted([*missing, refused_by_vote(refused[0], error.reason)], key=lambda one: one.number)
    return None, members, missing


def _collected_before(folder: Path) -> Collected | None:
    """What was collected in `folder`, if nothing was written into its journal since."""
    ensemble = read_ensemble(folder)
    last = ensemble.events[-1]
    try:
        done, content = (folder / DONE).read_text(encoding="utf-8").strip(), (folder / RESULT).read_bytes()
        is_it = last["key"] == "collect" and last["value"]["result_sha256"] == hashlib.sha256(content).hexdigest()
        if done != ensemble.head or not is_it:
            return None
        result = EnsembleResult.of_json(json.loads(content))
    except (OSError, *ODD):
        return None
    figures = [folder / name for name in PICTURES if (folder / name).is_file()]
    return Collected(ensemble, result, figures, [Missing(one.member, one.reason) for one in result.missing])


def read_members(
    ensemble: Ensemble, rules: Mapping[str, Any], tracker: Tracker = silent
) -> tuple[list[Member], list[Missing]]:
    """Who counts, and who is missing, each by number."""
    members: list[Member] = []
    missing: list[Missing] = []
    counted = counted_before(ensemble)
    with tracker(ensemble.shape.members, "collecting", "members") as progress:
        for number in ensemble.members:
            found = examine(ensemble, number, rules, counted)
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
