"""The measured value of each criterion and its verdict, the comparison with older runs, and the slowest node.

Numbers come from runs, from files of `hpcai500 micro` and `storage`, and from a file of `hpcai500 scale --json`; all
are in the metric's own unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import HpcAi500Error, UsageError, WrongAnswerError
from hpcai500.machine import Origin, origin_of_figures, origin_of_run, other_machine
from hpcai500.methodology.goodput import total
from hpcai500.methodology.nodes import SlowestNode, node_differences, slowest_node
from hpcai500.methodology.statistics import (
    CONFIDENCE,
    Limits,
    Statistic,
    compared_interval,
    compared_value,
    least_mean_time,
    least_of_interval,
)
from hpcai500.methodology.trials import summarise
from hpcai500.methodology.weak_scaling import MOST_EFFICIENCY, weak_scaling
from hpcai500.plugins import known_benchmarks, not_known
from hpcai500.record import Record, last_hash, read_record
from hpcai500.results.acceptance.contract import (
    BETWEEN,
    COMPARED,
    LOSS,
    QUALITY,
    RATE,
    VARIATION,
    CriterionTable,
    Metric,
    RequireTable,
    value_of,
)
from hpcai500.results.acceptance.evidence import Evidence, Run, Verdict, last_value, read_evidence
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.results.scaling import read_scaling
from hpcai500.results.score import score_record
from hpcai500.text import count, duration, listed, number, share, short, table, tables

# ----------------------------------------------------------------------------------------------------
# Ceilings of the machine, from `hpcai500 micro --json`.


# The least number above 0.
_ABOVE_ZERO = math.ulp(0.0)


@dataclass(frozen=True)
class CeilingFile:
    """A file of `hpcai500 micro` or `storage`, and its signer."""

    source: GivenFile
    document: Mapping[str, Any]

    def entry(self, metric: Metric) -> Mapping[str, Any] | None:
        """Return the measurement of `metric`; None if there is none. Its value is None if it is unknown.

        Raises:
            UsageError: it is not a measurement in the metric's unit.
        """
        if metric.name not in self.document:
            return None
        entry = table(self.document[metric.name])
        is_storage = metric.name.startswith("storage ")
        if is_storage and entry.get("value", 0) is None and entry.get("unit") == metric.unit:
            return entry
        least = 0 if metric.unit == "accelerators" else _ABOVE_ZERO
        value = number(entry.get("value"))
        if value is None or value < least or entry.get("unit") != metric.unit:
            raise UsageError(
                f"{self.source.path}: {metric.name}: expected a value above 0 in {metric.unit}, "
                f"got {entry.get('value')!r} in {entry.get('unit')!r}"
            )
        return entry

    def slow_ranks(self) -> Iterator[str]:
        """Yield the slowest rank of each measurement of several ranks, with its share of the median, and slow links."""
        for name, entry in self.document.items():
            rates = [rate for one in _list(table(entry).get("per_rank")) if (rate := number(one))]
            slowest = table(table(entry).get("slowest"))
            value = number(slowest.get("value"))
            if value and len(rates) > 1:
                share = value / statistics.median(rates)
                yield f"{name}: rank {slowest.get('rank')} on {slowest.get('host')}: {share:.1%} of the median rank"
            yield from (f"{name}: {short(sentence)}" for sentence in _list(table(entry).get("slow")))


def read_ceilings(path: Path, signers: Path | None = None) -> CeilingFile:
    """Read a file of `hpcai500 micro` or `storage`.

    Raises:
        RecordError: it is not JSON.
        UsageError: it is not such a file, or cannot be read.
        WrongAnswerError: its signature does not match it, or `signers` lacks its key.
    """
    source = given_file(path, signers)
    document = source.tables()
    known = [entry for entry in tables(list(document.values())) if "value" in entry and "unit" in entry]
    if not known or len(known) < len(document):
        error = f": {document['error']}" if document.get("error") else ""
        raise UsageError(f"{path}: not a file of `hpcai500 micro -o FILE` or `storage`{error}")
    return CeilingFile(source, document)


def require_own_machine(files: Sequence[CeilingFile], evidence: Evidence) -> None:
    """Refuse figures of a machine that no run is of.

    Raises:
        UsageError: with the first difference.
    """
    for file in files:
        _require_own(origin_of_figures(file.document), str(file.source.path), evidence.runs)


def _require_own(origin: Origin, name: str, runs: Sequence[Run]) -> None:
    found = [other_machine(origin, run.origin) for run in runs]
    if found and all(found):
        raise UsageError(
            f"{name}: of another machine than the runs: {found[0]}: give figures that were measured where they ran"
        )


def _interval(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    match [number(end) for end in _list(entry.get("interval"))]:
        case [float(low), float(high)]:
            return low, high
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# ----------------------------------------------------------------------------------------------------
# The numbers for one criterion, or what to do to measure them.


@dataclass(frozen=True)
class Sources:
    """The sources of the numbers.

    Attributes:
        ceilings: files of `hpcai500 micro` and `storage`.
        scaling: a file of `hpcai500 scale --json`.
        require: the contract's requirements for all runs.
    """

    evidence: Evidence
    ceilings: tuple[CeilingFile, ...]
    scaling: GivenFile | None
    require: RequireTable


@dataclass(frozen=True)
class Measured:
    """The numbers for one criterion.

    Attributes:
        values: of each run, or the only one.
        nodes: of the runs; None if there are none, or the source does not say.
        interval: the 95 % confidence interval given by the source.
        missing: why there are none, and what to do; None if all are known.
        is_bound: whether the only value is a lower bound.
    """

    values: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    nodes: int | None = None
    interval: tuple[float, float] | None = None
    note: str = ""
    missing: str | None = None
    is_bound: bool = False


def measure(criterion: CriterionTable, sources: Sources) -> Measured:
    """Return the numbers in `sources` for the metric of `criterion`.

    Raises:
        UsageError: a file is wrong; or the criterion does not say which benchmark it means, means an unknown one, or
            has the direction of another quality, or a rate that a run lacks.
        WrongAnswerError: a file contradicts its records.
    """
    metric, evidence = criterion.subject, sources.evidence
    if metric.kind == "micro":
        return _of_micro(metric, sources)
    if criterion.benchmark is None and len(evidence.benchmarks) > 1:
        named = " and ".join(evidence.benchmarks)
        raise UsageError(
            f"{criterion.name}: there are records of {named}: add the benchmark to each of the criteria, such as "
            f'benchmark = "{evidence.benchmarks[0]}"'
        )
    nodes = criterion.nodes or sources.require.nodes
    if metric.kind == "efficiency":
        return _of_scaling(metric, sources, criterion.benchmark, nodes or 0)
    runs = evidence.on_nodes(criterion.benchmark, nodes)
    if not runs:
        if criterion.benchmark and criterion.benchmark not in known_benchmarks():
            raise UsageError(f"{criterion.name}: no run of it is given: {not_known(criterion.benchmark)}")
        of = f" of {criterion.benchmark}" if criterion.benchmark else ""
        on = f" on {count(nodes, 'node')}" if nodes else ""
        return Measured(missing=f"no finished run{of}{on}: make runs, and give their records")
    if metric.name == QUALITY:
        _require_direction(criterion, runs)
    if metric.name.endswith(RATE):
        _require_rate(criterion, runs)
    if metric.name == BETWEEN and any(one.result.goodput and not one.result.goodput.interruptions for one in runs):
        return _between_interruptions(runs, sources.require.confidence or CONFIDENCE)
    return of_each(metric, runs) if metric.kind == "run" else _variation(metric, runs)


def _between_interruptions(runs: Sequence[Run], confidence: float) -> Measured:
    """Return the mean time over all of `runs` together, some of which were not interrupted; a bound if none was."""
    found, nodes = total(run.result.goodput for run in runs), runs[0].result.nodes
    if found is None:
        return Measured(nodes=nodes, missing="unknown: the records cannot tell when they were interrupted")
    names, over = (f"{count(len(runs), 'run')}",), f"over {count(len(runs), 'run')} together"
    if found.mean_between_interruptions_seconds is not None:
        return Measured((found.mean_between_interruptions_seconds,), names, nodes, note=over)
    seconds = found.wall_seconds - found.seconds.without_machine
    note = f"a lower bound with {confidence * 100:g} % confidence: no interruption in {duration(seconds)} {over}"
    return Measured((least_mean_time(seconds, confidence),), names, nodes, note=note, is_bound=True)


def _require_direction(criterion: CriterionTable, runs: Sequence[Run]) -> None:
    """Refuse a least value for a loss, which every bad run would reach, and a largest one for other qualities."""
    for run in runs:
        quality = run.result.quality
        if quality.better == criterion.subject.better:
            continue
        fix = (
            'add better = "lower", with unit = "1" and upper instead of lower'
            if quality.better == "lower"
            else 'remove better = "lower", and give lower instead of upper'
        )
        raise UsageError(f"{criterion.name}: {quality.better} is better for {quality.metric} of {run.name}: {fix}")


def _require_rate(criterion: CriterionTable, runs: Sequence[Run]) -> None:
    """Refuse a rate of what the samples of another benchmark hold."""
    for run in runs:
        if criterion.subject.name.removeprefix(VARIATION) not in run.result.rates:
            raise UsageError(f"{criterion.name}: the rates of {run.name} are {' and '.join(run.result.rates)}")


def of_each(metric: Metric, runs: Sequence[Run]) -> Measured:
    """Return the metric of each of `runs`; it is missing if one of them lacks it: unknown is never good."""
    found = [value_of(metric, run.result) for run in runs]
    nodes = runs[0].result.nodes
    known = tuple(value for value in found if value is not None)
    if len(known) == len(runs):
        return Measured(known, tuple(run.name for run in runs), nodes)
    unknown = next(run for run, value in zip(runs, found, strict=True) if value is None)
    missing = f"unknown in {len(runs) - len(known)} of {count(len(runs), 'run')}, as in {unknown.name}"
    why = unknown.result.power_note if metric.unit in ("J", "W", "FLOPS/W") else None
    if "vflops" in metric.name and unknown.result.quality.better == "lower":
        why = unknown.result.why_no_vflops
    return Measured(nodes=nodes, missing=": ".join(part for part in (missing, why, metric.remedy) if part))


def _variation(metric: Metric, runs: Sequence[Run]) -> Measured:
    each = of_each(metric, runs)
    if each.missing:
        return each
    variation = summarise(each.values).variation
    if variation is None:
        return Measured(nodes=each.nodes, missing=f"{count(len(runs), 'run')}: {metric.remedy}")
    return Measured((variation,), (f"{len(runs)} runs",), each.nodes)


def _of_micro(metric: Metric, sources: Sources) -> Measured:
    found = [(file.source, entry) for file in sources.ceilings if (entry := file.entry(metric))]
    if not found:
        return Measured(missing=f"not measured: {metric.remedy}")
    for source, entry in found:
        if entry.get("verified") is not True:
            return Measured(missing=f"{source.path}: its results are not marked as verified: measure again")
        if entry["value"] is None:
            return Measured(missing=f"{source.path}: unknown, because it was not cold or not whole: {metric.remedy}")
    for source, entry in found:
        if unfit := _other_nodes(entry, sources) or _other_time(entry, sources.evidence.runs):
            return Measured(missing=f"{source.path}: {unfit}: {metric.remedy}")
    first = found[0][1]
    nodes = number(first.get("nodes"))
    return Measured(
        tuple(float(entry["value"]) for _, entry in found),
        tuple(str(source.path) for source, _ in found),
        None if nodes is None else int(nodes),
        _interval(first) if len(found) == 1 else None,
        "; ".join(source.doubt for source, _ in found if source.doubt),
    )


def _other_nodes(entry: Mapping[str, Any], sources: Sources) -> str | None:
    """Why the number of nodes is not that of the contract, or else that of any run; None if it is."""
    nodes, required = number(entry.get("nodes")), sources.require.nodes
    known = {run.result.nodes for run in sources.evidence.runs}
    if nodes == required or (required is None and (nodes in known or not known)):
        return None
    on = "an unknown number of nodes" if nodes is None else count(nodes, "node")
    wanted = f"but the contract requires {required}" if required else f"but the runs are on {listed(sorted(known))}"
    return f"measured on {on}, {wanted}"


# A machine changes in a month: updates of firmware and drivers, exchanged parts.
_MOST_DAYS = 31
_DAY_MS = 86_400_000


def _other_time(entry: Mapping[str, Any], runs: Sequence[Run]) -> str | None:
    """Why it is unknown that the machine was then as in the runs; None if it was measured within a month of them."""
    measured = number(entry.get("time_ms"))
    if measured is None or not _list(entry.get("hosts")):
        return "does not say when and on which hosts it was measured"
    times = [number(run.record.events[place].get("time_ms")) for run in runs for place in (0, -1)]
    known = [time for time in times if time is not None]
    apart = max(min(known) - measured, measured - max(known)) / _DAY_MS if known else 0
    if apart <= _MOST_DAYS:
        return None
    return f"measured {apart:,.0f} days {'before' if measured < min(known) else 'after'} the runs, at most {_MOST_DAYS}"


def _of_scaling(metric: Metric, sources: Sources, benchmark: str | None, nodes: int) -> Measured:
    runs = [run for run in sources.evidence.runs if benchmark in (None, run.result.benchmark)]
    if sources.require.verified:
        runs = [run for run in runs if run.submission]
    if sources.scaling:
        found = _efficiency_of_file(sources.scaling, nodes, runs, verified=sources.require.verified)
    else:
        try:
            found = _efficiency_of_runs(runs, nodes)
        except HpcAi500Error as error:
            return Measured(missing=sources.evidence.with_submissions(error))
    return found or Measured(missing=f"not measured on {count(nodes, 'node')}: {metric.remedy}")


# ----------------------------------------------------------------------------------------------------
# Parallel efficiency, from runs on several numbers of nodes or from `hpcai500 scale --json`.


_ROUNDING = 1e-9

Points = Sequence[Mapping[str, Any]]


def _efficiency_of_runs(runs: Sequence[Run], nodes: int) -> Measured | None:
    """Weak scaling from the smallest number of processes to the largest on `nodes` nodes; None if one is missing.

    Rates are those of the training steps (results/scaling.py). Runs of the smallest number are averaged, without the
    highest and the lowest of three or more.

    Raises:
        UsageError: the runs are not comparable.
        RecordError, WrongAnswerError: a record is inconsistent.
    """
    there = [run for run in runs if run.result.nodes == nodes]
    if not there:
        return None
    processes, base = max(run.result.world_size for run in there), min(run.result.world_size for run in runs)
    if base == processes:
        return None
    many = [run for run in there if run.result.world_size == processes]
    few = [run for run in runs if run.result.world_size == base]
    base_rate = summarise([_rates(run, many[0])[0] for run in few]).mean
    rates = [_rates(few[0], run)[1] for run in many]
    values = (weak_scaling({base: base_rate, processes: rate})[processes].parallel_efficiency for rate in rates)
    return Measured(tuple(values), tuple(run.name for run in many), nodes, note=_against(base))


def _efficiency_of_file(source: GivenFile, nodes: int, runs: Sequence[Run], *, verified: bool) -> Measured | None:
    """Return the efficiency in a file of `hpcai500 scale --json`; None if it lacks `nodes`.

    Nodes, processes and efficiency are computed again if the records are found. They are evidence if each record is one
    of `runs`, whose copy is then read; otherwise they rest on the file's signer. If only `verified` runs count, the
    signer must be trusted.

    Raises:
        RecordError: it is not JSON.
        UsageError: it is not such a file, or a prediction.
        WrongAnswerError: it contradicts its records.
    """
    path, points = source.path, _points(source)
    doubt = _doubt(path, points, runs)
    there = [point for point in points if point["nodes"] == nodes]
    if not there:
        return None
    point, base = max(there, key=lambda one: one["processes"]), min(points, key=lambda one: one["processes"])
    if point is base:
        return None
    value = number(point.get("parallel_efficiency"))
    if value is None:
        raise UsageError(f"{path}: the point of {count(nodes, 'node')} has no parallel_efficiency")
    if verified and doubt and source.doubt:
        return Measured(
            missing=f"{path}: {doubt}, but the contract requires verified runs: give submissions instead of --scaling"
        )
    notes = [_against(base["processes"]), *([f"as {path} says: {doubt}", source.doubt] if doubt else [])]
    return Measured((value,), (str(path),), nodes, note="; ".join(filter(None, notes)))


def _against(processes: int) -> str:
    return f"against {processes:,} {'process' if processes == 1 else 'processes'}"


def _rates(few: Run, many: Run) -> tuple[float, float]:
    one, other = read_scaling([few.record.path, many.record.path]).points
    return one.images_per_second, other.images_per_second


def _points(source: GivenFile) -> Points:
    path, document = source.path, source.tables()
    if document.get("kind") == "prediction":
        raise UsageError(f"{path}: a prediction, not a measurement: hpcai500 scale … --json > scale.json")
    points = tables(document.get("points"))
    if not points or document.get("error") or any(not _is_point(point) for point in points):
        error = f": {document['error']}" if document.get("error") else ""
        raise UsageError(f"{path}: not a result of `hpcai500 scale --json`{error}")
    return points


def _is_point(point: Mapping[str, Any]) -> bool:
    return all(isinstance(point.get(key), int) and point[key] > 0 for key in ("nodes", "processes"))


def _doubt(path: Path, points: Points, runs: Sequence[Run]) -> str:
    """Return why the records of the points are not evidence; empty if each is one of `runs`.

    Raises:
        WrongAnswerError: a point contradicts its record.
    """
    by_head = {run.head: run.record.path for run in runs}
    found = [_found(path, point.get("record")) for point in points]
    # A checked run is read where it was checked: a copy next to the file may change meanwhile.
    proven = [folder and by_head.get(_head(folder)) for folder in found]
    records = [one or other for one, other in zip(proven, found, strict=True)]
    here = [(point, record) for point, record in zip(points, records, strict=True) if record]
    for point, record in here:
        result = score_record(record)
        _require_own(origin_of_run(read_record(record).system), f"{path}: {record}", runs)
        _check(path, point, {"nodes": result.nodes, "processes": result.world_size})
    if len(here) < len(points):
        return "the records that it names were not found"
    if len(here) > 1:
        computed = {one.processes: one.parallel_efficiency for one in read_scaling([one for _, one in here]).points}
        for point, _ in here:
            _check(path, point, {"parallel_efficiency": computed[point["processes"]]})
    return "" if all(proven) else "the records that it names are not among the given runs"


def _check(path: Path, point: Mapping[str, Any], expected: Mapping[str, float]) -> None:
    for key, value in expected.items():
        stated = number(point.get(key))
        if stated is None or not math.isclose(stated, value, rel_tol=_ROUNDING):
            what = f"{key.replace('_', ' ')} of {count(point['processes'], 'process', 'processes')} is {point.get(key)}"
            raise WrongAnswerError(f"{path}: {what}, but the records give {value}")


def _head(folder: Path) -> str:
    """Return the hash of the record's last event, which covers all events; empty if it cannot be read."""
    try:
        return last_hash((folder / "events.jsonl").read_bytes())
    except OSError:
        return ""


def _found(path: Path, name: object) -> Path | None:
    """Find the record that a point names: by its path, or relative to the file."""
    if not isinstance(name, str) or "\0" in name:
        return None
    needed = ("DONE", "events.jsonl")
    folders = (Path(name), path.parent / name)
    return next((folder for folder in folders if all((folder / file).is_file() for file in needed)), None)


# ----------------------------------------------------------------------------------------------------
# The verdict on each criterion.


_TOO_EFFICIENT = (
    f"above {MOST_EFFICIENCY:g}, which adding processes cannot cause: the baseline runs may have been slowed"
)


def _more_runs(confidence: float) -> str:
    return f"the limit is within the {confidence * 100:g} % confidence interval: make more runs"


@dataclass(frozen=True)
class CriterionResult:
    """One criterion and its verdict. Numbers are in the metric's own unit; unknown is None.

    Attributes:
        unit: of the contract.
        statistic: how the values of the runs became one; None if there is only one.
        measured: the number that is compared with the limits.
        margin: distance from the nearest limit, as a fraction of the reference; negative outside of the limits.
        interval: confidence interval of `measured`.
        values: of each run, with their `sources`.
        is_bound: whether `measured` is a lower bound.
        verdict: `missing` if the number is unknown; it counts as a failure. `undecided` if the true value may be on
            either side of a limit, and the contract requires a confidence, or only a lower bound is known.
    """

    name: str
    metric: Metric
    limits: Limits
    unit: str | None
    statistic: Statistic | None
    clause: str
    nodes: int | None
    verdict: Verdict
    note: str
    measured: float | None = None
    margin: float | None = None
    interval: tuple[float, float] | None = None
    values: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    is_bound: bool = False

    def document(self) -> dict[str, Any]:
        """Return the JSON document, with plain numbers in the metric's own unit."""
        return {
            "name": self.name,
            "metric": self.metric.name,
            "reference": self.limits.reference,
            "lower": self.limits.lower,
            "upper": self.limits.upper,
            "lowest": self.limits.lowest,
            "highest": self.limits.highest,
            "measured": self.measured,
            "is_bound": self.is_bound,
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


def check_criteria(criteria: Sequence[CriterionTable], sources: Sources) -> list[CriterionResult]:
    """Compare each of `criteria` with the numbers in `sources`.

    Raises:
        UsageError: a file is wrong, or a criterion does not say which benchmark it means.
        WrongAnswerError: a file contradicts its records.
    """
    return [
        check(
            one.name, one.subject, one.limits, one.over_runs, measure(one, sources), unit=one.unit, clause=one.clause,
            confidence=sources.require.confidence,
        )
        for one in criteria
    ]  # fmt: skip


def check(
    name: str,
    metric: Metric,
    limits: Limits,
    statistic: Statistic | None,
    measured: Measured,
    *,
    unit: str | None = None,
    clause: str = "",
    confidence: float | None = None,
) -> CriterionResult:
    """Compare one number with its limits.

    The interval is evidence, with a note if it contains a limit. It decides if the contract requires a `confidence`.
    """
    if measured.missing:
        return CriterionResult(
            name, metric, limits, unit, statistic, clause, measured.nodes, "missing", measured.missing
        )
    value = compared_value(measured.values, statistic or "every", limits)
    level = confidence or CONFIDENCE
    of_runs = statistic if statistic and metric.kind != "micro" and not measured.is_bound else "every"
    positive = metric.unit not in ("fraction", "1")
    interval = measured.interval or compared_interval(measured.values, of_runs, level, positive=positive)
    notes = [measured.note] if measured.note else []
    if metric.kind == "efficiency" and value > MOST_EFFICIENCY:
        notes.append(_TOO_EFFICIENT)
    is_crossed = interval is not None and limits.within(*interval)
    if is_crossed:
        notes.append(_more_runs(level))
    least = least_of_interval(of_runs, level)
    is_small = of_runs != "every" and len(measured.values) < least
    if is_small and (metric.kind == "run" or confidence):
        notes.append(f"too few runs for an interval: {len(measured.values)}, {least} are needed")
    is_open = confidence is not None and (is_crossed or (of_runs != "every" and interval is None))
    # A longer time without an interruption would raise the bound.
    is_open |= measured.is_bound and limits.lowest is not None and value < limits.lowest and not limits.holds(value)
    return CriterionResult(
        name, metric, limits, unit, statistic, clause, measured.nodes,
        verdict=_verdict(limits.holds(value), is_open, is_small),
        note="; ".join(notes),
        measured=value,
        margin=limits.margin(value),
        interval=interval,
        values=measured.values,
        sources=measured.sources,
        is_bound=measured.is_bound,
    )  # fmt: skip


def _verdict(holds: bool, is_open: bool, is_small: bool) -> Verdict:
    """A number that is missed in too few runs for an interval stays missed: more runs are the vendor's to make."""
    if is_open and not (is_small and not holds):
        return "undecided"
    return "pass" if holds else "fail"


# ----------------------------------------------------------------------------------------------------
# Comparison with older runs of the same work: after an upgrade, nothing may be much worse.


DEFAULT_RATIO = 0.90


def check_against_baseline(old: Path, evidence: Evidence, ratio: float) -> list[CriterionResult]:
    """Compare every metric that the old runs have: the new mean must be at least `ratio` times as good as the old one.

    Raises:
        UsageError: there is no old run, it did other work, or it is one of the new runs.
        WrongAnswerError: an old record is changed or incomplete.
    """
    before = read_evidence([old])
    if before.faults:
        fault = before.faults[0]
        raise WrongAnswerError(f"--baseline: {fault.path}: {fault.problem}")
    if not before.runs:
        raise UsageError(f"--baseline {old}: a campaign without a finished run; see `hpcai500 campaign status {old}`")
    heads = {run.head for run in before.runs}
    if same := next((run for run in evidence.runs if run.head in heads), None):
        raise UsageError(f"--baseline {old}: contains {same.name}, which is one of the new runs: give older runs")
    runs = evidence.on_nodes(before.runs[0].result.benchmark, before.runs[0].result.nodes)
    if problem := next(_other_work(before.runs, runs or evidence.runs), None):
        raise UsageError(f"--baseline {old}: not the same work: {problem}")
    if not runs:
        # There is no complete record at all, which the requirement `records` reports.
        return []
    is_loss = before.runs[0].result.quality.better == "lower"
    metrics = (LOSS if is_loss and metric.name == QUALITY else metric for metric in COMPARED)
    return [result for metric in metrics if (result := _compare(metric, before.runs, runs, ratio))]


def _compare(metric: Metric, before: Sequence[Run], runs: Sequence[Run], ratio: float) -> CriterionResult | None:
    """Return None if the old runs lack the metric."""
    old = of_each(metric, before)
    reference = None if old.missing else summarise(old.values).mean
    if not reference or reference < 0:
        return None
    lower, upper = (ratio - 1, None) if metric.better == "higher" else (None, 1 / ratio - 1)
    name = f"{metric.name} against the baseline"
    return check(name, metric, Limits(reference, lower, upper), "mean", of_each(metric, runs))


def _other_work(before: Sequence[Run], runs: Sequence[Run]) -> Iterator[str]:
    """Yield the differences from the first old run that make runs incomparable."""
    old = before[0]
    for new in (*before[1:], *runs):
        for what, of in _WORK.items():
            left, right = of(old), of(new)
            if left != right:
                field, left, right = _first_difference(left, right)
                yield f"{what}{field}: {short(left, 60)} in {old.name}, {short(right, 60)} in {new.name}"


def _first_difference(left: Any, right: Any) -> tuple[str, Any, Any]:
    """The name and the values of the first field that differs between two tables; other values as they are."""
    if not (isinstance(left, Mapping) and isinstance(right, Mapping)):
        return "", left, right
    name = next(name for name in {**left, **right} if left.get(name) != right.get(name))
    return f", {name}", left.get(name), right.get(name)


_WORK: dict[str, Callable[[Run], Any]] = {
    "benchmark": lambda run: run.result.benchmark,
    "problem (layer 9)": lambda run: run.record.tables.get("problem"),
    "ranks": lambda run: run.result.world_size,
    "nodes": lambda run: run.result.nodes,
    "data": lambda run: last_value(run.record, "dataset").get("fingerprint"),
    "input": lambda run: run.result.input,
    "count of operations": lambda run: run.result.flops_convention,
}


# ----------------------------------------------------------------------------------------------------
# The slowest node, and how it differs from the others.


# Nodes within a hundredth of the median count as equally fast.
_ALIKE = 0.01
_MOST_DIFFERENCES = 4


@dataclass(frozen=True)
class WorstNode:
    """The slowest node over all runs, and how it differs from the others.

    Attributes:
        slowest: None if no run of several nodes or ranks recorded their own times.
        of: what was compared: `node`, or `rank` if there is only one node.
        differences: fields in which it differs from most nodes, a sentence each.
        ceilings: results of the slowest ranks in matrix products and copies, a sentence each.
    """

    slowest: SlowestNode | None
    of: str
    differences: tuple[str, ...]
    ceilings: tuple[str, ...]

    @property
    def sentence(self) -> str:
        found = self.slowest
        if found is None:
            return "unknown: no run of several nodes or ranks recorded their own times"
        of = count(found.nodes, self.of)
        in_runs = f"slowest in {found.slowest_in} of {count(found.runs, 'run')}"
        if found.straggler_in:
            in_runs += f", a straggler in {found.straggler_in}"
        if found.slowdown <= _ALIKE:
            return f"none: the own times of {of} agree within 1 % ({short(found.name, 60)}: {in_runs})"
        return (
            f"{short(found.name, 60)}: {share(found.slowdown)} slower than the median of the others ({of}, {in_runs})"
        )

    def document(self) -> dict[str, Any]:
        return {
            "of": self.of,
            **(asdict(self.slowest) if self.slowest else dict.fromkeys(SlowestNode.__annotations__)),
            "differences": list(self.differences),
            "ceilings": list(self.ceilings),
        }


def worst_node(runs: Sequence[Run], files: Sequence[CeilingFile] = ()) -> WorstNode:
    """Find the node, or the rank of a single node, with the longest own time: waiting for input and computing."""
    of = "node" if any(run.result.nodes > 1 for run in runs) else "rank"
    slowest = slowest_node([own for run in runs if (own := own_seconds(run.record, of))])
    name = slowest.name if slowest and of == "node" else None
    return WorstNode(
        slowest, of, tuple(_differences(runs, name))[:_MOST_DIFFERENCES] if name else (), tuple(_ceilings(runs, files))
    )


def own_seconds(record: Record, of: str) -> dict[str, float]:
    """Own seconds of a step by node or rank; a node has those of its slowest rank, for which all others wait."""
    own: dict[str, float] = {}
    for rank, seconds in _of_ranks(record):
        host = short(rank.get("host", "?"), 200)
        name = host if of == "node" else f"rank {rank.get('rank')} on {host}"
        own[name] = max(seconds, own.get(name, 0.0))
    return own


def _of_ranks(record: Record) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield each rank with its median step from the event `communication`, else its mean step from `steps`."""
    timed = [
        (rank, number(rank.get("own_seconds"))) for rank in tables(last_value(record, "communication").get("ranks"))
    ]
    if timed and all(seconds is not None for _, seconds in timed):
        yield from ((rank, seconds) for rank, seconds in timed if seconds is not None)
        return
    for rank in tables(last_value(record, "steps").get("ranks")):
        steps, wait, compute = (number(rank.get(key)) for key in ("steps", "data_wait_seconds", "compute_seconds"))
        if steps and wait is not None and compute is not None:
            yield rank, (wait + compute) / steps


def _differences(runs: Sequence[Run], host: str) -> Iterator[str]:
    """Yield the differences of `host` from most nodes, in the newest run that has it."""
    for run in reversed(runs):
        nodes = tables(run.record.system.get("nodes"))
        if any(str(node.get("host")) == host for node in nodes):
            found = node_differences(nodes)
            yield from (short(one.sentence(), 200) for one in found if host in one.outliers and one.matters)
            return


def _ceilings(runs: Sequence[Run], files: Sequence[CeilingFile]) -> Iterator[str]:
    """Yield the slowest rank in the matrix products of all runs, and in the files of `hpcai500 micro`."""
    found = [share for run in runs if (share := _share_of_mean(run.record))]
    if found:
        least, host = min(found)
        where = f" on {short(host, 60)}" if host else ""
        yield f"matrix products in the runs: the slowest rank{where} reaches {least:.1%} of the mean rank"
    for file in files:
        yield from (f"{file.source.path}: {short(text, 160)}" for text in file.slow_ranks())


def _share_of_mean(record: Record) -> tuple[float, str] | None:
    """Return the slowest rank's result in the event `ceilings`, as a share of the mean rank's, and its host."""
    value = last_value(record, "ceilings")
    together, slowest, ranks = (number(value.get(key)) for key in ("flops", "slowest_flops", "ranks"))
    if not together or slowest is None or ranks is None or ranks < 2:
        return None
    return slowest / (together / ranks), str(value.get("slowest_host") or "")
