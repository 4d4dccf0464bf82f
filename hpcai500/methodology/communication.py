"""Communication in a job: stages of all-reduces, stragglers, checks of traffic, and a model of the link.

`merge` makes the value of the record's event `communication` from a summary of each rank; docs/timeline.md defines
every number. A job merges, `hpcai500 timeline` prints.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from hpcai500.errors import UsageError
from hpcai500.methodology.statistics import Reservoir, weighted_quantile

# ----------------------------------------------------------------------------------------------------
# The stages of an all-reduce (V2.0 Table 12) and the time of each, from sums and samples of bounded size.


# Named as in V2.0 Table 12, in order of time.
STAGES = (
    "negotiation",
    "wait_for_data",
    "wait_for_other_data",
    "queuing",
    "memcpy_in",
    "all_reduce",
    "memcpy_out",
)
# Per bucket: its median is then within a few per cent, and a job has the samples of all buckets together.
_SAMPLES = 128


class StageTimes(TypedDict):
    """Seconds that a stage takes in one all-reduce, over all all-reduces."""

    mean_seconds: float
    median_seconds: float
    p95_seconds: float


# None if the stage does not exist, or nothing was measured.
StageTable = dict[str, StageTimes | None]


class StageTally:
    """Adds up the times of the stages of all-reduces, for any number of them.

    `stages` are the columns, some of `STAGES`; `samples` all-reduces are kept for quantiles. `count` all-reduces were
    added, and `sums` are the seconds of each stage over all of them.
    """

    def __init__(self, stages: Sequence[str], samples: int = _SAMPLES) -> None:
        self.stages = tuple(stages)
        self.count = 0
        self.sums = [0.0] * len(self.stages)
        self.samples: Reservoir[tuple[float, ...]] = Reservoir(samples)

    def add(self, seconds: tuple[float, ...]) -> None:
        """Add one all-reduce: the seconds of each stage, in the order of `stages`."""
        self.count += 1
        sums = self.sums
        for column, value in enumerate(seconds):
            sums[column] += value
        self.samples.add(seconds)

    def means(self) -> dict[str, float]:
        return {name: total / self.count for name, total in zip(self.stages, self.sums, strict=True)}


def stage_table(tallies: Sequence[StageTally]) -> StageTable:
    """Each stage over the all-reduces of all `tallies`, each all-reduce with the same weight.

    The mean is exact. Median and 95th percentile come from the samples, and are exact while all of them are kept.
    """
    used = [tally for tally in tallies if tally.count]
    return {name: _times(name, used) for name in STAGES}


def _times(name: str, tallies: Sequence[StageTally]) -> StageTimes | None:
    having = [(tally, tally.stages.index(name)) for tally in tallies if name in tally.stages]
    if not having:
        return None
    weighted = sorted(_weighted(having))
    return {
        "mean_seconds": sum(t.sums[column] for t, column in having) / sum(t.count for t, _ in having),
        "median_seconds": weighted_quantile(weighted, 0.5),
        "p95_seconds": weighted_quantile(weighted, 0.95),
    }


def _weighted(having: Sequence[tuple[StageTally, int]]) -> Iterator[tuple[float, float]]:
    """(seconds, number of all-reduces that the sample stands for) of every sample."""
    for tally, column in having:
        for sample in tally.samples:
            yield sample[column], tally.count / len(tally.samples.kept)


# ----------------------------------------------------------------------------------------------------
# Stragglers: ranks that delay the others, found by the time that each needs without waiting for others.


# A rank is slow if it exceeds the others by a tenth and by more than chance explains.
LEAST_SLOWDOWN = 1.1
DEVIATIONS = 3.0
# Times this, the median absolute deviation of normally distributed values estimates their standard deviation.
_PER_DEVIATION = 1.4826
# The median of fewer steps says little about a rank.
LEAST_STEPS = 5


def stragglers(own_seconds: Sequence[float]) -> list[int]:
    """Positions of the ranks that are slow.

    `own_seconds` has, for each rank, the median over steps of its time for waiting for input and computing. Waiting for
    other ranks is excluded: in a synchronous step it is long on every rank except the slow one.

    A rank is a straggler if its time is above 1.1 times the median of all other ranks and above that median plus three
    of their standard deviations (estimated by the median absolute deviation, which a few slow ranks do not change). Of
    two ranks, or where all others agree exactly, the first condition decides. A single rank is no straggler.
    """
    ordered = sorted(own_seconds)
    return [rank for rank, seconds in enumerate(own_seconds) if _is_slow(seconds, ordered)]


def _is_slow(seconds: float, ordered: Sequence[float]) -> bool:
    if len(ordered) < 2:
        return False
    place = bisect_left(ordered, seconds)
    middle = median_without(ordered, place)
    if seconds <= LEAST_SLOWDOWN * middle:
        return False
    # Computed only for the few ranks that pass the first condition: it takes a pass over all ranks.
    deviation = statistics.median(abs(other - middle) for index, other in enumerate(ordered) if index != place)
    return seconds > middle + DEVIATIONS * _PER_DEVIATION * deviation


def median_without(ordered: Sequence[float], place: int) -> float:
    """Median of two or more sorted values without the one at `place`."""
    rest = len(ordered) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


# ----------------------------------------------------------------------------------------------------
# Whether the bytes that ranks report as sent agree with the network counters.


# Frame and TCP headers add 4.6 % at an MTU of 1500 and 0.1 % on loopback; acknowledgements and heartbeats add some.
LEAST_RATIO, MOST_RATIO = 0.95, 1.15


class CounterDifference(TypedDict):
    """By how much a host's counters rose; `sent_bytes` and `received_bytes` by interface, without loopback."""

    loopback_sent_bytes: int | None
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    restarted: list[str]


class RankTraffic(TypedDict):
    """What one rank reports to rank 0: its own count since its host's counters were read, and by how much they rose.

    `between_hosts_bytes` is the part of `sent_bytes` for ranks on other hosts; None if only the library knows it. Both
    are None for a sharded model, whose bytes are not counted.
    """

    host: str
    sent_bytes: int | None
    between_hosts_bytes: int | None
    counters: CounterDifference


def check_traffic(ranks: Sequence[RankTraffic], library: str) -> dict[str, Any]:
    """Compare counted bytes with the counters of all hosts; plain JSON for the event `communication`.

    On one host gradients are summed in shared memory, and nothing can be compared. On several hosts Gloo sends all
    by TCP, within a host over loopback: its whole count is compared with all interfaces. Other libraries use shared
    memory within a host: their bytes between hosts are compared with the interfaces except loopback. Counters
    include all other traffic of the hosts, so that a ratio above 1.15 need not be a wrong count. One below 0.95
    means that bytes took another path, or were not sent.

    Args:
        ranks: all ranks, in order.
        library: what moves the bytes (`Communicator.library`).

    Returns:
        `counted_bytes`, `counter_bytes`, their `ratio` (counters / count; None if they cannot be compared), `over`
        which interfaces they were compared, and a `verdict` in words.
    """
    hosts = {rank["host"]: rank["counters"] for rank in reversed(ranks)}
    counts = [rank["sent_bytes"] for rank in ranks]
    sent = [count for count in counts if count is not None]
    if len(sent) < len(counts):
        return _unknown("not comparable: the bytes of sharded models are not counted")
    if len(hosts) == 1:
        return _unknown("not comparable: on one host, gradients are summed in shared memory")
    if "gloo" in library.lower():
        counted = sum(sent)
        return _compared("loopback and network", counted, hosts, with_loopback=True)
    # A rank that is alone on its host sends everything to other hosts.
    are_alone = len(hosts) == len(ranks)
    between = [rank["sent_bytes"] if are_alone else rank["between_hosts_bytes"] for rank in ranks]
    known = [amount for amount in between if amount is not None]
    if len(known) < len(between):
        return _unknown(f"not comparable: only {library} knows how many bytes stay within a host")
    return _compared("network", sum(known), hosts, with_loopback=False)


def _compared(over: str, counted: int, hosts: dict[str, CounterDifference], *, with_loopback: bool) -> dict[str, Any]:
    for host, counters in hosts.items():
        if counters["restarted"]:
            return _unknown(f"not comparable: {counters['restarted'][0]} of {host} was restarted during the run")
    if not counted:
        return _unknown("not comparable: no bytes were counted")
    loopback = sum(counters["loopback_sent_bytes"] or 0 for counters in hosts.values()) if with_loopback else 0
    seen = loopback + sum(sum(counters["sent_bytes"].values()) for counters in hosts.values())
    ratio = seen / counted
    return {
        "counted_bytes": counted,
        "counter_bytes": seen,
        "ratio": round(ratio, 4),
        "over": over,
        "verdict": _verdict(ratio),
    }


def _verdict(ratio: float) -> str:
    if ratio < LEAST_RATIO:
        return "the counters saw less: bytes went over an interface that is not counted, or were not sent"
    if ratio > MOST_RATIO:
        return "the counters saw more: other traffic of these hosts (data, file systems), or bytes sent again"
    return "the counters agree"


def _unknown(verdict: str) -> dict[str, Any]:
    return {"counted_bytes": None, "counter_bytes": None, "ratio": None, "over": None, "verdict": verdict}


# ----------------------------------------------------------------------------------------------------
# From a summary of each rank to the value of the event `communication`.


class StepMedians(TypedDict):
    """Medians over the steps of one rank, in seconds; `own_seconds` is data wait plus compute of the same step."""

    step_seconds: float
    data_wait_seconds: float
    compute_seconds: float
    communication_wait_seconds: float
    own_seconds: float


class BucketSummary(TypedDict):
    """One bucket on one rank: bytes and mean seconds of each stage of one all-reduce."""

    bucket: int
    gradient_bytes: float
    sent_bytes: float
    stages: dict[str, float]


class RankSummary(TypedDict):
    """What one rank reports to rank 0, as plain data. Sums are over `steps` steps.

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


def merge(summaries: Sequence[RankSummary], stages: int = 1, *, sharded: bool = False) -> dict[str, Any]:
    """The value of the event `communication`: all ranks together, as plain JSON; unknown is None.

    `stages` and `buckets` are means over ranks, and `bytes_per_step` is that of one rank (mean over ranks).
    `stragglers` is None for one rank, or after too few steps.

    In a pipeline of `stages` stages, rank r has stage r modulo `stages`. Only ranks of the same stage have the same
    work and are compared for stragglers. `overlap` is None there, because a rank also waits for other stages.

    For a `sharded` model torch communicates within passes and reports neither times nor bytes: all numbers of
    communication are None, and so are stragglers, because each rank's computing includes its waiting.
    """
    if sharded:
        return with_stragglers(_with_unknown_communication(merge(summaries)))
    ordered = sorted(summaries, key=lambda summary: summary["rank"])
    value = {
        "steps": min(summary["steps"] for summary in ordered),
        "all_reduces": min(summary["all_reduces"] for summary in ordered),
        "overlap": _mean(_hidden(summary) for summary in ordered) if stages == 1 else None,
        "bytes_per_step": {
            "gradient": _mean(_share(s["gradient_bytes"], s["steps"]) for s in ordered),
            "sent": _mean(_share(s["sent_bytes"], s["steps"]) for s in ordered),
        },
        "stages": {name: _mean_times([summary["stages"][name] for summary in ordered]) for name in STAGES},
        "buckets": _merge_buckets(ordered),
        "ranks": [_row(summary, position % stages) for position, summary in enumerate(ordered)],
    }
    return with_stragglers(value)


def with_stragglers(value: Mapping[str, Any]) -> dict[str, Any]:
    """`value` of the event `communication`, with the stragglers that the medians of its ranks show.

    The list in a record is that of its writer; what is shown or judged is computed from the medians.
    """
    ranks = [rank for rank in value.get("ranks") or () if isinstance(rank, Mapping)]
    times = [rank.get("own_seconds") for rank in ranks]
    known = [time for time in times if isinstance(time, int | float) and math.isfinite(time)]
    steps = [rank.get("steps") for rank in ranks]
    enough = len(known) == len(ranks) > 1 and all(isinstance(one, int) and one >= LEAST_STEPS for one in steps)
    slow: set[int] = set()
    for stage in {rank.get("stage", 0) for rank in ranks} if enough else ():
        alike = [position for position, rank in enumerate(ranks) if rank.get("stage", 0) == stage]
        slow.update(alike[place] for place in stragglers([known[position] for position in alike]))
    return {
        **value,
        "ranks": [{**rank, "straggler": position in slow} for position, rank in enumerate(ranks)],
        "stragglers": [rank_name(ranks[position]) for position in sorted(slow)] if enough else None,
    }


def _with_unknown_communication(value: dict[str, Any]) -> dict[str, Any]:
    row = dict.fromkeys(("compute_seconds", "communication_wait_seconds", "own_seconds"))
    row |= dict.fromkeys(("all_reduce_seconds", "sent_bytes"))
    return {
        **value,
        **dict.fromkeys(("all_reduces", "overlap")),
        "bytes_per_step": dict.fromkeys(value["bytes_per_step"]),
        "ranks": [{**rank, **row} for rank in value["ranks"]],
    }


def rank_name(rank: Mapping[str, Any]) -> str:
    """Its name in messages: `rank 3 on HOST`."""
    return f"rank {rank['rank']} on {rank['host']}"


def _row(summary: RankSummary, stage: int) -> dict[str, Any]:
    medians: Mapping[str, Any] = summary["medians"] or dict.fromkeys(StepMedians.__annotations__)
    return {
        "rank": summary["rank"],
        "host": summary["host"],
        "stage": stage,
        "steps": summary["steps"],
        **{name: _rounded(value) for name, value in medians.items()},
        "all_reduce_seconds": _rounded(_share(summary["all_reduce_seconds"], summary["steps"])),
        "sent_bytes": _share(summary["sent_bytes"], summary["steps"]),
    }


def _hidden(summary: RankSummary) -> float | None:
    """The share of the all-reduce time in which the training loop did not wait."""
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
    """The mean if all values are known, else None."""
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(found) else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 9)


# ----------------------------------------------------------------------------------------------------
# The cost of a collective: its bandwidths; and of an all-reduce, latency and bandwidth of a link fitted to its times.


_ROUNDS = 100
# Huber's constant: 95 % as efficient as least squares where errors are normal. The scale of errors is their median
# absolute deviation times 1.4826, which is one standard deviation of a normal distribution.
_HUBER = 1.345
_NORMAL = 1.4826
# Errors below this are rounding, not noise.
_EXACT = 1e-9
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class RingCost:
    """A link between neighbours of a ring, by Hockney's model: latency + bytes / bandwidth."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, message_bytes: float, ranks: int) -> float:
        """Seconds of a ring all-reduce of `message_bytes` over `ranks` (Thakur et al. 2005; Patarasuk and Yuan 2009).

        2 (n - 1) steps, in each of which every rank sends one n-th of the message to its neighbour:

            t(m) = 2 (n - 1) latency + 2 (n - 1) / n * m / bandwidth
        """
        steps = _steps(ranks)
        return steps * self.latency_seconds + steps / ranks * message_bytes / self.bytes_per_second


def algorithm_bandwidth(message_bytes: float, seconds: float) -> float:
    """Bytes of the message per second, as a caller sees it."""
    return message_bytes / seconds


Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "exchange"]


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bytes that cross the link of each rank, for each byte of the message, by the best algorithm on n ranks.

    As in the NCCL tests (doc/PERFORMANCE.md). The message of an all-gather is what each rank has at the end, that of a
    reduce-scatter or an all-to-all what each rank has at the start: n parts, of which n - 1 must come from, or go to,
    others. An all-reduce is a reduce-scatter and an all-gather. In a broadcast the root must send the whole message
    once, and in an exchange each of two ranks sends it once.

    Raises:
        UsageError: fewer than two ranks.
    """
    steps = _steps(ranks)
    match collective:
        case "all-reduce":
            return steps / ranks
        case "all-gather" | "reduce-scatter" | "all-to-all":
            return steps / 2 / ranks
        case "broadcast" | "exchange":
            return 1.0


def bus_bandwidth(message_bytes: float, seconds: float, ranks: int, collective: Collective = "all-reduce") -> float:
    """Bytes per second over the link of each rank, whatever the algorithm: `bus_factor` x the algorithm bandwidth.

    It can be compared with the rate of a link, and does not depend on the number of ranks.
    """
    return algorithm_bandwidth(message_bytes, seconds) * bus_factor(collective, ranks)


def fit_ring(ranks: int, measured: Sequence[tuple[float, float]]) -> RingCost:
    """The link whose ring comes closest to `measured` (bytes, seconds) in relative error.

    Iteratively reweighted least squares of errors relative to the model, so that a message of a hundred bytes counts
    as much as one of a hundred megabytes. Huber's weights limit the influence of single sizes, at which a library uses
    another algorithm or other load disturbed the measurement. Neither latency nor the time of a byte can be below 0.

    Raises:
        UsageError: fewer than two sizes, times that are not positive, or times that do not grow with size.
    """
    if len({size for size, _ in measured}) < 2:
        raise UsageError(f"all-reduce: expected two message sizes or more, got {len(measured)}")
    for size, seconds in measured:
        if size < 0 or not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"all-reduce: expected a positive time, got {seconds} s for {size} bytes")
    steps = _steps(ranks)
    terms = [(steps, steps / ranks * size, seconds) for size, seconds in measured]
    # Before there is a model, errors are relative to the measured times.
    latency, slope = _solve([(1 / seconds**2, x, y, seconds) for x, y, seconds in terms])
    for _ in range(_ROUNDS):
        # An error cannot be relative to a model that predicts 0 s.
        models = [max(latency * x + slope * y, _LEAST_SHARE * seconds) for x, y, seconds in terms]
        errors = [abs(seconds - model) / model for (_, _, seconds), model in zip(terms, models, strict=True)]
        cut = _HUBER * max(_NORMAL * statistics.median(errors), _EXACT)
        weights = [min(1.0, cut / error) if error else 1.0 for error in errors]
        latency, slope = _solve([(w / model**2, *term) for w, model, term in zip(weights, models, terms, strict=True)])
    if slope <= 0:
        raise UsageError("all-reduce: its time does not grow with the message, so its bandwidth is unknown")
    return RingCost(latency, 1 / slope)


def fit_error(cost: RingCost, ranks: int, measured: Sequence[tuple[float, float]]) -> float:
    """The median of |predicted - measured| / measured."""
    return statistics.median(abs(cost.seconds(size, ranks) - seconds) / seconds for size, seconds in measured)


def _steps(ranks: int) -> int:
    if ranks < 2:
        raise UsageError(f"a collective: expected two ranks or more, got {ranks}")
    return 2 * (ranks - 1)


def _solve(rows: Sequence[tuple[float, float, float, float]]) -> tuple[float, float]:
    """Latency and seconds a byte, both at least 0, that minimise sum w (t - latency x - slope y)^2 over `rows`."""
    sum_xx = math.fsum(w * x * x for w, x, _, _ in rows)
    sum_xy = math.fsum(w * x * y for w, x, y, _ in rows)
    sum_yy = math.fsum(w * y * y for w, _, y, _ in rows)
    sum_xt = math.fsum(w * x * t for w, x, _, t in rows)
    sum_yt = math.fsum(w * y * t for w, _, y, t in rows)
    determinant = sum_xx * sum_yy - sum_xy * sum_xy
    if determinant > 0:
        latency = (sum_xt * sum_yy - sum_yt * sum_xy) / determinant
        slope = (sum_yt * sum_xx - sum_xt * sum_xy) / determinant
        if latency >= 0 and slope >= 0:
            return latency, slope
    # The constrained optimum is at the better corner: no latency, or no cost of a byte.
    corners = [(0.0, sum_yt / sum_yy if sum_yy else 0.0), (sum_xt / sum_xx, 0.0)]
    return min(
        corners, key=lambda corner: math.fsum(w * (t - corner[0] * x - corner[1] * y) ** 2 for w, x, y, t in rows)
    )
