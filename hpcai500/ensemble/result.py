"""The result of an ensemble (V3.0 section 3.5), `result.json`, as a pure function of its members and their vote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from hpcai500.ensemble.counting import CurvePoint, Member, Missing, OutOfBag, Vote, members_reasons
from hpcai500.ensemble.journal import Ensemble
from hpcai500.ensemble.mapping import in_short
from hpcai500.methodology.ensemble import EnsembleNumbers, ensemble_numbers, overlap_reasons, parallel_computation
from hpcai500.methodology.goodput import Goodput, total
from hpcai500.methodology.result import Quality, about_vflops, has_edition_target, quality_factor, quality_of
from hpcai500.methodology.samples import Samples, Unit, samples_of
from hpcai500.methodology.trials import valid_flops

SCHEMA = "hpcai500-ensemble-result-1"
# Shorter downtimes are not shown.
_SHOWN_SECONDS = 0.05


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class MissingMember(_Frozen):
    """A member that does not count, and why."""

    member: int
    reason: str


class ParallelComputation(_Frozen):
    """APC: operations of one update, for one member (V3.0 Eq. 3) and for all members together (Eq. 4)."""

    member: float
    ensemble: float


class Slowest(_Frozen):
    """The member that took longest; `slowdown` is its excess over the others' median, as a fraction of the median.

    `host` ran most of its epochs. `down_seconds` is its downtime between starts; `running_slowdown` leaves it out.
    """

    member: int
    host: str
    seconds: float
    slowdown: float | None
    down_seconds: float = 0.0
    running_slowdown: float | None = None


def slowest_words(slowest: Slowest) -> str:
    """`member 1 on n2, 46.3 s, +25.3% against the others' median; 12.0 s of it down between starts, +1.2% without`."""
    text = f"member {slowest.member} on {slowest.host}, {slowest.seconds:.1f} s"
    if slowest.slowdown is not None:
        text += f", {slowest.slowdown:+.1%} against the others' median"
    if slowest.down_seconds >= _SHOWN_SECONDS:
        text += f"; {slowest.down_seconds:.1f} s of it down between starts"
        if slowest.running_slowdown is not None:
            text += f", {slowest.running_slowdown:+.1%} without"
    return text


class MemberResult(_Frozen):
    """One member; `intervals` are when it ran, in seconds after the first member's start.

    `host` ran most of its epochs, `epochs_by_host` has all; `down_seconds` of its `seconds` lie between starts.
    """

    member: int
    seed: int
    record: str
    host: str
    quality: float | None
    out_of_bag: float | None
    images: int
    padded_images: int
    images_per_second: float
    flops: float
    seconds: float
    training_seconds: float
    restarts: int
    intervals: tuple[tuple[float, float], ...]
    epochs_by_host: dict[str, int] = {}
    down_seconds: float = 0.0


class EnsembleResult(_Frozen):
    """All numbers of one ensemble; unknown is None, never 0. Times in seconds, rates a second, FLOPS unscaled.

    `members` were planned, `members_done` count; an ensemble that is not `complete` is never rankable. `seconds` is the
    time from the first start to the last stop. `flops` is by V3.0 Eq. 6, `flops_of_members` the sum of the members' own
    rates, `sustained_flops` all operations divided by `seconds`. `start` is the first start (UNIX seconds).
    """

    schema_: str = SCHEMA
    benchmark: str
    edition: str
    level: str | None
    level_changes: list[str] | None
    rankable: bool
    reasons: list[str]
    complete: bool
    members: int
    members_done: int
    missing: list[MissingMember]
    degree: int
    scale: int
    nodes: int
    sampling: str
    strata: str
    vote: str
    quality: Quality
    curve: list[CurvePoint]
    out_of_bag: OutOfBag | None
    apc: ParallelComputation | None
    images: int
    flops_per_image: float | None
    flops_convention: str | None
    images_per_second: float | None
    unit: Unit | None = None
    units_per_second: float | None = None
    flops: float | None
    flops_of_members: float | None
    sustained_flops: float | None
    penalty_coefficient: float | None
    vflops: float | None
    start: float | None
    seconds: float | None
    epoch_seconds: float | None
    start_skew_seconds: float | None
    at_once: int | None
    overlap: float | None
    utilisation: float | None
    slowest_member: Slowest | None
    restarts: int
    energy_joules: float | None
    watts: float | None
    power_source: str | None
    power_scope: str | None
    power_note: str | None
    flops_per_watt: float | None
    vflops_per_watt: float | None
    goodput: Goodput | None = None
    member_results: list[MemberResult]

    @property
    def why_no_vflops(self) -> str | None:
        """The reason why there are no VFLOPS; None if there are, or if none of `reasons` is about them."""
        return None if self.vflops is not None else about_vflops(self.reasons)

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> EnsembleResult:
        """The result in a document of `as_json`.

        Raises:
            ValidationError: it is not such a document.
        """
        return cls.model_validate({"schema_": document.get("schema"), **document})

    @property
    def samples(self) -> Samples:
        """What its samples are called and hold."""
        return samples_of(self.benchmark, {"unit": self.unit})

    def as_json(self) -> dict[str, Any]:
        """The document of `result.json`, without `unit` and its rate where samples have none."""
        fields = self.model_dump(mode="json", exclude={"unit", "units_per_second"} if self.unit is None else None)
        return {"schema": fields.pop("schema_"), **fields}


def derive_ensemble(
    ensemble: Ensemble,
    members: Sequence[Member],
    missing: Sequence[Missing],
    vote: Vote | None,
    rules: Mapping[str, Any],
) -> EnsembleResult:
    """The result of `members`, which count, and `missing` ones; `vote` is None if there was none.

    `rules` are those of the ensemble's edition.
    """
    problem, options = ensemble.tables["problem"], ensemble.tables["ensemble"]
    numbers = ensemble_numbers([one.times for one in members]) if members else None
    first = members[0] if members else None
    voted = {"value": vote.value, "per_class": dict(vote.per_class) if vote.per_class else None} if vote else None
    quality = quality_of(problem, voted)
    coefficient = quality_factor(quality, rules)
    counts = coefficient if has_edition_target(problem, rules) else None
    vflops = valid_flops(numbers.flops, counts) if numbers and counts is not None else None
    reasons = list(_reasons(ensemble, members, missing, vote, numbers))
    return EnsembleResult(
        benchmark=str(ensemble.start["benchmark"]),
        edition=str(ensemble.start["edition"]),
        level=first.result.level if first else None,
        level_changes=first.result.level_changes if first else None,
        rankable=not reasons,
        reasons=reasons,
        complete=not missing,
        members=ensemble.shape.members,
        members_done=len(members),
        missing=[MissingMember(member=one.number, reason=one.reason) for one in missing],
        degree=ensemble.shape.degree,
        scale=ensemble.shape.scale,
        nodes=ensemble.shape.nodes,
        sampling=options["sampling"],
        strata=options["strata"],
        vote=options["vote"],
        quality=quality,
        curve=list(vote.curve) if vote else [],
        out_of_bag=vote.out_of_bag if vote else None,
        apc=_parallel_computation(ensemble, members),
        images=sum(one.times.images for one in members),
        flops_per_image=first.result.flops_per_image if first else None,
        flops_convention=first.result.flops_convention if first else None,
        unit=first.result.unit if first else None,
        penalty_coefficient=coefficient,
        vflops=vflops,
        restarts=sum(one.result.restarts for one in members),
        goodput=total(one.result.goodput for one in members),
        **_rates(members, numbers),
        **_power(members, numbers, counts),
        member_results=list(_rows(members)),
    )


def _rates(members: Sequence[Member], numbers: EnsembleNumbers | None) -> dict[str, Any]:
    names = (
        "images_per_second", "flops", "flops_of_members", "sustained_flops", "seconds", "epoch_seconds",
        "start_skew_seconds", "at_once", "overlap", "utilisation",
    )  # fmt: skip
    samples = members[0].result.samples if members else None
    units = samples.rate(numbers.images_per_second) if numbers and samples and samples.unit else None
    return {
        **{name: getattr(numbers, name) if numbers else None for name in names},
        "units_per_second": units,
        "start": min(one.times.start for one in members) if members else None,
        "slowest_member": Slowest(**vars(numbers.slowest)) if numbers else None,
    }


def _parallel_computation(ensemble: Ensemble, members: Sequence[Member]) -> ParallelComputation | None:
    if not members:
        return None
    # Members that count have the ensemble's recipe.
    batch, operations = ensemble.recipe().global_batch, members[0].result.flops_per_image
    return ParallelComputation(
        member=parallel_computation([batch], operations),
        ensemble=parallel_computation([batch] * len(members), operations),
    )


def _power(members: Sequence[Member], numbers: EnsembleNumbers | None, coefficient: float | None) -> dict[str, Any]:
    """The sum over the members, if no part was measured twice; the mean is over the slowest member's time."""
    results = [one.result for one in members]
    power: dict[str, Any] = {
        "power_source": ", ".join(sorted({one.power_source for one in results if one.power_source})) or None,
        "power_scope": ", ".join(sorted({one.power_scope for one in results if one.power_scope})) or None,
        "power_note": next(_why_no_power(members), None),
        **dict.fromkeys(("energy_joules", "watts", "flops_per_watt", "vflops_per_watt")),
    }
    if numbers is None or power["power_note"]:
        return power
    joules = math.fsum(one.energy_joules or 0.0 for one in results)
    watts = joules / numbers.slowest.seconds
    per_watt = numbers.flops / watts if watts > 0 else None
    return power | {
        "energy_joules": joules,
        "watts": watts,
        "flops_per_watt": per_watt,
        "vflops_per_watt": per_watt * coefficient if per_watt is not None and coefficient is not None else None,
    }


def _why_no_power(members: Sequence[Member]) -> Iterator[str]:
    scopes: set[str | None] = set()
    measured_by: dict[str, int] = {}
    for one in members:
        if one.result.energy_joules is None:
            yield f"member {one.number}: {one.result.power_note or 'its power is not known'}"
            return
        scopes.add(one.result.power_scope)
        for host in one.hosts:
            other = measured_by.setdefault(host, one.number)
            if other != one.number:
                yield f"members {other} and {one.number} shared {host}, and each measured the power of both"
                return
    if len(scopes) > 1:
        yield f"scopes differ between members: {', '.join(sorted(map(str, scopes)))}"


def _rows(members: Sequence[Member]) -> Iterator[MemberResult]:
    first = min((one.times.start for one in members), default=0.0)
    for one in members:
        begin = one.times.start - first
        yield MemberResult(
            member=one.number,
            seed=one.seed,
            record=one.record,
            host=one.times.host,
            quality=one.result.quality.achieved,
            out_of_bag=one.out_of_bag,
            images=one.result.images,
            padded_images=one.result.padded_images,
            images_per_second=one.result.images_per_second,
            flops=one.result.flops,
            seconds=one.times.seconds,
            training_seconds=one.times.training_seconds,
            restarts=one.result.restarts,
            intervals=tuple((round(begin + start, 3), round(begin + stop, 3)) for start, stop in one.times.intervals),
            epochs_by_host=dict(one.epochs_by_host),
            down_seconds=one.times.down_seconds,
        )


def _reasons(
    ensemble: Ensemble,
    members: Sequence[Member],
    missing: Sequence[Missing],
    vote: Vote | None,
    numbers: EnsembleNumbers | None,
) -> Iterator[str]:
    planned = ensemble.shape.members
    if missing:
        names = in_short(one.number for one in missing)
        are = "are" if len(missing) > 1 else "is"
        yield f"incomplete: {len(missing)} of {planned} member{'s' if planned > 1 else ''} {are} missing: {names}"
    if vote is None:
        yield "the members have not voted"
    if numbers:
        yield from overlap_reasons(len(members), numbers.at_once, numbers.overlap)
    yield from _shared(members_reasons(ensemble, members), len(members))


def _shared(found: Iterable[tuple[str, int]], members: int) -> Iterator[str]:
    """Each sentence once, with the members that it is about."""
    by_sentence: dict[str, list[int]] = {}
    for sentence, number in found:
        by_sentence.setdefault(sentence, []).append(number)
    for sentence, numbers in by_sentence.items():
        names = sorted(set(numbers))
        if len(names) == members > 1:
            yield f"all members: {sentence}"
        else:
            yield f"member{'s' if len(names) > 1 else ''} {in_short(names)}: {sentence}"
