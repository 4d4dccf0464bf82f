"""Evidence that a run leaves in its record: equal replicas, the devices' ceilings, and where the time of steps went.

It is collected on every rank and merged by rank 0. Functions that communicate are called by all ranks of a group
together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.timeline import (
    ClockAlignment,
    SpanSink,
    Timeline,
    align_clocks,
    chrome_trace,
    rank_summary,
    rank_trace,
)
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.reporting import EpochTally, Journal
from hpcai500.errors import RunError
from hpcai500.layers import Communication
from hpcai500.measure.host import NetworkCounters, read_counters
from hpcai500.measure.preflight import Product, measure_product
from hpcai500.measure.timing import Effort
from hpcai500.methodology.communication import RankTraffic, check_traffic, merge
from hpcai500.methodology.integrity import why_not_idle
from hpcai500.system.limits import CpuQuota, cpu_quota
from hpcai500.system.process import processor_times

# ----------------------------------------------------------------------------------------------------
# Replicas of the model: made equal at the start, compared after each epoch.


def make_equal(model: nn.Module, ranks: Communicator, root: int = 0) -> None:
    """Give every rank the weights and buffers of rank `root`."""
    tensors = _tensors(model)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        of_type = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.flatten() for tensor in of_type])
        ranks.broadcast(flat, root)
        for tensor, value in zip(of_type, flat.split([tensor.numel() for tensor in of_type]), strict=True):
            tensor.copy_(value.view(tensor.shape))


def average_statistics(model: nn.Module, ranks: Communicator) -> None:
    """Replace running statistics by their mean over all ranks, as each rank has seen other samples.

    Otherwise the quality would depend on which rank evaluates a sample.
    """
    statistics = running_statistics(model)
    if ranks.size == 1 or not statistics:
        return
    flat = torch.cat([buffer.flatten().double() for buffer in statistics])
    ranks.all_reduce(flat)
    flat /= ranks.size
    for buffer, mean in zip(statistics, flat.split([buffer.numel() for buffer in statistics]), strict=True):
        buffer.copy_(mean.view_as(buffer))


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers that differ between ranks within an epoch."""
    # A DTensor is the same on all ranks, or in parts.
    return [one for one in model.buffers() if one.is_floating_point() and not hasattr(one, "to_local")]


# Each rank's copy of its running statistics, by rank; only the first rank has those of all.
Statistics = list[list[Tensor]]


def collect_statistics(model: nn.Module, world: Communicator) -> Statistics:
    """Each rank's statistics, on the first rank; nothing on the others, and of one rank, whose model has them."""
    if world.size == 1:
        return []
    # Copies: the mean will take their place.
    mine, found = [one.detach().to("cpu", copy=True) for one in running_statistics(model)], []
    for rank in range(world.size):
        one = world.broadcast_object(mine if rank == world.rank else None, rank)
        if world.rank == 0:
            found.append(one)
    return found


def spread_statistics(found: Statistics, world: Communicator) -> list[Tensor]:
    """This rank's statistics of those on the first rank; none if they are of another number of ranks."""
    mine: list[Tensor] = []
    if world.broadcast_object(len(found)) == world.size:
        for rank in range(world.size):
            one = world.broadcast_object(found[rank] if found else None)
            mine = one if rank == world.rank else mine
    return mine


def require_equal(model: nn.Module, ranks: Communicator) -> str | None:
    """Require that all ranks hold the same weights, bit for bit; returns their digest (hex), None for one rank.

    Raises:
        RunError: they differ: an all-reduce gave different results, or a rank's memory or arithmetic is faulty.
    """
    if ranks.size == 1:
        return None
    digests = ranks.gather_objects(digest_of(_tensors(model)))
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        named = ", ".join(f"{rank} on {ranks.hosts[rank]}" for rank in different[:8])
        raise RunError(
            f"the replicas differ: the weights of rank {named} are not those of rank 0: an all-reduce gave different "
            "results, or a host is faulty; try another communication.backend, then check the host"
        )
    return f"{digests[0]:016x}"


# Of a tensor at once: their positions take eight times as much memory.
_DIGESTED_BYTES = 1 << 20


def digest_of(tensors: Iterable[Tensor]) -> int:
    """Sum of all bytes, each weighted by its position, modulo 2**64: cheap, and computed on the weights' device."""
    digest = 0
    for tensor in tensors:
        content = tensor.detach().flatten().view(torch.uint8)
        weighted = torch.zeros((), dtype=torch.int64, device=content.device)
        for start in range(0, content.numel(), _DIGESTED_BYTES):
            piece = content[start : start + _DIGESTED_BYTES]
            places = torch.arange(start + 1, start + 1 + piece.numel(), dtype=torch.int64, device=piece.device)
            weighted += places.mul_(piece).sum()
        digest = (digest * 1_000_003 + int(weighted)) % 2**64
    return digest


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


# ----------------------------------------------------------------------------------------------------
# Ceilings of the devices, measured in the job itself: no step of it can really be faster.


# Smaller than doctor's, because every run pays for it; even half of a device's speed would expose a forged rate.
_SIDES = {"cpu": 1024, "cuda": 4096}
_EFFORT = Effort(width=0.05, least=3, seconds=0.3, warm_up=1)


@dataclass(frozen=True)
class Ceilings:
    """The value of the event `ceilings`: a matrix product in the run's precision, on all ranks at the same time.

    Attributes:
        side: of the square matrices.
        flops: sum over ranks of the fastest repetition, in floating-point operations a second.
        slowest_flops: of the slowest rank.
        spread: of the repetitions' times, interquartile range / median; the largest of the ranks.
        waited: share of a rank's time on CPUs that its threads waited for one, because others used it; the largest of
            the ranks. None for a device, or if the kernel does not count it.
        seconds: that the measurement took.
    """

    precision: str
    side: int
    flops: float
    slowest_flops: float
    slowest_host: str
    ranks: int
    spread: float
    waited: float | None
    seconds: float


def measure_ceilings(world: Communicator, device: torch.device, precision: str) -> Ceilings:
    """Multiply matrices on all ranks at the same time; once more if other programs disturbed it, and the faster counts.

    Raises:
        RunError: a rank computes wrong results.
    """
    first = _measure_ceilings(world, device, precision)
    if why_not_idle(first.spread, first.waited) is None:
        return first
    again = _measure_ceilings(world, device, precision)
    took = round(first.seconds + again.seconds, 6)
    is_idle = why_not_idle(again.spread, again.waited) is None
    best = again if is_idle or again.flops > first.flops else first
    return replace(best, seconds=took)


def _measure_ceilings(world: Communicator, device: torch.device, precision: str) -> Ceilings:
    start = time.perf_counter()
    world.barrier()
    before = processor_times()
    mine = measure_product(device, precision, _SIDES[device.type], effort=_EFFORT)
    waited = before.share_waited(processor_times()) if device.type == "cpu" else None
    gathered: list[tuple[Product, float | None]] = world.gather_objects((mine, waited))
    products = [product for product, _ in gathered]
    waits = [one for _, one in gathered if one is not None]
    for rank, product in enumerate(products):
        if product.wrong_rows:
            raise RunError(
                f"rank {rank} on {world.hosts[rank]} computes wrong results: {product.wrong_rows} of "
                f"{product.side} rows of an integer matrix product; exclude that host and test its memory and device "
                "(`hpcai500 self-test` there gives details)"
            )
    slowest = min(range(world.size), key=lambda rank: products[rank].best_flops)
    return Ceilings(
        precision=precision,
        side=mine.side,
        flops=math.fsum(product.best_flops for product in products),
        slowest_flops=products[slowest].best_flops,
        slowest_host=world.hosts[slowest],
        ranks=world.size,
        spread=max(product.spread for product in products),
        waited=max(waits) if len(waits) == world.size else None,
        seconds=round(time.perf_counter() - start, 6),
    )


# ----------------------------------------------------------------------------------------------------
# Where the time of training steps went, rank by rank, since this process started.


EVENT = "steps"


@dataclass
class Attribution:
    """Sums over the steps of this rank, in seconds.

    The rest (`other_seconds` of the event) is the loop itself: progress, agreement on signals, bookkeeping.
    """

    steps: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    communication_wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._quota: CpuQuota | None = None
        self._throttled: dict[str, float] = {}

    def begin(self) -> None:
        """Start counting how often this rank's CPU quota stops it, if it has one."""
        self._quota = cpu_quota()
        self._throttled = self._quota.throttling() if self._quota else {}

    def add(self, epoch: EpochTally) -> None:
        """Add an epoch, or the finished part of it."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(epoch, name))

    def conclude(self, journal: Journal, ranks: Ranks) -> None:
        """Write the event `steps`.

        Raises:
            RunError: a rank is gone, or the disk is full.
        """
        world = ranks.world
        parts = (self.data_wait_seconds, self.compute_seconds, self.communication_wait_seconds)
        row = {
            "rank": world.rank,
            "host": world.hosts[world.rank],
            "steps": self.steps,
            **{name: round(getattr(self, name), 6) for name in self.__dataclass_fields__ if name != "steps"},
            "other_seconds": round(max(0.0, self.seconds - sum(parts)), 6),
            **self._throttling(),
        }
        journal.event(EVENT, {"ranks": world.gather_objects(row)})

    def _throttling(self) -> dict[str, dict[str, float]]:
        if self._quota is None:
            return {}
        now = self._quota.throttling()
        found = {name: round(value - self._throttled[name], 6) for name, value in now.items()}
        counts = {name: int(found[name]) for name in ("periods", "throttled_periods")}
        return {"throttling": {"quota_cores": self._quota.cores, **found, **counts}}


# ----------------------------------------------------------------------------------------------------
# The cost of communication.


TRACE = "communication.json"


class Costs:
    """Collects the timeline of this rank for the record; with one rank it collects nothing.

    Rank r has stage r modulo `stages` of the model. Of a `sharded` model, only steps are timed.
    """

    def __init__(self, settings: Communication, ranks: Ranks, stages: int = 1, *, sharded: bool = False) -> None:
        self._ranks, self._stages, self._sharded = ranks, stages, sharded
        self._timeline = Timeline(settings.trace_steps) if ranks.world.size > 1 else None
        self._counters: NetworkCounters | None = None
        self._clocks: ClockAlignment | None = None

    @property
    def sink(self) -> SpanSink | None:
        """Receives the times of steps and all-reduces."""
        return self._timeline

    def begin(self) -> None:
        """Align clocks, and start counting network traffic.

        Raises:
            RunError: a rank is gone.
        """
        if self._timeline:
            self._clocks = align_clocks(self._ranks.world)
            self._counters = read_counters()

    def conclude(
        self, journal: Journal, between_hosts_bytes_per_step: int, between_stages_bytes_per_step: int = 0
    ) -> None:
        """Write the event `communication` and the trace.

        Of the bytes that this rank sends, `between_hosts_bytes_per_step` go to other hosts, and
        `between_stages_bytes_per_step`, which are not gradients' all-reduces, to other stages of its model.

        Raises:
            RunError: a rank is gone, or the disk is full.
        """
        if self._timeline is None:
            return
        world = self._ranks.world
        rank, host = world.rank, world.hosts[world.rank]
        traffic = self._traffic(host, between_hosts_bytes_per_step, between_stages_bytes_per_step)
        summaries = world.gather_objects(rank_summary(self._timeline, rank, host))
        costs = merge(summaries, self._stages, sharded=self._sharded)
        checked = check_traffic(world.gather_objects(traffic), world.library)
        journal.event("communication", {**costs, "network": checked})
        assert self._clocks
        traces = world.gather_objects(rank_trace(self._timeline, rank, host, world.size))
        if any(trace.buckets for trace in traces):
            journal.write_trace(TRACE, chrome_trace(traces, self._clocks))

    def _traffic(self, host: str, between_hosts_bytes_per_step: int, between_stages_bytes_per_step: int) -> RankTraffic:
        assert self._timeline
        assert self._counters
        steps = self._timeline.steps.count
        return {
            "host": host,
            "sent_bytes": None if self._sharded else self._timeline.sent_bytes + between_stages_bytes_per_step * steps,
            "between_hosts_bytes": None if self._sharded else between_hosts_bytes_per_step * steps,
            "counters": read_counters().since(self._counters),
        }
