"""Which node of a system is the slowest, and what is different about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcai500.chain import iterate
from hpcai500.methodology.node_differences import node_differences
from hpcai500.methodology.slowest_node import SlowestNode, slowest_node
from hpcai500.record import Record
from hpcai500.results.acceptance.ceilings import CeilingFile
from hpcai500.results.acceptance.evidence import Run
from hpcai500.results.report.words import count, number, share, short, table, tables

# Within a hundredth of the median, nodes are alike for all that matters.
_ALIKE = 0.01
_MOST_DIFFERENCES = 4


@dataclass(frozen=True)
class WorstNode:
    """The slowest node over all runs, and what the records know of it besides.

    Attributes:
        slowest: which, and by how much; None where no run of several nodes or ranks told.
        of: what was compared: `node`, or `rank` where there is only one node.
        differences: fields in which it is unlike most nodes, a sentence each.
        ceilings: what the slowest ranks reached in products and copies, a sentence each.
    """

    slowest: SlowestNode | None
    of: str
    differences: tuple[str, ...]
    ceilings: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """In one line."""
        found = self.slowest
        if found is None:
            return "unknown: no run of several nodes or ranks tells the time that each needs for itself"
        of = count(found.nodes, self.of)
        in_runs = f"slowest in {found.slowest_in} of {count(found.runs, 'run')}"
        if found.straggler_in:
            in_runs += f", a straggler in {found.straggler_in}"
        if found.slowdown <= _ALIKE:
            return f"none: the {of} need the same time for themselves within 1 % ({short(found.name, 60)}: {in_runs})"
        return (
            f"{short(found.name, 60)}: {share(found.slowdown)} slower than the median of the others ({of}, {in_runs})"
        )

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "of": self.of,
            **(asdict(self.slowest) if self.slowest else dict.fromkeys(SlowestNode.__annotations__)),
            "differences": list(self.differences),
            "ceilings": list(self.ceilings),
        }


def worst_node(runs: Sequence[Run], files: Sequence[CeilingFile] = ()) -> WorstNode:
    """The node, or rank of the only node, that needs the longest for itself: waiting for input and computing."""
    of = "node" if any(run.result.nodes > 1 for run in runs) else "rank"
    slowest = slowest_node([own for run in runs if (own := _own_seconds(run.record, of))])
    name = slowest.name if slowest and of == "node" else None
    return WorstNode(
        slowest, of, tuple(_differences(runs, name))[:_MOST_DIFFERENCES] if name else (), tuple(_ceilings(runs, files))
    )


def _own_seconds(record: Record, of: str) -> dict[str, float]:
    """Seconds of a step by node or rank: of a node's ranks the slowest, by which all others wait."""
    own: dict[str, float] = {}
    for rank, seconds in _of_ranks(record):
        host = short(rank.get("host", "?"), 200)
        name = host if of == "node" else f"rank {rank.get('rank')} on {host}"
        own[name] = max(seconds, own.get(name, 0.0))
    return own


def _of_ranks(record: Record) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Each rank with the median over its steps, of `communication`; else with the mean, of `steps`."""
    timed = [(rank, number(rank.get("own_seconds"))) for rank in _ranks(record, "communication")]
    if timed and all(seconds is not None for _, seconds in timed):
        yield from ((rank, seconds) for rank, seconds in timed if seconds is not None)
        return
    for rank in _ranks(record, "steps"):
        steps, wait, compute = (number(rank.get(key)) for key in ("steps", "data_wait_seconds", "compute_seconds"))
        if steps and wait is not None and compute is not None:
            yield rank, (wait + compute) / steps


def _ranks(record: Record, key: str) -> list[Mapping[str, Any]]:
    last = next(iterate(reversed(record.events), key), None)
    return tables(table(last["value"]).get("ranks")) if last else []


def _differences(runs: Sequence[Run], host: str) -> Iterator[str]:
    """What of `host` is unlike most nodes in the newest run that has it."""
    for run in reversed(runs):
        nodes = tables(run.record.system.get("nodes"))
        if any(str(node.get("host")) == host for node in nodes):
            found = node_differences(nodes)
            yield from (short(one.sentence(), 200) for one in found if host in one.outliers and one.matters)
            return


def _ceilings(runs: Sequence[Run], files: Sequence[CeilingFile]) -> Iterator[str]:
    """The slowest rank of the matrix products of all runs, and of the files of `hpcai500 micro`."""
    found = [share for run in runs if (share := _share_of_mean(run.record))]
    if found:
        least, host = min(found)
        where = f" on {short(host, 60)}" if host else ""
        yield f"products in the runs: the slowest rank{where} reaches {least:.1%} of the mean rank"
    for file in files:
        yield from (f"{file.path}: {short(said, 160)}" for said in file.slow_ranks())


def _share_of_mean(record: Record) -> tuple[float, str] | None:
    """What the slowest rank reached in the event `ceilings`, as a share of the mean rank, and its host."""
    last = next(iterate(reversed(record.events), "ceilings"), None)
    value = table(last["value"]) if last else {}
    together, slowest, ranks = (number(value.get(key)) for key in ("flops", "slowest_flops", "ranks"))
    if not together or slowest is None or ranks is None or ranks < 2:
        return None
    return slowest / (together / ranks), str(value.get("slowest_host") or "")
