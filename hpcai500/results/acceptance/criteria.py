"""Each contracted value with what was measured of it, and whether it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcai500.methodology.scaling import MOST_EFFICIENCY
from hpcai500.methodology.tolerance import Limits, Statistic, judged_interval, judged_value
from hpcai500.results.acceptance.measuring import Measured, Sources, measure
from hpcai500.results.acceptance.metrics import QUALITY, Metric
from hpcai500.results.acceptance.spec import CriterionTable

Verdict = Literal["pass", "fail", "missing"]
_TOO_EFFICIENT = (
    f"above {MOST_EFFICIENCY:g}, which adding processes cannot cause: the baseline runs may have been slowed"
)
_MORE_RUNS = "the limit lies within the 95 % confidence interval: more runs would tell"


@dataclass(frozen=True)
class Judged:
    """One criterion and its verdict. Numbers are in the metric's own unit; unknown is None.

    Attributes:
        name: what it is called.
        metric: what was measured.
        limits: what is accepted.
        unit: that the contract is written in.
        statistic: how the values of the runs became one; None where there is only one.
        measured: the number that is held against the limits.
        margin: how far it is from the nearest limit, as a fraction of the reference; below 0 outside.
        interval: 95 % confidence interval of it.
        values: of each run.
        sources: of each value.
        nodes: of the runs.
        verdict: `missing` where something is unknown; it counts as a failure.
        note: what the reader must know.
        clause: of the contract.
    """

    name: str
    metric: Metric
    limits: Limits
    unit: str | None
    statistic: Statistic | None
    measured: float | None
    margin: float | None
    interval: tuple[float, float] | None
    values: tuple[float, ...]
    sources: tuple[str, ...]
    nodes: int | None
    verdict: Verdict
    note: str
    clause: str = ""

    @property
    def is_of_answers(self) -> bool:
        """Whether it is about what the runs computed, and not how fast."""
        return self.metric.name == QUALITY

    def document(self) -> dict[str, Any]:
        """For programs: plain numbers in the metric's own unit."""
        return {
            "name": self.name,
            "metric": self.metric.name,
            "reference": self.limits.reference,
            "lower": self.limits.lower,
            "upper": self.limits.upper,
            "lowest": self.limits.lowest,
            "highest": self.limits.highest,
            "measured": self.measured,
            "unit": self.metric.unit,
            "margin": self.margin,
            "statistic": self.statistic,
            "interval": None if self.interval is None else list(self.interval),
            "values": list(self.values),
            "sources": list(self.sources),
            "nodes": self.nodes,
            "clause": self.clause or None,
            "verdict": self.verdict,
            "note": self.note or None,
        }


def judge_criteria(criteria: Sequence[CriterionTable], sources: Sources) -> list[Judged]:
    """Each of `criteria` held against what `sources` say.

    Raises:
        UsageError: a file is not what it should be, or it is open which benchmark is meant.
        WrongAnswerError: a file says something else than its records.
    """
    return [
        judge(one.name, one.subject, one.limits, one.over_runs, measure(one, sources), unit=one.unit, clause=one.clause)
        for one in criteria
    ]


def judge(
    name: str,
    metric: Metric,
    limits: Limits,
    statistic: Statistic | None,
    measured: Measured,
    *,
    unit: str | None = None,
    clause: str = "",
) -> Judged:
    """One criterion. The number decides; the interval is evidence, and is told where it holds a limit."""
    if measured.missing:
        return Judged(
            name, metric, limits, unit, statistic, None, None, None, (), (), measured.nodes, "missing",
            measured.missing, clause,
        )  # fmt: skip
    value = judged_value(measured.values, statistic or "every", limits)
    interval = measured.interval or (judged_interval(measured.values, statistic) if statistic else None)
    notes = [measured.note] if measured.note else []
    if metric.kind == "efficiency" and value > MOST_EFFICIENCY:
        notes.append(_TOO_EFFICIENT)
    if interval and limits.within(*interval):
        notes.append(_MORE_RUNS)
    return Judged(
        name=name,
        metric=metric,
        limits=limits,
        unit=unit,
        statistic=statistic,
        measured=value,
        margin=limits.margin(value),
        interval=interval,
        values=measured.values,
        sources=measured.sources,
        nodes=measured.nodes,
        verdict="pass" if limits.holds(value) else "fail",
        note="; ".join(notes),
        clause=clause,
    )
