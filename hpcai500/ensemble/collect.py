"""Collects an ensemble: which members count, which are missing, their vote, the result and the report on it.

Collecting the same members again gives the same result. Only one process collects an ensemble at a time. Members are
read one at a time, so memory grows only by one table row for each.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.campaign.standing import ODD
from hpcai500.ensemble.counting import (
    Member,
    Missing,
    RefusedError,
    Vote,
    Voting,
    counted_before,
    examine,
    hold_vote,
    refused_by_vote,
    run_vote,
    trained_on_other_data,
)
from hpcai500.ensemble.figures import PICTURES, draw_ensemble
from hpcai500.ensemble.journal import DONE, RESULT, VOTE, Ensemble, append, read_ensemble
from hpcai500.ensemble.mapping import in_short
from hpcai500.ensemble.result import EnsembleResult, MemberResult, derive_ensemble, slowest_words
from hpcai500.errors import ExitCode, RecordError
from hpcai500.files import turn_of, write_atomically
from hpcai500.methodology.samples import Samples
from hpcai500.progress import Tracker, silent
from hpcai500.recipe import rulebook
from hpcai500.results.outcome import goodput_lines, not_rankable_lines
from hpcai500.streams import say
from hpcai500.text import aligned, scaled

# ----------------------------------------------------------------------------------------------------
# The lock on the ensemble's folder, and the files that are written there.


_LOCK = ".collect.lock"


class CannotWriteError(RecordError):
    """The ensemble's folder cannot be written."""


@contextmanager
def collection_lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock for collecting the ensemble in `folder`; if another process holds it, say so once and wait.

    The lock is released when the process ends, however it ends. On a file system without locks there is no waiting.

    Raises:
        CannotWriteError: the lock's file cannot be created.
    """

    def on_wait() -> None:
        say(f"{folder}: another process is collecting this ensemble: waiting for it")

    with ExitStack() as stack:
        with write_errors(folder):
            stack.enter_context(turn_of(folder / _LOCK, on_wait))
        yield


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Report an error of writing within the block in one line, with what to do.

    Raises:
        CannotWriteError: for every OSError.
    """
    try:
        yield
    except OSError as error:
        raise CannotWriteError(
            f"{error.filename or folder}: cannot be written: {error.strerror}; fix that, or copy the ensemble to a "
            "folder that you may write and collect there"
        ) from error


def remove_results(folder: Path) -> None:
    """Remove the files of an earlier collection, which are not valid while a new one runs.

    Raises:
        OSError: one cannot be removed.
    """
    for name in (DONE, RESULT, VOTE, *PICTURES):
        (folder / name).unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------------------
# The collection.


@dataclass(frozen=True)
class CollectOrder:
    """What the user asked for; with `accept_incomplete`, members vote even if others are missing."""

    folder: Path
    accept_incomplete: bool = False


@dataclass(frozen=True)
class Collected:
    """A collected ensemble; `missing` has the members that do not count, with what to do about each."""

    ensemble: Ensemble
    result: EnsembleResult
    figures: Sequence[Path] = ()
    missing: Sequence[Missing] = ()


def collect_ensemble(
    order: CollectOrder, tracker: Tracker = silent, voting: Voting = run_vote, say: Callable[[str], None] = say
) -> Collected:
    """Collect the members, and write vote.json, result.json, pictures, the event `collect` and DONE.

    If members are missing and that is not accepted, there is no vote, and result.json names them with the reasons. If
    another process is collecting, say so with `say` and wait for it. If nothing can be written, return the earlier
    collection if it is still valid.

    Raises:
        HpcAi500Error: there is no ensemble, the vote failed, or the folder cannot be written.
    """
    read_ensemble(order.folder)
    try:
        with collection_lock(order.folder, say):
            return _collect(order, tracker, voting)
    except CannotWriteError as error:
        if (before := _collected_before(order.folder)) is None:
            raise
        say(f"{error}; showing the earlier collection, which is still valid")
        return before


def _collect(order: CollectOrder, tracker: Tracker, voting: Voting) -> Collected:
    ensemble = read_ensemble(order.folder)
    rules = rulebook(str(ensemble.start["edition"]), str(ensemble.start["benchmark"]))
    with write_errors(ensemble.path):
        remove_results(ensemble.path)
    vote, members, missing = _voted(ensemble, read_members(ensemble, rules, tracker), order, voting)
    result = derive_ensemble(ensemble, members, missing, vote, rules)
    content = (json.dumps(result.as_json(), indent=1) + "\n").encode()
    value = {
        "status": "incomplete" if missing else "complete",
        "missing": [one.number for one in missing],
        "heads": {str(one.number): one.head for one in members},
        "vote_sha256": vote.sha256 if vote else None,
        "result_sha256": hashlib.sha256(content).hexdigest(),
    }
    pictures = draw_ensemble(result) if members else {}
    with write_errors(ensemble.path):
        write_atomically(ensemble.path / RESULT, content)
        ensemble = _append_collect(ensemble, value)
        for name, picture in pictures.items():
            write_atomically(ensemble.path / name, picture)
        if vote:
            write_atomically(ensemble.path / DONE, f"{ensemble.head}\n".encode())
    return Collected(ensemble, result, [ensemble.path / name for name in pictures], missing)


def _voted(
    ensemble: Ensemble, found: tuple[list[Member], list[Missing]], order: CollectOrder, voting: Voting
) -> tuple[Vote | None, list[Member], list[Missing]]:
    """The vote, if there is one, the members that count in it, and the missing ones, with those that it refused."""
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
    """The collection in `folder`, if the journal has no later event."""
    ensemble = read_ensemble(folder)
    last = ensemble.events[-1]
    try:
        done, content = (folder / DONE).read_text(encoding="utf-8").strip(), (folder / RESULT).read_bytes()
        is_last = last["key"] == "collect" and last["value"]["result_sha256"] == hashlib.sha256(content).hexdigest()
        if done != ensemble.head or not is_last:
            return None
        result = EnsembleResult.of_json(json.loads(content))
    except (OSError, *ODD):
        return None
    figures = [folder / name for name in PICTURES if (folder / name).is_file()]
    return Collected(ensemble, result, figures, [Missing(one.member, one.reason) for one in result.missing])


def read_members(
    ensemble: Ensemble, rules: Mapping[str, Any], tracker: Tracker = silent
) -> tuple[list[Member], list[Missing]]:
    """The members that count and those that are missing, each ascending."""
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
    others = trained_on_other_data(members)
    numbers = {one.number for one in others}
    members = [one for one in members if one.number not in numbers]
    return members, sorted([*missing, *others], key=lambda one: one.number)


def _append_collect(ensemble: Ensemble, value: Mapping[str, Any]) -> Ensemble:
    """Append the event `collect` unless the journal ends with the same one."""
    last = ensemble.events[-1]
    return ensemble if last["key"] == "collect" and last["value"] == value else append(ensemble, "collect", value)


# ----------------------------------------------------------------------------------------------------
# The report: for people, and as the stable lines that test harnesses read.


# With more members the table shows the first ones and the slowest; all are in result.json.
_MOST_ROWS = 24
_MOST_MISSING = 8


@dataclass(frozen=True)
class CollectReport:
    """What `hpcai500 ensemble collect` prints.

    Attributes:
        collected: None after an error.
        accepted: whether the user accepts missing members.
    """

    collected: Collected | None
    accepted: bool = False
    error: str | None = None
    error_code: int = ExitCode.PASS

    @property
    def exit_code(self) -> int:
        """The error's; 1 if members are missing and that was not accepted; 2 if the target was missed; else 0."""
        if self.collected is None:
            return self.error_code
        result = self.collected.result
        if result.quality.achieved is None or not (result.complete or self.accepted):
            return ExitCode.RUN_FAILED
        return ExitCode.PASS if result.quality.is_reached else ExitCode.WRONG_ANSWER

    @property
    def verdict(self) -> str:
        """PASS; FAIL if the target was missed; INVALID if there is no valid result."""
        return {ExitCode.PASS: "PASS", ExitCode.WRONG_ANSWER: "FAIL"}.get(ExitCode(self.exit_code), "INVALID")

    def lines(self) -> Iterator[str]:
        """For people, with the stable lines for harnesses last."""
        if self.collected is None:
            yield f"error       {self.error}"
        else:
            result = self.collected.result
            yield f"ensemble    {self.collected.ensemble.path}, identity {self.collected.ensemble.identity}"
            yield from member_lines(result)
            yield from summary_lines(result)
            yield from (f"figure      {path}" for path in self.collected.figures)
            yield from missing_lines(self.collected, accepted=self.accepted)
            if self.exit_code in (ExitCode.PASS, ExitCode.WRONG_ANSWER):
                yield from figure_of_merit_lines(result)
            if result.reasons:
                yield from not_rankable_lines(result.reasons)
            if self.exit_code == ExitCode.WRONG_ANSWER:
                quality = result.quality
                yield f"FAILED: {quality.metric} {quality.achieved} is {quality.miss}"
        yield f"HPCAI500 RESULT {self.verdict}"

    def document(self) -> dict[str, Any]:
        """For programs: the content of `result.json`, or the error; and how the command ends."""
        end = {"verdict": self.verdict, "exit_code": int(self.exit_code)}
        return {**end, "error": self.error} if self.collected is None else {**self.collected.result.as_json(), **end}


def member_lines(result: EnsembleResult) -> Iterator[str]:
    if not result.member_results:
        return
    samples = result.samples
    rows: list[tuple[str, ...]] = [
        ("member", result.quality.metric, "out of bag", samples.rate_unit, "seconds", "trained", "restarts", "host")
    ]
    rows += [_row(one, samples) for one in _shown(result)]
    yield from aligned(rows, right=range(7))
    if left := len(result.member_results) - len(rows) + 1:
        yield f"… {left} more in result.json"


def summary_lines(result: EnsembleResult) -> Iterator[str]:
    yield (
        f"benchmark   {result.benchmark}, edition {result.edition}: {result.members} members x {result.degree} = "
        f"{result.scale} accelerators"
    )
    if result.level_changes is not None:
        yield f"level       {result.level or 'none'} (from the recipe)"
    if result.quality.achieved is not None:
        yield from _quality_lines(result)
    if result.flops is not None:
        yield from _rate_lines(result)
    if result.energy_joules is not None and result.watts is not None:
        scope = f"{result.power_source}, scope {result.power_scope}"
        yield f"energy      {scaled(result.energy_joules, 'J')}, mean {scaled(result.watts, 'W')} ({scope})"
    elif result.power_note:
        yield f"energy      unknown: {result.power_note}"
    if not result.rankable:
        more = f" (and {len(result.reasons) - 1} more)" if result.reasons[1:] else ""
        yield f"NOT RANKABLE: {result.reasons[0]}{more}"


def missing_lines(collected: Collected, *, accepted: bool) -> Iterator[str]:
    """Which members are missing, why, and what to do about it."""
    result = collected.result
    if result.complete:
        return
    yield f"INCOMPLETE: {result.members_done} of {result.members} members count"
    for one in result.missing[:_MOST_MISSING]:
        yield f"  member {one.member}: {one.reason}"
    if len(result.missing) > _MOST_MISSING:
        yield f"  … {len(result.missing) - _MOST_MISSING} more in result.json"
    for place, line in enumerate(_advice(collected, accepted=accepted)):
        yield f"{'' if place else 'next':12}{line}"


def _advice(collected: Collected, *, accepted: bool) -> Iterator[str]:
    folder = shlex.quote(str(collected.ensemble.path))
    by_remedy = {
        remedy: [one.number for one in collected.missing if one.remedy == remedy] for remedy in ("run", "fix", "none")
    }
    if runs := by_remedy["run"]:
        yield f"hpcai500 ensemble run {folder} (or submit {folder}), for {_named(runs)}; then collect again"
    if fixes := by_remedy["fix"]:
        yield f"{_named(fixes)}: do what the line above says; then collect again"
    if final := by_remedy["none"]:
        yield f"{_named(final)}: diverged, which is final: this ensemble cannot be completed"
    if collected.result.members_done and not accepted:
        yield f"or without them (never rankable): hpcai500 ensemble collect {folder} --accept-incomplete"


def _named(numbers: Sequence[int]) -> str:
    return f"member{'s' if len(numbers) > 1 else ''} {in_short(numbers)}"


def figure_of_merit_lines(result: EnsembleResult) -> Iterator[str]:
    """`HPCAI500 FOM <name>=<value> <unit>` for each number that is known."""
    bag, slowest = result.out_of_bag, result.slowest_member
    rate = result.images_per_second
    rates = {} if rate is None else result.samples.rates(rate)
    figures: dict[str, tuple[float | None, str]] = {
        "vflops": (result.vflops, "FLOPS"),
        "flops": (result.flops, "FLOPS"),
        "sustained_flops": (result.sustained_flops, "FLOPS"),
        **{name: (rates.get(name), unit) for name, unit in result.samples.rate_units.items()},
        result.quality.metric: (result.quality.achieved, result.quality.unit),
        **{
            f"{result.quality.metric}_{name.replace(' ', '_')}": (value, result.quality.unit)
            for name, value in (result.quality.per_class or {}).items()
        },
        f"{result.quality.metric}_out_of_bag": (bag.value if bag else None, result.quality.unit),
        "members": (result.members, "members"),
        "members_done": (result.members_done, "members"),
        "apc": (result.apc.ensemble if result.apc else None, "FLOP"),
        "seconds": (result.seconds, "s"),
        "epoch_seconds": (result.epoch_seconds, "s"),
        "start_skew_seconds": (result.start_skew_seconds, "s"),
        "slowest_member_seconds": (slowest.seconds if slowest else None, "s"),
        "utilisation": (result.utilisation, "fraction"),
        "energy_joules": (result.energy_joules, "J"),
        "watts": (result.watts, "W"),
        "vflops_per_watt": (result.vflops_per_watt, "FLOPS/W"),
    }
    for name, (value, unit) in figures.items():
        if value is not None:
            yield f"HPCAI500 FOM {name}={value:.6g} {unit}"


def _quality_lines(result: EnsembleResult) -> Iterator[str]:
    quality, alone = result.quality, [one.quality for one in result.member_results if one.quality is not None]
    yield f"quality     {quality.metric} {quality.achieved:.4f} by the vote `{result.vote}` (target {quality.goal})"
    for name, value in (quality.per_class or {}).items():
        yield f"  {name:22} " + ("does not occur" if value is None else f"{value:.4f}")
    if alone:
        mean = sum(alone) / len(alone)
        yield f"  each alone             {min(alone):.4f} to {max(alone):.4f}, mean {mean:.4f}"
    if result.out_of_bag is not None and result.out_of_bag.value is not None:
        bag = result.out_of_bag
        votes = "" if bag.votes_a_sample is None else f", {bag.votes_a_sample:.2f} votes each"
        yield f"  out of bag             {bag.value:.4f} on {bag.samples} training samples{votes}"
    points = "  ".join(f"{point.members}: {point.value:.4f}" for point in result.curve)
    yield f"  as members join        {points}"


def _rate_lines(result: EnsembleResult) -> Iterator[str]:
    apc, slowest = result.apc, result.slowest_member
    assert apc is not None
    assert slowest is not None
    yield f"APC         {scaled(apc.ensemble, 'FLOP')} an update, {scaled(apc.member, 'FLOP')} of a member (Eq. 3, 4)"
    yield f"FLOPS       {scaled(result.flops or 0.0, 'FLOPS')} by Eq. 6: an epoch takes {result.epoch_seconds:.1f} s"
    yield f"  of each, by its clock  {scaled(result.flops_of_members or 0.0, 'FLOPS')}"
    yield f"  sustained              {scaled(result.sustained_flops or 0.0, 'FLOPS')} from first start to last stop"
    if result.vflops is not None:
        yield f"VFLOPS      {scaled(result.vflops, 'FLOPS')} (quality factor {result.penalty_coefficient:.4f})"
    elif why := result.why_no_vflops:
        yield f"VFLOPS      not shown: {why}"
    assert result.images_per_second is not None
    yield f"rate        {result.samples.rate_text(result.images_per_second)}"
    yield (
        f"time        {result.seconds:.1f} s; last start after {result.start_skew_seconds:.1f} s; at most "
        f"{result.at_once} of {result.members_done} at once"
    )
    yield f"slowest     {slowest_words(slowest)}"
    yield f"utilisation {result.utilisation:.1%} of the accelerators' time was spent in training steps"
    if result.restarts:
        yield f"restarts    {result.restarts}; the time includes them"
    yield from goodput_lines(result.goodput)


def _shown(result: EnsembleResult) -> Sequence[MemberResult]:
    rows = result.member_results
    if len(rows) <= _MOST_ROWS:
        return rows
    first = rows[: _MOST_ROWS - 1]
    assert result.slowest_member is not None
    slowest = next(one for one in rows if one.member == result.slowest_member.member)
    return [*first, slowest] if slowest not in first else first


def _row(one: MemberResult, samples: Samples) -> tuple[str, ...]:
    return (
        str(one.member),
        "-" if one.quality is None else f"{one.quality:.4f}",
        "-" if one.out_of_bag is None else f"{one.out_of_bag:.4f}",
        f"{samples.rate(one.images_per_second):.1f}",
        f"{one.seconds:.1f}",
        f"{one.training_seconds / one.seconds:.1%}",
        str(one.restarts),
        one.host,
    )
