"""What was measured of a contracted value: a number for each run, or what to do to get one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.errors import HpcAi500Error, UsageError
from hpcai500.methodology.trials import summarise
from hpcai500.results.acceptance.ceilings import CeilingFile
from hpcai500.results.acceptance.efficiency import Efficiencies, efficiencies_of_file, efficiencies_of_runs
from hpcai500.results.acceptance.evidence import Evidence, Run
from hpcai500.results.acceptance.metrics import Metric, value_of
from hpcai500.results.acceptance.spec import CriterionTable
from hpcai500.results.given_files import GivenFile
from hpcai500.results.report.words import count


@dataclass(frozen=True)
class Sources:
    """Where numbers come from.

    Attributes:
        evidence: the runs.
        ceilings: files of `hpcai500 micro`.
        scaling: a file of `hpcai500 scale --json`, and who stands for it.
        nodes: that the contract is about, where it says so.
        verified: whether only runs of verified submissions count.
    """

    evidence: Evidence
    ceilings: tuple[CeilingFile, ...] = ()
    scaling: GivenFile | None = None
    nodes: int | None = None
    verified: bool = False


@dataclass(frozen=True)
class Measured:
    """The numbers for one criterion.

    Attributes:
        values: in the metric's own unit: of each run, or the only one.
        sources: where each comes from.
        nodes: of the runs; None where none was found, or the source does not say.
        interval: a 95 % confidence interval that the source itself tells.
        note: what the reader must know of them.
        missing: why there are none, and what to do; None where all are known.
    """

    values: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    nodes: int | None = None
    interval: tuple[float, float] | None = None
    note: str = ""
    missing: str | None = None


def measure(criterion: CriterionTable, sources: Sources) -> Measured:
    """What `sources` say of the metric of `criterion`.

    Raises:
        UsageError: a file is not what it should be, or it is open which benchmark is meant.
    """
    metric = criterion.subject
    if metric.kind == "micro":
        return _of_ceilings(metric, sources)
    evidence = sources.evidence
    if criterion.benchmark is None and len(evidence.benchmarks) > 1:
        named = " and ".join(evidence.benchmarks)
        raise UsageError(
            f"{criterion.name}: there are records of {named}: say which is meant, benchmark = "
            f'"{evidence.benchmarks[0]}", in each of the criteria'
        )
    nodes = criterion.nodes or sources.nodes
    if metric.kind == "efficiency":
        return _of_scaling(metric, sources, criterion.benchmark, nodes or 0)
    runs = evidence.on_nodes(criterion.benchmark, nodes)
    if not runs:
        of = f" of {criterion.benchmark}" if criterion.benchmark else ""
        on = f" on {count(nodes, 'node')}" if nodes else ""
        return Measured(missing=f"no finished run{of}{on}: make them, and name their records")
    return _of_runs(metric, runs)


def of_each(metric: Metric, runs: Sequence[Run]) -> Measured:
    """The metric of each of `runs`; one that does not know it makes it missing, because unknown is never good."""
    found = [value_of(metric)(run.result) for run in runs]
    nodes = runs[0].result.nodes
    known = tuple(value for value in found if value is not None)
    if len(known) == len(runs):
        return Measured(known, tuple(run.name for run in runs), nodes)
    unknown = next(run for run, value in zip(runs, found, strict=True) if value is None)
    missing = f"unknown in {len(runs) - len(known)} of {count(len(runs), 'run')}, as in {unknown.name}"
    why = unknown.result.power_note if metric.unit in ("J", "W", "FLOPS/W") else None
    return Measured(nodes=nodes, missing=": ".join(part for part in (missing, why, metric.remedy) if part))


def _of_runs(metric: Metric, runs: Sequence[Run]) -> Measured:
    each = of_each(metric, runs)
    if metric.kind == "run" or each.missing:
        return each
    variation = summarise(each.values).variation
    if variation is None:
        return Measured(nodes=each.nodes, missing=f"{count(len(runs), 'run')}: {metric.remedy}")
    return Measured((variation,), (f"{len(runs)} runs",), each.nodes)


def _of_ceilings(metric: Metric, sources: Sources) -> Measured:
    found = [one for file in sources.ceilings if (one := file.ceiling(metric))]
    if not found:
        return Measured(missing=f"not measured: {metric.remedy}")
    wrong = next((one for one in found if not one.verified), None)
    if wrong:
        return Measured(missing=f"{wrong.source.path}: what was timed is not marked as verified: measure again")
    other = next((one for one in found if sources.nodes and one.nodes != sources.nodes), None)
    if other:
        on = "an unknown number of nodes" if other.nodes is None else count(other.nodes, "node")
        return Measured(
            missing=f"{other.source.path}: measured on {on}, but the contract requires {sources.nodes}: {metric.remedy}"
        )
    interval = found[0].interval if len(found) == 1 else None
    return Measured(
        tuple(one.value for one in found),
        tuple(str(one.source.path) for one in found),
        found[0].nodes,
        interval,
        "; ".join(one.source.doubt for one in found if one.source.doubt),
    )


def _of_scaling(metric: Metric, sources: Sources, benchmark: str | None, nodes: int) -> Measured:
    runs = [run for run in sources.evidence.runs if benchmark in (None, run.result.benchmark)]
    if sources.verified:
        runs = [run for run in runs if sources.evidence.is_verified(run)]
    if sources.scaling:
        found = efficiencies_of_file(sources.scaling, nodes, runs)
        if found and found.word and sources.verified:
            return Measured(
                missing=f"{found.word}, and the contract demands verified runs: give their submissions, no --scaling"
            )
    else:
        try:
            found = efficiencies_of_runs(runs, nodes)
        except HpcAi500Error as error:
            return Measured(missing=str(error))
    if found is None:
        return Measured(missing=f"not measured on {count(nodes, 'node')}: {metric.remedy}")
    return Measured(found.values, found.sources, nodes, note=_against(found))


def _against(found: Efficiencies) -> str:
    processes = "process" if found.base_processes == 1 else "processes"
    return "; ".join(part for part in (f"against {found.base_processes:,} {processes}", found.note) if part)
