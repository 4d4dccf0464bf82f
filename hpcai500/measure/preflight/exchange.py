"""All-reduces over all ranks: whether the sums are right, how long they take, and over which interface they go."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hpcai500.comm.base import Communicator
from hpcai500.measure.network import NetworkCounters, read_counters
from hpcai500.measure.preflight.links import link_rates

# No multiple of anything, and more than a message of any library.
_COUNT = 1_000_003
# Sums of all ranks stay below 2^24, the whole numbers that float32 holds, for four thousand ranks.
_PERIOD, _FACTORS = 509, 7
_FIRST_BYTES = 2**20
_MOST_BYTES = {"cpu": 2**26, "cuda": 2**29}
_ONE_SECONDS, _ALL_SECONDS = 0.3, 1.5
_LEAST, _MOST = 3, 20
# Headers, acknowledgements and whoever else talks: what carries less than that of all bytes is not what carried them.
_NOTABLE = 0.1


@dataclass(frozen=True)
class Wire:
    """What one host's interfaces carried while all ranks summed.

    Attributes:
        rates: bytes a second (the busier direction) of each interface that carried a notable part, by name.
        links: bytes a second that each interface which is up says it can carry.
    """

    rates: Mapping[str, float]
    links: Mapping[str, float]


@dataclass(frozen=True)
class Exchange:
    """What all-reduces over all ranks came to.

    Attributes:
        wrong: how many sums of how many ranks are wrong, by rank.
        size_bytes: of each.
        seconds: median over repetitions, of the slowest rank.
        wires: by host, where there are several.
        library: who moved the bytes.
    """

    wrong: tuple[int, ...]
    size_bytes: int
    seconds: float
    wires: Mapping[str, Wire]
    library: str

    @property
    def bus_bytes_per_second(self) -> float:
        """What a ring would send over each link: 2 (n - 1) / n of the bytes, over the time."""
        ranks = len(self.wrong)
        return 2 * (ranks - 1) / ranks * self.size_bytes / self.seconds


def measure_exchange(world: Communicator, device: torch.device) -> Exchange:
    """Sum, check and time; called by all ranks, and known to all of them.

    Raises:
        RunError: a rank is lost.
    """
    wrong = tuple(world.gather_objects(_wrong_sums(world, device)))
    first = _all_reduces(world, device, _FIRST_BYTES, _LEAST)
    rate = _FIRST_BYTES / statistics.median(first[1:])
    # What rank 0 thinks of it: all ranks must do the same.
    size_bytes, repetitions = world.broadcast_object(_effort(rate, _MOST_BYTES[device.type]))
    before = read_counters()
    taken = _all_reduces(world, device, size_bytes, repetitions)
    after = read_counters()
    wires = {}
    if len(set(world.hosts)) > 1:
        gathered = world.gather_objects(_wire(before, after, sum(taken)))
        wires = dict(zip(reversed(world.hosts), reversed(gathered), strict=True))
    return Exchange(wrong, size_bytes, statistics.median(taken[1:]), wires, world.library)


def _effort(rate: float, most_bytes: int) -> tuple[int, int]:
    """Bytes of an all-reduce of about a third of a second, and how many of them."""
    size_bytes = int(min(most_bytes, max(_FIRST_BYTES, rate * _ONE_SECONDS))) // 4 * 4
    return size_bytes, int(min(_MOST, max(_LEAST, _ALL_SECONDS * rate / size_bytes)))


def _wrong_sums(world: Communicator, device: torch.device) -> int:
    steps = torch.arange(_COUNT, dtype=torch.float32) % _PERIOD + 1
    tensor = (steps * (world.rank % _FACTORS + 1)).to(device)
    world.all_reduce(tensor)
    factors = sum(rank % _FACTORS + 1 for rank in range(world.size))
    return int((tensor.cpu() != steps * factors).sum())


def _all_reduces(world: Communicator, device: torch.device, size_bytes: int, repetitions: int) -> list[float]:
    """Seconds of each, as the slowest rank had them; one more comes first, which warms up."""
    tensor = torch.zeros(size_bytes // 4, device=device)
    own = []
    for _ in range(repetitions + 1):
        world.barrier()
        start = time.perf_counter()
        world.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        own.append(time.perf_counter() - start)
    return [max(of_ranks) for of_ranks in zip(*world.gather_objects(own), strict=True)]


def _wire(before: NetworkCounters, after: NetworkCounters, seconds: float) -> Wire:
    carried = after.since(before)
    most = {name: max(sent, carried["received_bytes"].get(name, 0)) for name, sent in carried["sent_bytes"].items()}
    notable = _NOTABLE * sum(most.values())
    return Wire({name: amount / seconds for name, amount in most.items() if amount > notable}, link_rates())
