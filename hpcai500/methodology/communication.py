"""What communication cost a job: from a summary of each rank to the value of the record's event `communication`.

docs/timeline.md defines every number. Both halves use this module: a job merges, `hpcai500 timeline` prints.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from hpcai500.methodology.stages import STAGES, StageTable, StageTimes
from hpcai500.methodology.stragglers import LEAST_STEPS, stragglers


class StepMedians(TypedDict):
    """Medians over the steps of one rank, in seconds; `own_seconds` is data wait and compute of the same step."""

    step_seconds: float
    data_wait_seconds: float
    compute_seconds: float
    communication_wait_seconds: float
    own_seconds: float


class BucketSummary(TypedDict):
    """One bucket on one rank: bytes and mean seconds of one all-reduce."""

    bucket: int
    gradient_bytes: float
    sent_bytes: float
    stages: dict[str, float]


class RankSummary(TypedDict):
    """What one rank tells the first one: plain data. Sums are over `steps` steps.

    `all_reduce_seconds` is the time in which at least one bucket was being summed.
    """

    rank: int
    host: str
    steps: int
    step_seconds: float
    communication_wait_seconds: float
    all_reduce_seconds: float
    gradient_bytes: int
    sent_bytes: int
    all_reduces: int
    medians: StepMedians | None
    stages: StageTable
    buckets: list[BucketSummary]


def merge(summaries: Sequence[RankSummary], stages: int = 1) -> dict[str, Any]:
    """The value of the event `communication`: all ranks together, as plain JSON; unknown is None.

    `stages` and `buckets` are means over ranks, `bytes_per_step` is of one rank (mean over ranks), and
    `communication_fraction` the mean over ranks of exposed wait / step time. `stragglers` is None for one rank, or
    after too few steps.

    Where a model is cut, rank r has part r modulo `stages`: only ranks with the same part have the same to do, and what
    a loop waits for is not sums alone, so that `overlap` is None.
    """
    ordered = sorted(summaries, key=lambda summary: summary["rank"])
    medians = [summary["medians"] for summary in ordered]
    known = [median["own_seconds"] for median in medians if median is not None]
    enough = len(known) == len(ordered) > 1 and all(summary["steps"] >= LEAST_STEPS for summary in ordered)
    alike = [known[stage::stages] for stage in range(stages)] if enough else []
    slow = sorted(place * stages + stage for stage, times in enumerate(alike) for place in stragglers(times))
    return {
        "steps": min(summary["steps"] for summary in ordered),
        "all_reduces": min(summary["all_reduces"] for summary in ordered),
        "communication_fraction": _mean(_share(s["communication_wait_seconds"], s["step_seconds"]) for s in ordered),
        "overlap": _mean(_hidden(summary) for summary in ordered) if stages == 1 else None,
        "bytes_per_step": {
            "gradient": _mean(_share(s["gradient_bytes"], s["steps"]) for s in ordered),
            "sent": _mean(_share(s["sent_bytes"], s["steps"]) for s in ordered),
        },
        "stages": {name: _mean_times([summary["stages"][name] for summary in ordered]) for name in STAGES},
        "buckets": _merge_buckets(ordered),
        "ranks": [_row(summary, position in slow) for position, summary in enumerate(ordered)],
        "stragglers": [rank_name(ordered[position]) for position in slow] if enough else None,
    }


def rank_name(rank: Mapping[str, Any]) -> str:
    """What people call a rank."""
    return f"rank {rank['rank']} on {rank['host']}"


def _row(summary: RankSummary, is_straggler: bool) -> dict[str, Any]:
    """One line of the straggler table."""
    medians: Mapping[str, Any] = summary["medians"] or dict.fromkeys(StepMedians.__annotations__)
    return {
        "rank": summary["rank"],
        "host": summary["host"],
        "steps": summary["steps"],
        **{name: _rounded(value) for name, value in medians.items()},
        "all_reduce_seconds": _rounded(_share(summary["all_reduce_seconds"], summary["steps"])),
        "sent_bytes": _share(summary["sent_bytes"], summary["steps"]),
        "straggler": is_straggler,
    }


def _hidden(summary: RankSummary) -> float | None:
    """Share of the all-reduce time in which the training loop did not wait."""
    exposed = _share(summary["communication_wait_seconds"], summary["all_reduce_seconds"])
    return None if exposed is None else max(0.0, 1.0 - exposed)


def _mean_times(rows: Sequence[StageTimes | None]) -> StageTimes | None:
    known = [row for row in rows if row is not None]
    if not known:
        return None
    return {
        "mean_seconds": round(statistics.fmean(row["mean_seconds"] for row in known), 9),
        "median_seconds": round(statistics.fmean(row["median_seconds"] for row in known), 9),
        "p95_seconds": round(statistics.fmean(row["p95_seconds"] for row in known), 9),
    }


def _merge_buckets(summaries: Iterable[RankSummary]) -> list[dict[str, Any]]:
    by_number: dict[int, list[BucketSummary]] = defaultdict(list)
    for summary in summaries:
        for bucket in summary["buckets"]:
            by_number[bucket["bucket"]].append(bucket)
    return [_mean_bucket(number, same) for number, same in sorted(by_number.items())]


def _mean_bucket(number: int, same: Sequence[BucketSummary]) -> dict[str, Any]:
    stages = {name: statistics.fmean(one["stages"][name] for one in same) for name in same[0]["stages"]}
    return {
        "bucket": number,
        "gradient_bytes": statistics.fmean(one["gradient_bytes"] for one in same),
        "sent_bytes": statistics.fmean(one["sent_bytes"] for one in same),
        "stages": {name: _rounded(seconds) for name, seconds in stages.items()},
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known, if all is."""
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(found) else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 9)
