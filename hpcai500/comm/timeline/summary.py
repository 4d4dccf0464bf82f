"""What one rank's timeline amounts to, as plain data that is gathered on the first rank."""

from __future__ import annotations

import statistics

from hpcai500.comm.timeline.recorder import StepTotals, Timeline
from hpcai500.methodology.communication import RankSummary, StepMedians
from hpcai500.methodology.stages import stage_table


def rank_summary(timeline: Timeline, rank: int, host: str) -> RankSummary:
    """The summary of `rank`, for `Communicator.gather_objects`, then `methodology.communication.merge`."""
    with timeline.lock:
        buckets = dict(sorted(timeline.buckets.items()))
        return {
            "rank": rank,
            "host": host,
            "steps": timeline.steps.count,
            "step_seconds": timeline.steps.seconds,
            "communication_wait_seconds": timeline.steps.communication_wait_seconds,
            "all_reduce_seconds": timeline.all_reduce_seconds,
            "gradient_bytes": sum(bucket.gradient_bytes for bucket in buckets.values()),
            "sent_bytes": sum(bucket.sent_bytes for bucket in buckets.values()),
            "all_reduces": sum(bucket.stages.count for bucket in buckets.values()),
            "medians": _medians(timeline.steps),
            "stages": stage_table([bucket.stages for bucket in buckets.values()]),
            "buckets": [
                {
                    "bucket": number,
                    "gradient_bytes": bucket.gradient_bytes / bucket.stages.count,
                    "sent_bytes": bucket.sent_bytes / bucket.stages.count,
                    "stages": bucket.stages.means(),
                }
                for number, bucket in buckets.items()
            ],
        }


def _medians(steps: StepTotals) -> StepMedians | None:
    if not steps.count:
        return None
    seconds, data, compute, wait = (statistics.median(column) for column in zip(*steps.samples, strict=True))
    return {
        "step_seconds": seconds,
        "data_wait_seconds": data,
        "compute_seconds": compute,
        "communication_wait_seconds": wait,
        "own_seconds": statistics.median(sample[1] + sample[2] for sample in steps.samples),
    }
