"""Which members of an ensemble count, why others are missing, and the vote of those that count.

A member counts only if its record is the one that its campaign's journal names, has this ensemble's recipe, seed and
data, and has predictions. With any other problem the member counts, but the ensemble is not rankable. The vote runs in
a process of the in-job half (`engine.vote`).
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from hpcai500.campaign.journal import Attempt, Campaign
from hpcai500.campaign.standing import (
    ODD,
    SEED,
    Outcome,
    binding_reasons,
    in_order,
    read_outcome,
    reasons_against,
    recipe_difference,
    world,
)
from hpcai500.ensemble.journal import OUTPUT, RECIPE, VOTE, Ensemble
from hpcai500.ensemble.members import last_error, read_failures
from hpcai500.errors import HpcAi500Error, RecordError, RunError
from hpcai500.files import scratch_folder
from hpcai500.interpreter import module_command
from hpcai500.job_options import VoteOptions, as_argument
from hpcai500.launch.processes import run_to_end
from hpcai500.methodology.ensemble import (
    MemberTimes,
    epochs_by_host,
    expected_kinds,
    file_of,
    member_intervals,
    vouched,
)
from hpcai500.methodology.result import Result, system_identity, training_seconds
from hpcai500.record import Event, Record, iterate, json_object

# ----------------------------------------------------------------------------------------------------
# Members that count, and members that are missing.


# NTP keeps clocks much closer than this; Slurm refuses credentials only from 5 minutes on.
_CLOCK_SECONDS = 5.0
_WORLD = {"world_size": "number of ranks", "nodes": "number of nodes", "backend": "backend", "library": "library"}


@dataclass(frozen=True)
class Member:
    """A member that counts.

    Attributes:
        seed: of its weights, draws and order.
        record: folder of its record, relative to the ensemble's.
        head: hash of the last event of its record.
        hosts: that it ran on, before and after restarts.
        epochs_by_host: epochs that ended on each host, by the host of rank 0.
        result: of this model alone.
        out_of_bag: its quality on samples that it did not draw; None if not requested.
        data: fingerprint of its data set.
        common: facts that must be equal for all members, by display name.
        reasons: why an ensemble with it may not be ranked.
    """

    times: MemberTimes
    seed: int
    record: str
    folder: str
    head: str
    hosts: tuple[str, ...]
    epochs_by_host: Mapping[str, int]
    result: Result
    out_of_bag: float | None
    data: str | None
    common: Mapping[str, Any]
    reasons: tuple[str, ...]

    @property
    def number(self) -> int:
        return self.times.member


# What to do about a missing member: run it; nothing, because it diverged; what its reason says.
Remedy = Literal["run", "none", "fix"]


@dataclass(frozen=True)
class Missing:
    number: int
    reason: str
    remedy: Remedy = "fix"


def examine(
    ensemble: Ensemble, number: int, rules: Mapping[str, Any], counted: Mapping[int, str] | None = None
) -> Member | Missing:
    """Whether member `number` counts, and why not. Raises nothing, whatever is in its folder.

    `counted` has the heads of the records with which members were collected before (`counted_before`).
    """
    folder = ensemble.folder(number)
    try:
        campaign = ensemble.campaign(number)
        if campaign is None or not campaign.attempts:
            return _not_begun(number, folder, (counted or {}).get(number))
        done = campaign.done()
        if not done:
            return _unfinished(number, campaign, rules)
        return _finished(ensemble, number, campaign, done[0], rules)
    except HpcAi500Error as error:
        return Missing(number, _with_remedy(str(error), folder))
    except ODD as error:
        reason = f"{folder}: cannot be read as a member's record ({type(error).__name__} {error})"
        return Missing(number, _with_remedy(reason, folder))


def refused_by_vote(member: Member, reason: str) -> Missing:
    """A member whose predictions the vote refused."""
    return Missing(member.number, f"{member.record}: {reason}{_run_again(member.folder)}")


def trained_on_other_data(members: Sequence[Member]) -> list[Missing]:
    """The members that were trained on other data than most."""
    known = Counter(one.data for one in members if one.data is not None)
    if len(known) < 2:
        return []
    data, _ = known.most_common(1)[0]
    first = next(one.number for one in members if one.data == data)
    return [
        Missing(
            one.number,
            f"{one.record}: trained on other data than member {first}: their fingerprints differ"
            + _run_again(one.folder),
        )
        for one in members
        if one.data not in (None, data)
    ]


def members_reasons(ensemble: Ensemble, members: Sequence[Member]) -> Iterator[tuple[str, int]]:
    """(Reason against ranking, number of the member) for all members."""
    first = members[0] if members else None
    counted = counted_before(ensemble)
    for one in members:
        for reason in one.reasons:
            yield reason, one.number
        if counted.get(one.number, one.head) != one.head:
            yield "was collected with another record before: a member may be trained only once", one.number
        for what, value in one.common.items():
            if first is not None and value != first.common.get(what):
                yield f"differs from member {first.number} in {what}", one.number


def counted_before(ensemble: Ensemble) -> Mapping[int, str]:
    """Head of the record with which each member was first collected."""
    found: dict[int, str] = {}
    for event in iterate(ensemble.events, "collect"):
        for number, head in event["value"]["heads"].items():
            found.setdefault(int(number), str(head))
    return found


def _run_again(folder: str) -> str:
    """What to do about a member that is done and does not count."""
    return f": move {shlex.quote(folder)} away to run the member again"


def _with_remedy(reason: str, folder: Path) -> str:
    """`reason`, with what to do about a record that cannot be used."""
    if "move that folder away" in reason:
        return reason
    first = "; or" if "restore it" in reason else ": restore it, or"
    return f"{reason}{first} move {shlex.quote(str(folder))} away to run the member again"


def _not_begun(number: int, folder: Path, head: str | None) -> Missing:
    if head is None:
        return Missing(number, "; ".join(["has not started", *_early_failures(folder)]), "run")
    what = "its journal" if folder.is_dir() else "its folder"
    return Missing(
        number,
        f"was collected with the record {head[:12]}…, but {what} is missing: restore {shlex.quote(str(folder))}; if "
        "the member is run again instead, the ensemble is not rankable",
    )


def _early_failures(folder: Path) -> Iterator[str]:
    """Why the member's jobs failed before it started, as far as known."""
    failures, problem = read_failures(folder)
    if problem:
        yield problem
    if failures:
        yield f"its job failed on {failures[-1].host} with exit code {failures[-1].exit_code}, see {folder / OUTPUT}"
        try:
            error = last_error(folder)
        except RecordError as other:
            error = str(other)
        if error is not None:
            yield error


def _unfinished(number: int, campaign: Campaign, rules: Mapping[str, Any]) -> Missing:
    last = campaign.attempts[-1]
    if last.status == "running":
        reason = "is running, or was killed: its journal has no end (see `hpcai500 ensemble status`)"
        return Missing(number, reason, "run")
    if last.status == "failed" and (diverged := read_outcome(campaign, last, rules).diverged):
        return Missing(number, f"diverged: {diverged}: this is final", "none")
    why = f": {last.reason}" if last.reason else ""
    return Missing(number, f"{last.status}{why}", "run")


def _finished(
    ensemble: Ensemble, number: int, campaign: Campaign, done: Attempt, rules: Mapping[str, Any]
) -> Member | Missing:
    outcomes = [read_outcome(campaign, attempt, rules) for attempt in in_order(campaign)]
    outcome = next(one for one in outcomes if one.attempt is done)
    refused = next(_refusals(ensemble, number, campaign, outcome), None)
    if refused or outcome.record is None or outcome.result is None:
        reason = refused or _with_remedy(f"{done.record}: gives no result", campaign.path)
        return Missing(number, reason)
    record, result = outcome.record, outcome.result
    start = next(iterate(record.events, "run_start"))
    against = reasons_against(campaign, outcomes, rules, 1, campaign.edition)
    own = f"{done.name}: "
    return Member(
        times=_times(number, record, result, start),
        seed=int(record.tables["hyperparameters"]["seed"]),
        record=str(record.path.relative_to(ensemble.path)),
        folder=str(campaign.path),
        head=str(done.head),
        hosts=_hosts(record),
        epochs_by_host=epochs_by_host(record.events),
        result=result,
        out_of_bag=_out_of_bag(record),
        data=_dataset(record).get("fingerprint"),
        common=_common(record),
        reasons=(*(reason.removeprefix(own) for reason in against), *_planned_reasons(ensemble, record, start)),
    )


def _refusals(ensemble: Ensemble, number: int, campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """Why a finished record does not count in this ensemble."""
    name, again = f"{outcome.attempt.name}: ", _run_again(str(campaign.path))
    for reason in binding_reasons(campaign, outcome):
        yield _with_remedy(reason.removeprefix(name), campaign.path)
    if outcome.error:
        yield _with_remedy(outcome.error, campaign.path)
    record = outcome.record
    if record is None:
        return
    if field := recipe_difference(ensemble.tables, record.tables):
        yield f"{record.path}: its recipe is not the ensemble's: {field} differs{again}"
    seed = record.tables["hyperparameters"]["seed"]
    if seed != ensemble.seed(number):
        yield f"{record.path}: {SEED} is {seed}; member {number} was planned with {ensemble.seed(number)}{again}"
    files = vouched(record.events)
    for kind in expected_kinds(record.tables):
        if kind not in files:
            yield f"{record.path}: has no {kind} predictions, so it cannot vote{again}"
        elif wrong := _wrong_with(record.path / file_of(kind), str(files[kind]["sha256"])):
            yield f"{record.path / file_of(kind)}: {wrong}, so it cannot vote: restore it, or{again.lstrip(':')}"


def _wrong_with(path: Path, sha256: str) -> str | None:
    """What is wrong with a file of predictions; `sha256` is its hash in the record's events."""
    try:
        with path.open("rb") as stream:
            found = file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if found == sha256 else "was changed: its hash is not the one in its record"


def _planned_reasons(ensemble: Ensemble, record: Record, start: Event) -> Iterator[str]:
    """Where a member differs from the plan."""
    planned = ensemble.start.get("code_sha256")
    code = ((record.system.get("installation") or {}).get("package") or {}).get("code_sha256")
    if code is not None and planned not in (None, code):
        yield f"ran other hpcai500 code than the ensemble was planned with ({str(code)[:12]}…)"
    late = (ensemble.events[0]["time_ms"] - start["time_ms"]) / 1000
    if late > _CLOCK_SECONDS:
        yield "started before the ensemble was planned: the clock of its host or of the planning host is wrong"


def _times(number: int, record: Record, result: Result, start: Event) -> MemberTimes:
    epochs = epochs_by_host(record.events)
    return MemberTimes(
        member=number,
        host=max(epochs, key=lambda host: epochs[host]),
        accelerators=result.world_size,
        epochs=int(record.tables["problem"]["epochs"]),
        images=result.images,
        operations=result.images * result.flops_per_image,
        training_seconds=training_seconds(record.events),
        start=start["time_ms"] / 1000,
        intervals=member_intervals(record.events),
    )


def _hosts(record: Record) -> tuple[str, ...]:
    starts = [event["value"].get("hosts", ()) for event in record.events if event["key"] in ("run_start", "run_resume")]
    return tuple(dict.fromkeys(str(host) for hosts in starts for host in hosts))


def _out_of_bag(record: Record) -> float | None:
    event = next(iterate(reversed(record.events), "out_of_bag"), None)
    return float(event["value"]["value"]) if event and event["value"].get("value") is not None else None


def _common(record: Record) -> dict[str, Any]:
    start = world(record)
    system = system_identity(record.system) if record.system else {}
    return {
        **{name: start.get(key) for key, name in _WORLD.items()},
        # Only the kinds of its nodes matter, not how many there are.
        **{name: _kinds(value) for name, value in system.items()},
    }


def _dataset(record: Record) -> Mapping[str, Any]:
    value: Mapping[str, Any] = next(iterate(reversed(record.events), "dataset"))["value"]
    return value


def _kinds(value: Any) -> Any:
    return sorted({str(one) for one in value}) if isinstance(value, list) else value


# ----------------------------------------------------------------------------------------------------
# The vote, in a process of the in-job half.


_LIST = "members.tsv"
_REFUSED = "refused.json"


class RefusedError(RunError):
    """The vote refuses a member's predictions; `member` is its number."""

    def __init__(self, message: str, member: int, reason: str) -> None:
        super().__init__(message)
        self.member, self.reason = member, reason


class CurvePoint(BaseModel):
    """The quality of the first `members` members together."""

    model_config = ConfigDict(frozen=True)

    members: int
    value: float


class OutOfBag(BaseModel):
    """The quality of the vote on training samples, each predicted by the members that did not draw it."""

    model_config = ConfigDict(frozen=True)

    value: float | None
    samples: int
    votes_a_sample: float | None


@dataclass(frozen=True)
class Vote:
    """The result of a vote.

    Attributes:
        per_class: `value` by class, where there are classes.
        curve: quality of the first members together, as more are added.
        out_of_bag: None if no sample was kept for it.
    """

    value: float
    per_class: Mapping[str, float | None] | None
    samples: int
    method: str
    curve: tuple[CurvePoint, ...]
    out_of_bag: OutOfBag | None
    sha256: str


class Voting(Protocol):
    """Runs a vote."""

    def __call__(self, ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
        """Let `members` vote, and write the result to `out`.

        Raises:
            RefusedError: the predictions of a member cannot be counted.
            HpcAi500Error: the vote failed.
        """


def run_vote(ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
    """Run the vote on the predictions in the members' records.

    Raises:
        RefusedError: the predictions of a member cannot be counted.
        RunError: the vote failed; stderr says why.
        EnvironmentLacksError: no temporary file can be written.
    """
    with scratch_folder(os.environ, ensemble.path) as folder:
        listed, refused = Path(folder, _LIST), Path(folder, _REFUSED)
        try:
            # Relative paths, so that the vote of a moved ensemble gives the same file.
            listed.write_text("".join(f"{one.number}\t{one.record}\n" for one in members), encoding="utf-8")
            options = VoteOptions((ensemble.path / RECIPE).absolute(), listed, out.absolute(), refused)
            code = run_to_end(module_command("engine.vote_command", as_argument(options)), hold=True)
        except OSError as error:
            raise RunError(f"{listed}: cannot be written: {error.strerror}; fix that, then collect again") from error
        if code and refused.is_file():
            refusal = json_object(refused)
            raise RefusedError(
                f"{ensemble.path}: the vote failed: member {refusal['member']}: {refusal['reason']}",
                int(refusal["member"]),
                str(refusal["reason"]),
            )
    if code:
        raise RunError(f"{ensemble.path}: the vote failed (see above)")


def hold_vote(ensemble: Ensemble, members: Sequence[Member], voting: Voting) -> Vote:
    """Run the vote of `members`, and read its file.

    Raises:
        RefusedError: the predictions of a member cannot be counted.
        RunError: the vote failed, or its file is of other members.
    """
    path = ensemble.path / VOTE
    voting(ensemble, members, path)
    try:
        return read_vote(path, members)
    except RunError:
        path.unlink(missing_ok=True)
        raise


def read_vote(path: Path, members: Sequence[Member]) -> Vote:
    """The vote in the file `path`.

    Raises:
        RunError: it is not a vote of `members`.
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
            curve=tuple(
                CurvePoint(members=int(one["members"]), value=float(one["value"])) for one in document["curve"]
            ),
            out_of_bag=OutOfBag(value=bag["value"], samples=int(bag["samples"]), votes_a_sample=bag["votes_a_sample"])
            if bag
            else None,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
    except (RecordError, *ODD) as error:
        raise RunError(f"{path}: not a valid vote: {type(error).__name__} {error}; collect again") from error
    if voters != [one.number for one in members]:
        raise RunError(f"{path}: not the vote of the {len(members)} members that count; collect again")
    return vote
