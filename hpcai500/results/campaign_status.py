"""`hpcai500 campaign status`: all attempts, the means with their variation, and whether the campaign may be ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from hpcai500.campaign.journal import Campaign
from hpcai500.campaign.standing import Row, Standing
from hpcai500.methodology.goodput import Goodput, in_turn
from hpcai500.methodology.trials import TrialSummary, summarise
from hpcai500.results.outcome import goodput_lines, mean_lines
from hpcai500.results.score import summarise_trials, why_no_mean
from hpcai500.text import aligned, scaled

# ----------------------------------------------------------------------------------------------------
# The spread of a metric over runs, as lines of text.


_WIDTH = 41
KEPT, DROPPED, MEAN = "o", "x", "|"


def spread_lines(runs: Sequence[tuple[str, float]]) -> Iterator[str]:
    """A line for each of `runs` = (name, value), with marks at its value and at the mean.

    All lines have the same scale, from the lowest value to the highest. Runs left out of the mean have another mark.
    """
    values = [value for _, value in runs]
    low, high, mean = min(values), max(values), summarise(values).mean
    dropped = dropped_places(values)
    widest = max(len(name) for name, _ in runs)
    for place, (name, value) in enumerate(runs):
        cells = ["-"] * _WIDTH
        cells[_cell(mean, low, high)] = MEAN
        cells[_cell(value, low, high)] = DROPPED if place in dropped else KEPT
        yield f"  {name:{widest}}  {''.join(cells)}"


def dropped_places(values: Sequence[float]) -> set[int]:
    """Positions of the values left out of the mean: the lowest and the highest of three or more."""
    if len(values) < 3:
        return set()
    order = sorted(range(len(values)), key=lambda place: values[place])
    return {order[0], order[-1]}


def _cell(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (_WIDTH - 1)) if high > low else _WIDTH // 2


# ----------------------------------------------------------------------------------------------------
# The status.


SCHEMA = "hpcai500-campaign-status-1"
_HEAD = ("trial", "attempt", "seed", "status", "epochs", "quality", "VFLOPS", "seconds", "started (UTC)")


@dataclass(frozen=True)
class CampaignStatus:
    """A campaign and its standing."""

    campaign: Campaign
    standing: Standing

    def lines(self) -> Iterator[str]:
        campaign, standing = self.campaign, self.standing
        yield f"campaign    {campaign.path}: {campaign.benchmark}, edition {campaign.edition}"
        yield f"identity    {campaign.identity}"
        yield f"trials      {self._counts()}"
        yield ""
        yield from aligned([_HEAD, *map(_cells, self._rows())])
        for row in standing.rows:
            if row.attempt.reason:
                yield f"  {row.attempt.name}: {row.attempt.reason}"
        yield from self._spread()
        yield ""
        if self.no_mean:
            yield f"no mean: {self.no_mean}"
        elif len(standing.results) > 1:
            yield from mean_lines(self.metrics, standing.results[0].samples)
        yield from goodput_lines(self.goodput)
        yield "RANKABLE" if standing.rankable else "NOT RANKABLE:"
        yield from (f"  {reason}" for reason in standing.reasons)

    def document(self) -> dict[str, Any]:
        campaign, standing = self.campaign, self.standing
        return {
            "schema": SCHEMA,
            "path": str(campaign.path),
            "identity": campaign.identity,
            "head": campaign.head,
            "benchmark": campaign.benchmark,
            "edition": campaign.edition,
            "recipe_hash": campaign.start["recipe_hash"],
            "trials": [asdict(trial) for trial in campaign.trials],
            "least_runs": standing.least_runs,
            "attempts": [_attempt(row) for row in standing.rows],
            "metrics": {name: asdict(summary) for name, summary in self.metrics.items()},
            "no_mean": self.no_mean,
            "goodput": self.goodput.model_dump(mode="json") if self.goodput else None,
            "rankable": standing.rankable,
            "reasons": list(standing.reasons),
        }

    @cached_property
    def no_mean(self) -> str | None:
        """Why the finished runs have no mean; None if they have one, or there are fewer than two."""
        done = [row for row in self.standing.rows if row.attempt.status == "done" and row.result]
        return why_no_mean([self.campaign.record(row.attempt) for row in done]) if len(done) > 1 else None

    @cached_property
    def goodput(self) -> Goodput | None:
        """Where the time of all finished runs went, and that between them."""
        return in_turn(result.goodput for result in self.standing.results)

    @cached_property
    def metrics(self) -> Mapping[str, TrialSummary]:
        """Each metric over the finished runs; empty if they have no mean."""
        results = self.standing.results
        return summarise_trials(results) if results and not self.no_mean else {}

    def _counts(self) -> str:
        planned = {trial.trial for trial in self.campaign.trials}
        ended = {attempt.trial for attempt in self.campaign.done()} & planned
        done = {row.attempt.trial for row in self.standing.rows if row.status == "done"} & planned
        running = {one.trial for one in self.campaign.attempts if one.status == "running"} & planned - ended
        least = self.standing.least_runs
        required = f"; edition {self.campaign.edition} requires at least {least}" if least else ""
        left = len(planned - ended - running)
        missing = f"{len(ended - done)} missing, " if ended - done else ""
        return f"{len(planned)} planned, {len(done)} done, {missing}{len(running)} running, {left} to run{required}"

    def _rows(self) -> Iterator[Row | tuple[int, int]]:
        """All attempts, and (trial, seed) of the planned runs that were never started, in order."""
        started = {row.attempt.trial for row in self.standing.rows}
        planned = [(one.trial, one.seed) for one in self.campaign.trials if one.trial not in started]
        rows: list[Row | tuple[int, int]] = [*self.standing.rows, *planned]
        yield from sorted(rows, key=_place)

    def _spread(self) -> Iterator[str]:
        """The spread of VFLOPS over the finished runs, else of FLOPS; no line for fewer than two runs."""
        done = [row for row in self.standing.rows if row.attempt.status == "done"]
        runs = [(f"trial {row.attempt.trial}", row.vflops) for row in done if row.vflops is not None]
        what = "VFLOPS"
        if not runs:
            # Runs whose target is not the edition's have no VFLOPS.
            what, runs = "FLOPS", [(f"trial {row.attempt.trial}", row.result.flops) for row in done if row.result]
        if len(runs) < 2 or self.no_mean:
            return
        values = [value for _, value in runs]
        low, high = scaled(min(values), "FLOPS"), scaled(max(values), "FLOPS")
        yield ""
        yield f"{what} from {low} to {high}: {KEPT} kept, {DROPPED} dropped as lowest or highest, {MEAN} mean"
        yield from spread_lines(runs)


def _place(row: Row | tuple[int, int]) -> tuple[int, int]:
    return (row.attempt.trial, row.attempt.attempt) if isinstance(row, Row) else (row[0], 0)


def _cells(row: Row | tuple[int, int]) -> tuple[str, ...]:
    if not isinstance(row, Row):
        trial, seed = row
        return (str(trial), "-", str(seed), "planned", "-", "-", "-", "-", "-")
    attempt = row.attempt
    started = datetime.fromtimestamp(attempt.started_ms / 1000, UTC)
    return (
        str(attempt.trial),
        str(attempt.attempt),
        _or_dash(row.seed, "d"),
        row.status,
        "-" if row.is_missing else f"{row.epochs}/{row.target_epochs}",
        _or_dash(row.quality, ".4f"),
        "-" if row.vflops is None else scaled(row.vflops, "FLOPS"),
        _or_dash(row.seconds, ".1f"),
        f"{started:%Y-%m-%d %H:%M:%S}",
    )


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _attempt(row: Row) -> dict[str, Any]:
    attempt = row.attempt
    return {
        "trial": attempt.trial,
        "attempt": attempt.attempt,
        "seed": row.seed,
        "record": attempt.record,
        "status": row.status,
        "reason": attempt.reason,
        "epochs": row.epochs,
        "target_epochs": row.target_epochs,
        "quality": row.quality,
        "vflops": row.vflops,
        "seconds": row.seconds,
        "started_ms": attempt.started_ms,
        "commands": [list(command) for command in attempt.commands],
        "slurm_jobs": list(attempt.slurm_jobs),
        "result": row.result.as_json() if row.result else None,
    }
