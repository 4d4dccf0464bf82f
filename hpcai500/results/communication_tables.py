"""The tables of V2.0 section 7.3.2 as people read them: what stages take, and which rank holds the others up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcai500.methodology.stages import STAGES, StageTable

_LABELS = {
    "negotiation": "negotiation",
    "wait_for_data": "wait for data",
    "wait_for_other_data": "wait for other data",
    "queuing": "queuing",
    "memcpy_in": "memcpy in",
    "all_reduce": "all-reduce",
    "memcpy_out": "memcpy out",
}
_COLUMNS = {
    "step ms": "step_seconds",
    "data wait": "data_wait_seconds",
    "compute": "compute_seconds",
    "comm wait": "communication_wait_seconds",
    "own": "own_seconds",
}
# Of a larger job, those that matter are shown: the slowest.
_MOST_RANKS = 16
_UNKNOWN = "-"


def stage_lines(stages: StageTable) -> Iterator[str]:
    """V2.0 Table 12: milliseconds of each stage in one all-reduce, and its share of their sum."""
    means = {name: times["mean_seconds"] for name, times in stages.items() if times is not None}
    total = sum(means.values())
    yield f"{'stage':20} {'mean ms':>10} {'median ms':>10} {'p95 ms':>10} {'share':>7}"
    for name in STAGES:
        times = stages.get(name)
        if times is None:
            yield f"{_LABELS[name]:20} {_UNKNOWN:>10} {_UNKNOWN:>10} {_UNKNOWN:>10} {_UNKNOWN:>7}"
            continue
        numbers = [times["mean_seconds"], times["median_seconds"], times["p95_seconds"]]
        share = f"{means[name] / total:.1%}" if total else _UNKNOWN
        yield f"{_LABELS[name]:20} " + " ".join(f"{_milliseconds(seconds):>10}" for seconds in numbers) + f" {share:>7}"
    yield f"{'sum':20} {_milliseconds(total):>10}"


def straggler_lines(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Medians over the steps of each rank in milliseconds, stragglers marked; of many ranks the slowest."""
    shown = sorted(ranks, key=lambda rank: -(rank["own_seconds"] or 0.0))[:_MOST_RANKS]
    width = max([len("host"), *(len(str(rank["host"])) for rank in shown)])
    titles = " ".join(f"{title:>10}" for title in _COLUMNS)
    yield f"{'rank':>6}  {'host':{width}} {titles}"
    for rank in sorted(shown, key=lambda rank: rank["rank"]):
        times = " ".join(f"{_milliseconds(rank[name]):>10}" for name in _COLUMNS.values())
        mark = "  STRAGGLER" if rank["straggler"] else ""
        yield f"{rank['rank']:>6}  {rank['host']:{width}} {times}{mark}"
    if len(ranks) > len(shown):
        yield f"the {len(shown)} slowest of {len(ranks)} ranks; --json has all of them"


def _milliseconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{seconds * 1000:.3f}"
