"""What communication costs a run: collected on every rank, merged by rank 0, written into the record."""

from __future__ import annotations

from hpcai500.comm.timeline.chrome_trace import chrome_trace, rank_trace
from hpcai500.comm.timeline.clocks import ClockAlignment, align_clocks
from hpcai500.comm.timeline.recorder import Timeline
from hpcai500.comm.timeline.spans import SpanSink
from hpcai500.comm.timeline.summary import rank_summary
from hpcai500.engine.journal import Journal
from hpcai500.engine.ranks import Ranks
from hpcai500.layers import Communication
from hpcai500.measure.network import NetworkCounters, read_counters
from hpcai500.methodology.communication import merge
from hpcai500.methodology.traffic import RankTraffic, check_traffic

TRACE = "communication.json"


class Costs:
    """The timeline of this rank, and its way into the record. Nothing is collected where there is one rank.

    Args:
        settings: how ranks talk.
        ranks: all processes.
        stages: parts of the model; rank r has part r modulo that.
    """

    def __init__(self, settings: Communication, ranks: Ranks, stages: int = 1) -> None:
        self._ranks, self._stages = ranks, stages
        self._timeline = Timeline(settings.trace_steps) if ranks.world.size > 1 else None
        self._counters: NetworkCounters | None = None
        self._clocks: ClockAlignment | None = None

    @property
    def sink(self) -> SpanSink | None:
        """Where the times of steps and sums are told."""
        return self._timeline

    def begin(self) -> None:
        """Training begins: what the network carries from now on is the run's; all ranks together.

        Raises:
            RunError: a rank is gone.
        """
        if self._timeline:
            self._clocks = align_clocks(self._ranks.world)
            self._counters = read_counters()

    def conclude(
        self, journal: Journal, between_hosts_bytes_per_step: int, between_stages_bytes_per_step: int = 0
    ) -> None:
        """Write the event `communication` and the trace; all ranks together.

        Args:
            journal: of this rank.
            between_hosts_bytes_per_step: the part of what this rank sends that goes to other hosts.
            between_stages_bytes_per_step: what it sends besides sums of gradients: to other stages of its model.

        Raises:
            RunError: a rank is gone, or the disk is full.
        """
        if self._timeline is None:
            return
        world = self._ranks.world
        rank, host = world.rank, world.hosts[world.rank]
        traffic = self._traffic(host, between_hosts_bytes_per_step, between_stages_bytes_per_step)
        costs = merge(world.gather_objects(rank_summary(self._timeline, rank, host)), self._stages)
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
            "sent_bytes": self._timeline.sent_bytes + between_stages_bytes_per_step * steps,
            "between_hosts_bytes": between_hosts_bytes_per_step * steps,
            "counters": read_counters().since(self._counters),
        }
