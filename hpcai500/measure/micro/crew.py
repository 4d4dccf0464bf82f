"""The ranks that measure at once, and what their measurements make together."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from hpcai500.comm.base import Communicator
from hpcai500.errors import WrongAnswerError
from hpcai500.measure.repetition import Effort, Timing, repeat

Thing = TypeVar("Thing")
_CPUS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Crew:
    """All ranks of the job, each with its device.

    Attributes:
        world: to talk with the others.
        device: of this rank.
        cores: that this rank may use.
        say: tells people a line, on one rank.
        doing: is told what is measured now.
    """

    world: Communicator
    device: torch.device
    cores: int
    say: Callable[[str], None]
    doing: Callable[[str], None] = lambda what: None

    @property
    def nodes(self) -> int:
        """Hosts of the job."""
        return len(set(self.world.hosts))

    @property
    def ranks_here(self) -> int:
        """Ranks of this host."""
        return self.world.hosts.count(self.world.hosts[self.world.rank])

    def gather(self, thing: Thing) -> list[Thing]:
        """Everyone's `thing`, by rank."""
        return self.world.gather_objects(thing)

    def time(self, run: Callable[[], float], effort: Effort) -> Timing:
        """Time `run` while all others do the same: they begin together, and none ends before all have enough."""
        self.world.barrier()
        return repeat(run, effort, agree=lambda wanted: max(self.gather(wanted)))

    def require(self, what: str, complaint: str | None) -> None:
        """Make sure, on all ranks alike, that none of them has a complaint about `what`.

        Raises:
            WrongAnswerError: one has: which, and what it is.
        """
        for rank, one in enumerate(self.gather(complaint)):
            if one:
                raise WrongAnswerError(
                    f"{what}: rank {rank} on host {self.world.hosts[rank]} has a wrong result: {one}; do not trust "
                    "that machine, or the library that it uses, before this is understood"
                )

    def entry(self, unit: str, amount: float, timing: Timing, share: float = 1.0, **more: Any) -> dict[str, Any]:
        """What the document says of a measurement that all ranks made at once.

        Args:
            unit: of `amount` a second.
            amount: that this rank did in each repetition.
            timing: of this rank.
            share: factor of the sum of all ranks' rates, which makes the value.
            more: further keys.
        """
        low, high = timing.interval
        mine = amount / timing.median, amount / high, amount / low, timing.spread, len(timing.seconds)
        rates, lows, highs, spreads, repetitions = zip(*self.gather(mine), strict=True)
        slowest = min(range(len(rates)), key=lambda rank: rates[rank])
        return {
            "value": share * sum(rates),
            "unit": unit,
            "interval": [share * sum(lows), share * sum(highs)],
            "spread": max(spreads),
            "repetitions": min(repetitions),
            "accelerators": self.world.size,
            "nodes": self.nodes,
            "device": device_name(self.device),
            "per_rank": list(rates),
            "slowest": {"rank": slowest, "host": self.world.hosts[slowest], "value": rates[slowest]},
            **more,
        }


def device_name(device: torch.device, cpus: Path = _CPUS) -> str:
    """What its maker calls it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    names: Sequence[str] = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
