"""Has the members vote, in a process of the in-job half, and reads what came of it (see `engine.vote_command`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpcai500.campaign.outcome import ODD
from hpcai500.ensemble.examining import Member
from hpcai500.ensemble.reading import RECIPE, VOTE, Ensemble
from hpcai500.errors import RecordError, RunError
from hpcai500.interpreter import module_command
from hpcai500.launch.in_job import run_to_end
from hpcai500.record import json_object
from hpcai500.scratch import scratch_folder

_LIST = "members.tsv"
_REFUSED = "refused.json"


class RefusedError(RunError):
    """The vote refuses what a member says; `member` is its number, `reason` why."""

    def __init__(self, message: str, member: int, reason: str) -> None:
        super().__init__(message)
        self.member, self.reason = member, reason


@dataclass(frozen=True)
class CurvePoint:
    """The quality of the first so many members together."""

    members: int
    value: float


@dataclass(frozen=True)
class OutOfBag:
    """The quality of the vote on training samples, each judged by the members that have not drawn it."""

    value: float | None
    samples: int
    votes_a_sample: float | None


@dataclass(frozen=True)
class Vote:
    """What the members say together.

    Attributes:
        value: quality of the vote of all.
        per_class: the same of each class, where it has such.
        samples: of the evaluation set.
        method: how they vote.
        curve: quality of the first members together, as more are added.
        out_of_bag: None where no sample was kept for it.
        sha256: of the file.
    """

    value: float
    per_class: Mapping[str, float | None] | None
    samples: int
    method: str
    curve: tuple[CurvePoint, ...]
    out_of_bag: OutOfBag | None
    sha256: str


class Voting(Protocol):
    """Writes `vote.json`."""

    def __call__(self, ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
        """Have `members` vote, and write what comes of it to `out`.

        Raises:
            RefusedError: what one of them says cannot be counted.
            HpcAi500Error: they cannot.
        """


def run_vote(ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
    """Have the members vote, by the predictions in their records.

    Raises:
        RefusedError: what one of them says cannot be counted.
        RunError: the vote failed; it has said why.
        EnvironmentLacksError: no temporary file can be written.
    """
    with scratch_folder(os.environ, ensemble.path) as folder:
        listed, refused = Path(folder, _LIST), Path(folder, _REFUSED)
        try:
            # As they lie in the ensemble: wherever it is moved to, its vote is the same file.
            listed.write_text("".join(f"{one.number}\t{one.record}\n" for one in members), encoding="utf-8")
            code = run_to_end(
                module_command(
                    "engine.vote_command", "--recipe", (ensemble.path / RECIPE).absolute(), "--records", listed,
                    "--refused", refused, "-o", out.absolute(),
                ),
                hold=True,
            )  # fmt: skip
        except OSError as error:
            raise RunError(f"{listed}: cannot be written: {error.strerror}; mend it, then collect again") from error
        if code and refused.is_file():
            told = json_object(refused)
            raise RefusedError(
                f"{ensemble.path}: the vote failed: member {told['member']}: {told['reason']}",
                int(told["member"]),
                str(told["reason"]),
            )
    if code:
        raise RunError(f"{ensemble.path}: the vote failed (see above)")


def hold_vote(ensemble: Ensemble, members: Sequence[Member], voting: Voting) -> Vote:
    """The vote of `members`, held now.

    Raises:
        RefusedError: what one of them says cannot be counted.
        RunError: it failed, or its file is not one of these members.
    """
    path = ensemble.path / VOTE
    voting(ensemble, members, path)
    try:
        return read_vote(path, members)
    except RunError:
        path.unlink(missing_ok=True)
        raise


def read_vote(path: Path, members: Sequence[Member]) -> Vote:
    """The vote in the file `path`, which must be of these members.

    Raises:
        RunError: it is not, or it is no vote.
    """
    try:
        document = json_object(path)
        voters = [int(one["member"]) for one in document["members"]]
        bag = document["out_of_bag"]
        vote = Vote(
            value=float(document["value"]),
            per_class=document["per_class"],
            samples=int(document["samples"]),
            method=str(document["vote"]),
            curve=tuple(CurvePoint(int(one["members"]), float(one["value"])) for one in document["curve"]),
            out_of_bag=OutOfBag(bag["value"], int(bag["samples"]), bag["votes_a_sample"]) if bag else None,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
    except (RecordError, *ODD) as error:
        raise RunError(f"{path}: no vote of ours: {type(error).__name__} {error}; collect again") from error
    if voters != [one.number for one in members]:
        raise RunError(f"{path}: not of the {len(members)} members that were collected; collect again")
    return vote
