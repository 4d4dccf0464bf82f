"""Whether a campaign may be ranked: all that was planned was run, nothing was left out, and all runs are trials of one.

Computed from files alone, so that whoever runs a campaign, whoever submits it and whoever checks it come to one answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.campaign.binding import binding_reasons, folder_reasons
from hpcai500.campaign.likeness import SEED, difference, recipe_difference
from hpcai500.campaign.outcome import ODD, Outcome, read_outcome
from hpcai500.campaign.reading import Attempt, Campaign
from hpcai500.campaign.written_result import written_result_reasons
from hpcai500.methodology.passes import MOST_LOST_EVALUATIONS
from hpcai500.methodology.result import Result
from hpcai500.rulebook import rulebook


@dataclass(frozen=True)
class Row:
    """One attempt in the table of a campaign; None is unknown.

    Attributes:
        attempt: as the journal has it.
        seed: planned for its trial; None for a trial that was not planned.
        epochs: that were trained and evaluated.
        target_epochs: of the recipe.
        quality: at the latest evaluation.
        seconds: from the clock's start to its end, or to the latest event.
        result: of a complete record, computed from its events.
        is_missing: whether its folder is not there any more.
    """

    attempt: Attempt
    seed: int | None
    epochs: int
    target_epochs: int
    quality: float | None
    seconds: float | None
    result: Result | None
    is_missing: bool = False

    @property
    def status(self) -> str:
        """As the journal has it, or `missing` where the record is not there to show it."""
        return "missing" if self.is_missing else self.attempt.status

    @property
    def vflops(self) -> float | None:
        """Valid FLOPS of a complete record."""
        return self.result.vflops if self.result else None


@dataclass(frozen=True)
class Standing:
    """Whether a campaign may be ranked.

    Attributes:
        rankable: whether there is nothing against it.
        reasons: what there is against it, a sentence each.
        rows: all attempts, in the order of their trials.
        least_runs: finished runs that the edition wants; None for a benchmark that it does not know.
    """

    rankable: bool
    reasons: tuple[str, ...]
    rows: tuple[Row, ...]
    least_runs: int | None

    @property
    def results(self) -> tuple[Result, ...]:
        """Of the runs that came to their end, in the order of their trials."""
        return tuple(row.result for row in self.rows if row.attempt.status == "done" and row.result)


def standing(campaign: Campaign, edition: str | None = None) -> Standing:
    """The standing of `campaign` under its own edition of the rules, or another one.

    Raises:
        RecipeError: there is no such edition.
    """
    edition = edition or campaign.edition
    rules = rulebook(edition, campaign.benchmark)
    outcomes = [read_outcome(campaign, attempt, rules) for attempt in in_order(campaign)]
    own_rules = rules if edition == campaign.edition else rulebook(campaign.edition, campaign.benchmark)
    least = rules.get("least_runs")
    reasons = reasons_against(campaign, outcomes, own_rules, least, edition)
    return Standing(not reasons, reasons, tuple(_row(campaign, outcome) for outcome in outcomes), least)


def reasons_against(
    campaign: Campaign, outcomes: Sequence[Outcome], rules: Mapping[str, Any], least: int | None, edition: str
) -> tuple[str, ...]:
    """Why the runs of a campaign are not what was planned and nothing else: a sentence each.

    Args:
        campaign: what was planned.
        outcomes: of all its attempts, in the order of their trials.
        rules: of the edition that they were run under.
        least: finished runs that are needed; None for a benchmark that the edition does not know.
        edition: name of that which `outcomes` were scored under.
    """
    reasons = [
        *_plan_reasons(campaign),
        *_number_reasons(campaign, outcomes, least, edition),
        *(reason for outcome in outcomes for reason in _own_reasons(campaign, outcome)),
        *(reason for outcome in outcomes for reason in written_result_reasons(outcome, rules)),
        *_selection_reasons(outcomes),
        *_lost_reasons(outcomes),
        *folder_reasons(campaign),
        *_unlike_reasons(outcomes),
        *_shared_reasons(campaign, outcomes),
    ]
    return tuple(dict.fromkeys(reasons))


def in_order(campaign: Campaign) -> list[Attempt]:
    """All attempts, by trial and number."""
    return sorted(campaign.attempts, key=lambda one: (one.trial, one.attempt))


def _plan_reasons(campaign: Campaign) -> Iterator[str]:
    """What is wrong with the plan itself, and what is not in it."""
    for name, found in (
        ("trial", [one.trial for one in campaign.trials]),
        ("seed", [one.seed for one in campaign.trials]),
    ):
        for value, times in Counter(found).items():
            if times > 1:
                yield f"{name} {value} is planned {times} times: each run needs one of its own"
    planned = {one.trial for one in campaign.trials}
    for attempt in campaign.attempts:
        if attempt.trial not in planned:
            yield f"{attempt.name}: no such trial was planned"


def _number_reasons(campaign: Campaign, outcomes: Sequence[Outcome], least: int | None, edition: str) -> Iterator[str]:
    """Runs that are missing, attempts that are counted wrongly."""
    done = {attempt.trial for attempt in campaign.done()}
    finished = len({one.attempt.trial for one in outcomes if one.attempt.status == "done" and one.result})
    if least is None:
        yield f"edition {edition} has no benchmark {campaign.benchmark}"
    elif finished < least:
        yield f"{finished} finished run{'' if finished == 1 else 's'}; edition {edition} wants {least} at least"
    by_trial: dict[int, list[Attempt]] = {one.trial: [] for one in campaign.trials}
    for attempt in campaign.attempts:
        by_trial.setdefault(attempt.trial, []).append(attempt)
    if never := [str(trial) for trial, attempts in by_trial.items() if not attempts]:
        many = len(never) > 1
        yield (
            f"trial{'s' * many} {', '.join(never)} {'were' if many else 'was'} planned, and no attempt at "
            f"{'them' if many else 'it'} was made"
        )
    for trial, attempts in by_trial.items():
        if not attempts:
            continue
        if trial not in done and attempts[-1].status != "running":
            yield f"{attempts[-1].name}: the latest at this trial, and it has not come to its end"
        if [one.attempt for one in attempts] != list(range(1, len(attempts) + 1)):
            yield f"trial {trial}: its attempts are numbered {', '.join(str(one.attempt) for one in attempts)}"
        first = next((place for place, one in enumerate(attempts) if one.status == "done"), len(attempts))
        for again in attempts[first + 1 :]:
            yield f"{again.name}: begun although attempt {attempts[first].attempt} had come to its end"


def _own_reasons(campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """What one record says against itself, or against the plan."""
    yield from binding_reasons(campaign, outcome)
    name, record = outcome.attempt.name, outcome.record
    if outcome.error:
        yield f"{name}: {outcome.error}"
    if record is None:
        return
    try:
        planned = next((one.seed for one in campaign.trials if one.trial == outcome.attempt.trial), None)
        seed = record.tables["hyperparameters"]["seed"]
        if planned is not None and seed != planned:
            yield f"{name}: ran with the seed {seed}; planned was {planned}"
        if field := recipe_difference(campaign.tables, record.tables):
            yield f"{name}: its recipe differs from the campaign's in {field}"
    except ODD as error:
        yield f"{name}: its recipe or system lacks something: {type(error).__name__} {error}"


def _selection_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Runs whose quality was seen before they were given up: the better of two could have been chosen."""
    for outcome in outcomes:
        attempt, last = outcome.attempt, outcome.latest
        if outcome.diverged:
            yield f"{attempt.name}: diverged ({outcome.diverged}), which is a result of this recipe"
        elif last and attempt.status != "done" and any(_is_later(other.attempt, attempt) for other in outcomes):
            yield (
                f"{attempt.name}: given up after epoch {last.epoch} with {last.metric} {last.value:.4f} and begun anew "
                "instead of gone on with: the better of the two could have been chosen"
            )


def _lost_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Epochs that were trained again after their quality was seen: one in a campaign is bad luck, more are a choice."""
    if sum(len(outcome.lost) for outcome in outcomes) <= MOST_LOST_EVALUATIONS:
        return
    for outcome in outcomes:
        if outcome.lost:
            told = ", ".join(f"epoch {one.epoch} with {one.metric} {one.value:.4f}" for one in outcome.lost[:4])
            yield (
                f"{outcome.attempt.name}: trained again after it was evaluated: {told}"
                f"{' …' if outcome.lost[4:] else ''}: the better ones could have been chosen"
            )


def _is_later(one: Attempt, other: Attempt) -> bool:
    return one.trial == other.trial and one.attempt > other.attempt


def _unlike_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Finished runs that are no trials of one thing, beyond what their recipes tell."""
    done = [(one.attempt, one.record) for one in outcomes if one.attempt.status == "done" and one.record]
    seeds: dict[Any, Attempt] = {}
    for attempt, record in done:
        try:
            seed = str(record.tables["hyperparameters"]["seed"])
            if (first := seeds.setdefault(seed, attempt)) is not attempt:
                yield f"{attempt.name}: has {SEED} {seed}, as {first.name} has"
            if record is not done[0][1] and (sentence := difference(done[0][1], record)):
                yield f"{attempt.name}: {sentence}"
        except ODD as error:
            yield f"{attempt.name}: its recipe or events lack something: {type(error).__name__} {error}"


def _shared_reasons(campaign: Campaign, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What is against finished runs one by one, and is mostly against all of them: then it is said once."""
    told: dict[str, list[str]] = {}
    done = [one for one in outcomes if one.attempt.status == "done" and one.result]
    for outcome in done:
        assert outcome.result
        for reason in (*_code_reasons(campaign, outcome), *outcome.result.reasons):
            told.setdefault(reason, []).append(outcome.attempt.name)
    for reason, names in told.items():
        if len(names) == len(done) > 1:
            yield f"all {len(done)} finished runs: {reason}"
        else:
            yield from (f"{name}: {reason}" for name in names)


def _code_reasons(campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """What was fixed before the first run is what was run."""
    assert outcome.record
    try:
        installation = outcome.record.system.get("installation") or {}
        brought = {"name": None, **(campaign.start.get("plugin") or {})}
        ran = {one["name"]: one.get("code_sha256") for one in installation.get("plugins") or []}
        codes = (
            ("hpcai500", campaign.start.get("code_sha256"), (installation.get("package") or {}).get("code_sha256")),
            (f"the plug-in {brought['name']}", brought.get("code_sha256"), ran.get(brought["name"])),
        )
    except ODD as error:
        yield f"system.json lacks something: {type(error).__name__} {error}"
        return
    for what, planned, code in codes:
        if code is not None and planned not in (None, code):
            yield f"ran other code of {what} than was planned (code_sha256 {str(code)[:12]}…, not {str(planned)[:12]}…)"


def _row(campaign: Campaign, outcome: Outcome) -> Row:
    attempt = outcome.attempt
    problem: Mapping[str, Any] = campaign.tables["problem"]
    return Row(
        attempt=attempt,
        seed=next((one.seed for one in campaign.trials if one.trial == attempt.trial), None),
        epochs=outcome.epochs,
        target_epochs=int(problem["epochs"]),
        quality=outcome.latest.value if outcome.latest else None,
        seconds=outcome.seconds,
        result=outcome.result,
        is_missing=outcome.is_missing,
    )
