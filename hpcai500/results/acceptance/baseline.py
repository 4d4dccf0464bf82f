"""New runs against older ones of the same work: after an upgrade, nothing may be much worse than it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcai500.chain import iterate
from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.methodology.tolerance import Limits
from hpcai500.methodology.trials import summarise
from hpcai500.record import Record
from hpcai500.results.acceptance.criteria import Judged, judge
from hpcai500.results.acceptance.evidence import Evidence, Run, read_evidence
from hpcai500.results.acceptance.measuring import of_each
from hpcai500.results.acceptance.metrics import COMPARED, Metric
from hpcai500.results.report.words import short

DEFAULT_RATIO = 0.90


def judge_against(old: Path, evidence: Evidence, ratio: float) -> list[Judged]:
    """Every metric that the old runs know: the new mean must be at least `ratio` times as good as the old one.

    Raises:
        UsageError: there is no old run, it did other work, or it is one of those that are judged.
        WrongAnswerError: an old record is changed or not complete.
    """
    before = read_evidence([old])
    if before.faults:
        fault = before.faults[0]
        raise WrongAnswerError(f"--baseline: {fault.path}: {fault.problem}")
    if not before.runs:
        raise UsageError(f"--baseline {old}: a campaign without a finished run; see `hpcai500 campaign status {old}`")
    heads = {run.head for run in before.runs}
    if same := next((run for run in evidence.runs if run.head in heads), None):
        raise UsageError(f"--baseline {old}: holds {same.name}, which is judged: a run is always as good as itself")
    runs = evidence.on_nodes(before.runs[0].result.benchmark, before.runs[0].result.nodes)
    if problem := next(_other_work(before.runs, runs or evidence.runs), None):
        raise UsageError(f"--baseline {old}: not the same work: {problem}")
    if not runs:
        # There is no whole record at all, which is said elsewhere.
        return []
    return [judged for metric in COMPARED if (judged := _judge(metric, before.runs, runs, ratio))]


def _judge(metric: Metric, before: Sequence[Run], runs: Sequence[Run], ratio: float) -> Judged | None:
    """None where the old runs do not know the metric: nothing can be held against it."""
    old = of_each(metric, before)
    reference = None if old.missing else summarise(old.values).mean
    if not reference or reference < 0:
        return None
    lower, upper = (ratio - 1, None) if metric.better == "higher" else (None, 1 / ratio - 1)
    name = f"{metric.name} against the baseline"
    return judge(name, metric, Limits(reference, lower, upper), "mean", of_each(metric, runs))


def _other_work(before: Sequence[Run], runs: Sequence[Run]) -> Iterator[str]:
    """In what the first new run that differs is not comparable with the old ones."""
    old = before[0]
    for new in (*before[1:], *runs):
        for what, of in _WORK.items():
            left, right = of(old), of(new)
            if left != right:
                yield f"{what}: {short(left, 60)} in {old.name}, {short(right, 60)} in {new.name}"


def _dataset(record: Record) -> Any:
    last = next(iterate(reversed(record.events), "dataset"), None)
    return last["value"].get("fingerprint") if last else None


_WORK: dict[str, Callable[[Run], Any]] = {
    "benchmark": lambda run: run.result.benchmark,
    "problem (layer 9)": lambda run: run.record.tables.get("problem"),
    "ranks": lambda run: run.result.world_size,
    "nodes": lambda run: run.result.nodes,
    "data": lambda run: _dataset(run.record),
    "input": lambda run: run.result.input,
    "count of operations": lambda run: run.result.flops_convention,
}
