"""One member as it counts: its finished record, what it amounts to, and what there is against it; or why it is missing.

A member is counted only if its record is the one that its campaign's journal vouches for, of this ensemble's recipe,
seed and data, with its predictions in it. What is wrong beyond that leaves it counted and the ensemble not rankable.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.campaign.binding import binding_reasons
from hpcai500.campaign.company import company
from hpcai500.campaign.likeness import SEED, recipe_difference
from hpcai500.campaign.outcome import ODD, Outcome, read_outcome
from hpcai500.campaign.reading import Attempt, Campaign
from hpcai500.campaign.standing import in_order, reasons_against
from hpcai500.chain import Event, iterate
from hpcai500.ensemble.reading import Ensemble
from hpcai500.errors import HpcAi500Error
from hpcai500.methodology.ensemble import MemberTimes, member_intervals
from hpcai500.methodology.member_predictions import expected_kinds, file_of, vouched
from hpcai500.methodology.result import Result, system_identity, training_seconds
from hpcai500.record import Record

# A time server keeps clocks far closer; Slurm's own credentials are refused from 5 minutes on.
_CLOCK_SECONDS = 5.0
_COMPANY = {"world_size": "number of ranks", "nodes": "number of nodes", "backend": "backend", "library": "library"}


@dataclass(frozen=True)
class Member:
    """A member that counts.

    Attributes:
        times: what it did, and when.
        seed: of its weights, draws and order.
        record: folder of its record, below the ensemble's.
        folder: of all attempts at it.
        head: hash of the last event of its record.
        hosts: that it ran on, also before or after a restart.
        result: its own: what one model alone is worth.
        out_of_bag: its quality on samples that it has not drawn; None where that was not asked for.
        data: fingerprint of the data set that it was trained on.
        likeness: what all members must have in common, by what it is called.
        reasons: why an ensemble with it may not be ranked.
    """

    times: MemberTimes
    seed: int
    record: str
    folder: str
    head: str
    hosts: tuple[str, ...]
    result: Result
    out_of_bag: float | None
    data: str | None
    likeness: Mapping[str, Any]
    reasons: tuple[str, ...]

    @property
    def number(self) -> int:
        """Its number."""
        return self.times.member


@dataclass(frozen=True)
class Missing:
    """A member that does not count, and why."""

    number: int
    reason: str


def examine(ensemble: Ensemble, number: int, rules: Mapping[str, Any]) -> Member | Missing:
    """What member `number` of the ensemble is now; whatever is in its folder, nothing is raised.

    Args:
        ensemble: that it is of.
        number: of the member.
        rules: of the ensemble's edition.
    """
    try:
        campaign = ensemble.campaign(number)
        if campaign is None or not campaign.attempts:
            return Missing(number, "has not begun")
        done = campaign.done()
        if not done:
            return Missing(number, _unfinished(campaign.attempts[-1]))
        return _finished(ensemble, number, campaign, done[0], rules)
    except HpcAi500Error as error:
        return Missing(number, str(error))
    except ODD as error:
        return Missing(number, f"{ensemble.folder(number)}: lacks something: {type(error).__name__} {error}")


def of_other_data(members: Sequence[Member]) -> list[Missing]:
    """Those of `members` that are none beside the others: most were trained on other data."""
    known = Counter(one.data for one in members if one.data is not None)
    if len(known) < 2:
        return []
    data, _ = known.most_common(1)[0]
    first = next(one.number for one in members if one.data == data)
    return [
        Missing(
            one.number,
            f"{one.record}: trained on other data than member {first}: their fingerprints differ"
            + _run_anew(one.folder),
        )
        for one in members
        if one.data not in (None, data)
    ]


def members_reasons(ensemble: Ensemble, members: Sequence[Member]) -> Iterator[tuple[str, int]]:
    """What there is against members, each sentence with the number of the member that it is of."""
    first = members[0] if members else None
    counted = _counted_before(ensemble)
    for one in members:
        for reason in one.reasons:
            yield reason, one.number
        if counted.get(one.number, one.head) != one.head:
            yield "was collected with another record before: a member is trained once, whatever came out", one.number
        for what, value in one.likeness.items():
            if first is not None and value != first.likeness.get(what):
                yield f"differs from member {first.number} in {what}", one.number


def _counted_before(ensemble: Ensemble) -> Mapping[int, str]:
    """Head of the record with which each member was collected first."""
    found: dict[int, str] = {}
    for event in iterate(ensemble.events, "collect"):
        for number, head in event["value"]["heads"].items():
            found.setdefault(int(number), str(head))
    return found


def _run_anew(folder: str) -> str:
    """What to do about a member that is done and does not count: by itself it would stay so."""
    return f": move {shlex.quote(folder)} away, and it is run anew"


def _unfinished(last: Attempt) -> str:
    why = f": {last.reason}" if last.reason else ""
    if last.status == "running":
        return "runs still, or was killed: its journal tells no end (see `hpcai500 ensemble status`)"
    return f"{last.status}{why}"


def _finished(
    ensemble: Ensemble, number: int, campaign: Campaign, done: Attempt, rules: Mapping[str, Any]
) -> Member | Missing:
    outcomes = [read_outcome(campaign, attempt, rules) for attempt in in_order(campaign)]
    outcome = next(one for one in outcomes if one.attempt is done)
    refused = next(_refusals(ensemble, number, campaign, outcome), None)
    if refused or outcome.record is None or outcome.result is None:
        return Missing(number, refused or outcome.error or f"{done.record}: gives no result")
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
        result=result,
        out_of_bag=_out_of_bag(record),
        data=_dataset(record).get("fingerprint"),
        likeness=_likeness(record),
        reasons=(*(reason.removeprefix(own) for reason in against), *_planned_reasons(ensemble, record, start)),
    )


def _refusals(ensemble: Ensemble, number: int, campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """Why a finished record is no member of this ensemble."""
    name, anew = f"{outcome.attempt.name}: ", _run_anew(str(campaign.path))
    yield from (reason.removeprefix(name) for reason in binding_reasons(campaign, outcome))
    if outcome.error:
        yield outcome.error
    record = outcome.record
    if record is None:
        return
    if field := recipe_difference(ensemble.tables, record.tables):
        yield f"{record.path}: its recipe is not the ensemble's: {field} differs{anew}"
    seed = record.tables["hyperparameters"]["seed"]
    if seed != ensemble.seed(number):
        yield f"{record.path}: {SEED} is {seed}; member {number} was planned with {ensemble.seed(number)}{anew}"
    told = vouched(record.events)
    for kind in expected_kinds(record.tables):
        if kind not in told:
            yield f"{record.path}: holds no predictions, {kind}, so it cannot vote{anew}"
        elif not (record.path / file_of(kind)).is_file():
            yield f"{record.path / file_of(kind)}: is gone, so it cannot vote: restore it, or{anew.lstrip(':')}"


def _planned_reasons(ensemble: Ensemble, record: Record, start: Event) -> Iterator[str]:
    """Where a member is not what was planned, or cannot have been."""
    planned = ensemble.start.get("code_sha256")
    code = ((record.system.get("installation") or {}).get("package") or {}).get("code_sha256")
    if code is not None and planned not in (None, code):
        yield f"ran other code of hpcai500 than the ensemble was planned with ({str(code)[:12]}…)"
    late = (ensemble.events[0]["time_ms"] - start["time_ms"]) / 1000
    if late > _CLOCK_SECONDS:
        yield "began before the ensemble was planned: the clock of its host is wrong, or that of who planned"


def _times(number: int, record: Record, result: Result, start: Event) -> MemberTimes:
    hosts = start["value"].get("hosts") or ["unknown"]
    return MemberTimes(
        member=number,
        host=str(hosts[0]),
        accelerators=result.world_size,
        epochs=int(record.tables["problem"]["epochs"]),
        images=result.images,
        operations=result.images * result.flops_per_image,
        training_seconds=training_seconds(record.events),
        start=start["time_ms"] / 1000,
        intervals=member_intervals(record.events),
    )


def _hosts(record: Record) -> tuple[str, ...]:
    told = [event["value"].get("hosts", ()) for event in record.events if event["key"] in ("run_start", "run_resume")]
    return tuple(dict.fromkeys(str(host) for hosts in told for host in hosts))


def _out_of_bag(record: Record) -> float | None:
    told = next(iterate(reversed(record.events), "out_of_bag"), None)
    return float(told["value"]["value"]) if told and told["value"].get("value") is not None else None


def _likeness(record: Record) -> dict[str, Any]:
    told = company(record)
    system = system_identity(record.system) if record.system else {}
    return {
        **{name: told.get(key) for key, name in _COMPANY.items()},
        # However many nodes a member had, they are of these kinds.
        **{name: _kinds(value) for name, value in system.items()},
    }


def _dataset(record: Record) -> Mapping[str, Any]:
    value: Mapping[str, Any] = next(iterate(reversed(record.events), "dataset"))["value"]
    return value


def _kinds(value: Any) -> Any:
    return sorted({str(one) for one in value}) if isinstance(value, list) else value
