"""Where the time of all training steps went, rank by rank, since this process began."""

from __future__ import annotations

from dataclasses import dataclass

from hpcai500.engine.journal import Journal
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.tally import EpochTally

EVENT = "steps"


@dataclass
class Attribution:
    """Sums over the steps of this rank, in seconds.

    What is in none of the three parts (`other_seconds`) is the loop itself: progress, agreeing on signals, bookkeeping.
    """

    steps: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    communication_wait_seconds: float = 0.0

    def add(self, epoch: EpochTally) -> None:
        """One epoch, or what was done of it."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(epoch, name))

    def conclude(self, journal: Journal, ranks: Ranks) -> None:
        """Write the event `steps`; all ranks together.

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
        }
        journal.event(EVENT, {"ranks": world.gather_objects(row)})
