"""The checks of `hpcai500 doctor` that measure: clocks, devices, all-reduces, nodes, power, products, versions.

Each check has a part that measures, on all ranks, and one that evaluates plain numbers.
"""

from __future__ import annotations

import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.identity import code_facts, gpu_of
from hpcai500.comm.timeline import ClockAlignment, align_clocks
from hpcai500.comm.torch_backend import nccl_version
from hpcai500.errors import CommunicationError, HpcAi500Error
from hpcai500.hosts import is_first_of_host
from hpcai500.machine import Link, Machine
from hpcai500.measure.host import NetworkCounters, read_counters
from hpcai500.measure.timing import Effort, repeat
from hpcai500.methodology.communication import bus_bandwidth
from hpcai500.methodology.cost import names_of
from hpcai500.methodology.nodes import NodeDifference
from hpcai500.methodology.roofline import arithmetic_of
from hpcai500.system.accelerator import find_traces
from hpcai500.system.checks import ALL_REDUCE, CLOCKS, DEVICES, GEMM, NODES, POWER, VERSIONS, Check, Status
from hpcai500.system.doctor import affinity_of_rank
from hpcai500.system.network import link_rates
from hpcai500.system.power import automatic_names, find_sources

# ----------------------------------------------------------------------------------------------------
# Answers of all ranks to one question; an error is an answer too.


Value = TypeVar("Value")
# The number of names in a message.
_MOST = 6


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """What one rank found, or why it could not find it, and what its error says to do."""

    rank: int
    host: str
    value: Value | None
    error: str | None = None
    fix: str | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank} on host {self.host}"


def ask_everyone(world: Communicator, ask: Callable[[], Value]) -> list[Answer[Value]]:
    """The answers of all ranks, by rank, on all of them; `ask` must not communicate.

    Raises:
        RunError: a rank is lost.
    """
    mine: tuple[Value | None, str | None, str | None]
    try:
        mine = ask(), None, None
    except CommunicationError:
        raise
    except HpcAi500Error as error:
        what, _, fix = str(error).partition("; ")
        mine = None, what, fix or None
    except Exception as error:  # noqa: BLE001 - any error of a device or a file system is an answer
        mine = None, " ".join("".join(traceback.format_exception_only(error)).split()), None
    gathered = world.gather_objects(mine)
    return [Answer(rank, host, *it) for rank, (host, it) in enumerate(zip(world.hosts, gathered, strict=True))]


def ask_hosts(world: Communicator, ask: Callable[[], Value]) -> list[Answer[Value]]:
    """As `ask_everyone`, of the first rank of each host only."""
    answers = ask_everyone(world, lambda: ask() if is_first_of_host(world.rank, world.hosts) else None)
    first = {host: rank for rank, host in reversed([*enumerate(world.hosts)])}.values()
    return [Answer(it.rank, it.host, it.value, it.error, it.fix) for it in answers if it.rank in first]


def failures(name: str, answers: Sequence[Answer[Value]], what: str, fix: str) -> Check | None:
    """The check `name` that has failed where a rank could not answer; None if all could.

    `fix` counts where the error has none of its own.
    """
    wrong = [answer for answer in answers if answer.error is not None]
    if not wrong:
        return None
    first = wrong[0]
    others = f" (and {listed(answer.name for answer in wrong[1:])})" if wrong[1:] else ""
    return Check(name, "fail", f"{first.name} {what}: {first.error}{others}", first.fix or fix)


def values(answers: Sequence[Answer[Value]]) -> list[tuple[Answer[Value], Value]]:
    """The ranks that could answer, with their values."""
    return [(answer, answer.value) for answer in answers if answer.value is not None]


def listed(words: Iterable[str]) -> str:
    """`a, b and 3 more`; repeated words count once."""
    found = list(dict.fromkeys(words))
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


# ----------------------------------------------------------------------------------------------------
# Clocks: wall clocks, by which records and power meters are joined, and monotonic ones.


MOST_APART_SECONDS = 1.0
# Beyond that, a timeline does not show which rank came last.
MOST_ERROR_SECONDS = 0.01


def measure_clocks(world: Communicator) -> tuple[list[float], ClockAlignment]:
    """How far each rank's wall clock is ahead of rank 0's (seconds), and how monotonic clocks are aligned.

    All ranks call it together.
    """
    alignment = align_clocks(world)
    walls = world.gather_objects(time.time() - time.perf_counter())
    return wall_offsets(walls, alignment), alignment


def wall_offsets(walls: Sequence[float], alignment: ClockAlignment) -> list[float]:
    """How far each wall clock is ahead of rank 0's, from each rank's wall clock minus its monotonic one; seconds."""
    return [wall - offset - walls[0] for wall, offset in zip(walls, alignment.offsets_seconds, strict=True)]


def check_clocks(walls: Sequence[float], errors: Sequence[float], hosts: Sequence[str]) -> Check:
    """Check wall clocks that are ahead by `walls`, and monotonic ones aligned to within `errors`; seconds by rank."""
    if len(set(hosts)) == 1:
        return Check(CLOCKS, "pass", "one host, one clock")
    # The median is taken as right; rank 0's clock may be wrong.
    middle = sorted(walls)[len(walls) // 2]
    apart = {host: wall - middle for host, wall in zip(hosts, walls, strict=True)}
    wrong = [f"{host} by {seconds:+.3g} s" for host, seconds in apart.items() if abs(seconds) > MOST_APART_SECONDS]
    if wrong:
        fix = "run chrony or ntpd on these hosts (`chronyc tracking`, `timedatectl`)"
        return Check(
            CLOCKS,
            "warn",
            f"wall clocks are wrong on {listed(wrong)}: times of records and power meters will not match",
            fix,
        )
    vague = [host for host, error in zip(hosts, errors, strict=True) if error > MOST_ERROR_SECONDS]
    if vague:
        return Check(
            CLOCKS,
            "warn",
            f"the clocks of {listed(vague)} can only be aligned to {max(errors):.3g} s: a barrier takes that long",
            "see `all-reduce`: training is slow where hosts answer each other this slowly",
        )
    widest = max(walls) - min(walls)
    return Check(CLOCKS, "pass", f"wall clocks within {widest:.3g} s, aligned to {max(errors):.2g} s")


# ----------------------------------------------------------------------------------------------------
# Devices: each does a small computation with a known result.


_COUNT = 100_000


@dataclass(frozen=True)
class Device:
    """What a rank computes on; `answer` is the sum of the first `_COUNT` whole numbers.

    `identity` distinguishes devices of a host; None if ranks may share it. `on_host` counts the visible devices.
    `affinity` is the check of the rank's cores.
    """

    name: str
    identity: str | None
    on_host: int
    answer: float
    affinity: Check | None = None


def ask_device(device: torch.device) -> Device:
    """Compute a sum on `device`.

    Raises:
        RuntimeError: it cannot; the message is the driver's.
    """
    numbers = torch.arange(1, _COUNT + 1, dtype=torch.float64, device=device)
    answer = float(numbers.sum().cpu())
    if device.type != "cuda":
        return Device("cpu", None, 1, answer)
    gpu = gpu_of(device)
    name = torch.cuda.get_device_name(device)
    return Device(name, gpu.place if gpu else None, torch.cuda.device_count(), answer, affinity_of_rank())


def check_devices(answers: Sequence[Answer[Device]]) -> Check:
    """Check that all devices compute right, that no two ranks share one, and that ranks have cores near theirs."""
    fix = "see `nvidia-smi` and `dmesg` on that host, or exclude it"
    if failed := failures(DEVICES, answers, "cannot compute", fix):
        return failed
    found = values(answers)
    wrong = [answer.name for answer, device in found if device.answer != _COUNT * (_COUNT + 1) / 2]
    if wrong:
        return Check(DEVICES, "fail", f"{listed(wrong)}: a sum of whole numbers is wrong", fix)
    if shared := _shared(found):
        return Check(
            DEVICES,
            "fail",
            f"{shared} share one device",
            "start one rank a device; the launcher must show each rank its own device, or all devices to all ranks",
        )
    far = [(answer.name, it.affinity) for answer, it in found if it.affinity and it.affinity.status == "warn"]
    if far:
        (name, first), others = far[0], listed(other for other, _ in far[1:])
        detail = f"{_in_words(found)}; {name}: {first.detail}{f' (also: {others})' if others else ''}"
        return Check(DEVICES, "warn", detail, first.fix)
    return Check(DEVICES, "pass", _in_words(found))


def _shared(found: Sequence[tuple[Answer[Device], Device]]) -> str | None:
    users: dict[tuple[str, str], list[str]] = {}
    for answer, device in found:
        if device.identity is not None:
            users.setdefault((answer.host, device.identity), []).append(answer.name)
    return next((listed(names) for names in users.values() if len(names) > 1), None)


def _in_words(found: Sequence[tuple[Answer[Device], Device]]) -> str:
    models = [device.name for _, device in found]
    counts = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    answer, device = found[0]
    ranks = sum(1 for other, _ in found if other.host == answer.host)
    if device.on_host > ranks:
        visible = device.on_host
        return f"{counts}: sums are right; host {answer.host} has {visible} devices: --procs {visible} checks all"
    return f"{counts}: sums are right"


# ----------------------------------------------------------------------------------------------------
# Measuring all-reduces over all ranks: whether sums are right, how long they take, and which interface they use.


# A prime, so not a multiple of any library's message size, and larger than one.
_EXCHANGE_COUNT = 1_000_003
# Up to four thousand ranks, all sums stay below 2^24, where float32 represents every whole number.
_PERIOD, _FACTORS = 509, 7
_FIRST_BYTES = 2**20
_MOST_BYTES = {"cpu": 2**26, "cuda": 2**29}
_ONE_SECONDS, _ALL_SECONDS = 0.3, 1.5
_LEAST, _EXCHANGE_MOST = 3, 20
# An interface with a smaller share of all bytes carried acknowledgements or other traffic, not the sums.
_NOTABLE = 0.1


@dataclass(frozen=True)
class Traffic:
    """Traffic of one host's interfaces during all-reduces, by name; bytes a second.

    Attributes:
        rates: of each interface that carried a notable part, in its busier direction.
        links: nominal rate of each interface that is up.
    """

    rates: Mapping[str, float]
    links: Mapping[str, float]


@dataclass(frozen=True)
class Exchange:
    """What was measured of all-reduces over all ranks.

    Attributes:
        wrong: number of wrong sums, by rank.
        seconds: median over repetitions, of the slowest rank.
        traffic: by host; empty for one host.
    """

    wrong: tuple[int, ...]
    size_bytes: int
    seconds: float
    traffic: Mapping[str, Traffic]
    library: str

    @property
    def bus_bytes_per_second(self) -> float:
        """Over the link of each rank (`methodology.communication.bus_bandwidth`)."""
        return bus_bandwidth(self.size_bytes, self.seconds, len(self.wrong))


def measure_exchange(world: Communicator, device: torch.device) -> Exchange:
    """Check and time all-reduces; all ranks call it together and get the same result.

    Raises:
        RunError: a rank is lost.
    """
    wrong = tuple(world.gather_objects(_wrong_sums(world, device)))
    first = _all_reduces(world, device, _FIRST_BYTES, _LEAST)
    rate = _FIRST_BYTES / statistics.median(first[1:])
    # By rank 0's measurement, since all ranks must do the same.
    size_bytes, repetitions = world.broadcast_object(_effort(rate, _MOST_BYTES[device.type]))
    before = read_counters()
    taken = _all_reduces(world, device, size_bytes, repetitions)
    after = read_counters()
    traffic = {}
    if len(set(world.hosts)) > 1:
        gathered = world.gather_objects(_traffic(before, after, sum(taken)))
        traffic = dict(zip(reversed(world.hosts), reversed(gathered), strict=True))
    return Exchange(wrong, size_bytes, statistics.median(taken[1:]), traffic, world.library)


def _effort(rate: float, most_bytes: int) -> tuple[int, int]:
    """Bytes of an all-reduce of about a third of a second, and how many of them."""
    size_bytes = int(min(most_bytes, max(_FIRST_BYTES, rate * _ONE_SECONDS))) // 4 * 4
    return size_bytes, int(min(_EXCHANGE_MOST, max(_LEAST, _ALL_SECONDS * rate / size_bytes)))


def _wrong_sums(world: Communicator, device: torch.device) -> int:
    steps = torch.arange(_EXCHANGE_COUNT, dtype=torch.float32) % _PERIOD + 1
    tensor = (steps * (world.rank % _FACTORS + 1)).to(device)
    world.all_reduce(tensor)
    factors = sum(rank % _FACTORS + 1 for rank in range(world.size))
    return int((tensor.cpu() != steps * factors).sum())


def _all_reduces(world: Communicator, device: torch.device, size_bytes: int, repetitions: int) -> list[float]:
    """Seconds of each on its slowest rank; one more comes first, as a warm-up."""
    tensor = torch.zeros(size_bytes // 4, device=device)
    own = []
    for _ in range(repetitions + 1):
        world.barrier()
        start = time.perf_counter()
        world.all_reduce(tensor)
        _finish(device)
        own.append(time.perf_counter() - start)
    return [max(of_ranks) for of_ranks in zip(*world.gather_objects(own), strict=True)]


def _traffic(before: NetworkCounters, after: NetworkCounters, seconds: float) -> Traffic:
    carried = after.since(before)
    most = {name: max(sent, carried["received_bytes"].get(name, 0)) for name, sent in carried["sent_bytes"].items()}
    notable = _NOTABLE * sum(most.values())
    return Traffic({name: amount / seconds for name, amount in most.items() if amount > notable}, link_rates())


# ----------------------------------------------------------------------------------------------------
# Checking all-reduces: right, and as fast as the links between the hosts.


# Shares of the link's nominal rate, and of what the machine reached before.
_ENOUGH_OF_LINK, _TOO_LITTLE_OF_LINK = 0.6, 0.25
_ENOUGH_OF_MACHINE, _TOO_LITTLE_OF_MACHINE = 0.8, 0.5
# What one core carries by TCP (Gloo has one connection to each neighbour); the bound where the link is faster.
_ONE_CORE_BYTES_PER_SECOND = 1.25e9
# An idle interface is named where it is that much faster than those in use.
_FASTER = 2.0
_CHOICES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_CABLE = (
    "check cable, port and duplex (`ethtool`, `ibstat`), and other users of the link (`hpcai500 micro pairs` finds the "
    "slow one of several)"
)


def expected_link(machine: Machine | None, hosts: int) -> Link | None:
    """The link of `machine` that all-reduces over `hosts` hosts use."""
    if machine is None:
        return None
    return machine.network if hosts > 1 else machine.node_link


def check_exchange(exchange: Exchange, hosts: tuple[str, ...], expected: Link | None) -> Check:
    """Check that the sums are right, and as fast as `expected`; `hosts` is by rank.

    `expected` is what all-reduces reached before, by the machine's description. If it is None, the links' nominal rates
    count.
    """
    if wrong := [f"rank {rank} on host {hosts[rank]}" for rank, count in enumerate(exchange.wrong) if count]:
        return Check(
            ALL_REDUCE,
            "fail",
            f"wrong sums by {exchange.library} on {listed(wrong)}",
            "do not measure with this library here: --set communication.backend=torch (or horovod)",
        )
    problems = [*_slow(exchange, expected), *_idle(exchange.traffic)]
    detail = f"right; {in_words(exchange.bus_bytes_per_second)} by {exchange.library}, {len(hosts)} ranks"
    carriers = _carriers(exchange.traffic)
    detail = f"{detail}{f', over {carriers}' if carriers else ''}"
    if not problems:
        return Check(ALL_REDUCE, "pass", detail)
    # An idle interface explains why the exchange is slow, so its fix is the one to show.
    worst = next((check for check in problems if check.status == "fail"), problems[0])
    return Check(ALL_REDUCE, worst.status, "; ".join([detail, *(check.detail for check in problems)]), problems[-1].fix)


def _slow(exchange: Exchange, expected: Link | None) -> Iterator[Check]:
    if expected is not None:
        share = exchange.bus_bytes_per_second / expected.bytes_per_second
        if share < _ENOUGH_OF_MACHINE:
            status: Status = "fail" if share < _TOO_LITTLE_OF_MACHINE else "warn"
            detail = f"{share:.0%} of what the machine reaches ({in_words(expected.bytes_per_second)})"
            yield Check(ALL_REDUCE, status, detail, _fix(exchange.traffic))
        return
    # Without NCCL, one core moves the bytes (Gloo, MPI over TCP), and not the adapter.
    by_sockets = not exchange.library.startswith("NCCL")
    shares = {host: it for host, one in exchange.traffic.items() if (it := _share(one, by_sockets)) is not None}
    slow = sorted((share, host) for host, share in shares.items() if share < _ENOUGH_OF_LINK)
    if slow:
        share, host = slow[0]
        used = exchange.traffic[host]
        link = sum(used.links[name] for name in used.rates)
        others = f" (and {listed(name for _, name in slow[1:])})" if slow[1:] else ""
        detail = (
            f"{host}{others}: {in_words(sum(used.rates.values()))} over {' + '.join(used.rates)}, whose link has "
            f"{in_words(link)}"
        )
        how: Status = "fail" if share < _TOO_LITTLE_OF_LINK else "warn"
        yield Check(ALL_REDUCE, how, detail, _fix(exchange.traffic))


def _share(traffic: Traffic, by_sockets: bool) -> float | None:
    """The share of their nominal rate that the used interfaces reached; None if the rate of one is unknown."""
    if not traffic.rates or any(name not in traffic.links for name in traffic.rates):
        return None
    link = sum(traffic.links[name] for name in traffic.rates)
    return sum(traffic.rates.values()) / (min(link, _ONE_CORE_BYTES_PER_SECOND) if by_sockets else link)


def _idle(traffic: Mapping[str, Traffic]) -> Iterator[Check]:
    """At most one warning: a far faster interface is up but carried nothing."""
    for host, one in traffic.items():
        used = sum(one.links.get(name, 0.0) for name in one.rates)
        idle = {name: rate for name, rate in one.links.items() if name not in one.rates}
        best = max(idle, key=lambda name: idle[name], default=None)
        if best is not None and used and idle[best] >= _FASTER * used:
            yield Check(
                ALL_REDUCE,
                "warn",
                f"{host}: {best} ({in_words(idle[best])}) is up but carried nothing",
                _choose(best),
            )
            return


def _fix(traffic: Mapping[str, Traffic]) -> str:
    used = next((name for one in traffic.values() for name in one.rates), None)
    return f"{_CABLE}; if {used} is the wrong one: {_choose('NAME')} (`ip -br address`)" if used else _CABLE


def _choose(interface: str) -> str:
    if "/" in interface:
        return f"NCCL_IB_HCA={interface.partition('/')[0]}, and an MPI with UCX; docs/communication.md"
    return f"export {' '.join(f'{name}={interface}' for name in _CHOICES)}"


def _carriers(traffic: Mapping[str, Traffic]) -> str:
    """`eth0 (10 Gbit/s)`, or host by host where they differ."""
    by_host = {
        host: " + ".join(f"{name} ({in_words(one.links[name])})" if one.links.get(name) else name for name in one.rates)
        or "an unknown interface"
        for host, one in traffic.items()
    }
    if len(set(by_host.values())) == 1:
        return next(iter(by_host.values()))
    return listed(f"{it} on {host}" for host, it in by_host.items())


def in_words(bytes_per_second: float) -> str:
    """A rate in bits, the usual unit of networks: `9.41 Gbit/s`."""
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


# ----------------------------------------------------------------------------------------------------
# Nodes: problems of the other hosts, and differences. Each host runs the checks of doctor's own host.


# Checks of each host; the others concern rank 0 only, or are made on all ranks anyway.
LOOKED_AT = (
    "image",
    "python",
    "data",
    "temporary",
    "backend",
    "loader",
    "cores",
    "affinity",
    "gpudirect",
    "shared memory",
)
_MOST_DIFFERENCES = 3
_ALL_OF_THEM = "`hpcai500 system` under the same launcher shows all"


def check_nodes(answers: Sequence[Answer[Sequence[Check]]], differences: Sequence[NodeDifference]) -> Check:
    """Sum up the checks of one rank of each host; rank 0's host has its own lines.

    `differences` are those between the hosts' descriptions; those that matter come first.
    """
    if failed := failures(NODES, answers, "cannot examine its host", "see its output above"):
        return failed
    found = [(answer.host, checks) for answer, checks in values(answers) if answer.rank > 0]
    for status in ("fail", "warn"):
        if wrong := _of_status(status, found):
            return wrong
    detail = f"{listed(host for host, _ in found)}: no problems"
    heavy = [difference.sentence() for difference in differences if difference.matters]
    if heavy:
        more = f"; and {len(heavy) - _MOST_DIFFERENCES} more" if heavy[_MOST_DIFFERENCES:] else ""
        return Check(
            NODES,
            "warn",
            f"{detail}, but nodes differ: {'; '.join(heavy[:_MOST_DIFFERENCES])}{more}",
            f"set them up alike, or exclude those that differ; {_ALL_OF_THEM}",
        )
    light = f", {len(differences)} small differences ({_ALL_OF_THEM})" if differences else ", and alike"
    return Check(NODES, "pass", f"{detail}{light}")


def _of_status(status: Status, found: Sequence[tuple[str, Sequence[Check]]]) -> Check | None:
    wrong = [(host, check) for host, checks in found for check in checks if check.status == status]
    if not wrong:
        return None
    host, first = wrong[0]
    others = [f"{check.name} on {other}" for other, check in wrong[1:]]
    more = f" (also: {listed(others)})" if others else ""
    return Check(NODES, status, f"{host}: {first.name}: {first.detail}{more}", first.fix)


# ----------------------------------------------------------------------------------------------------
# Power: the sources of the nodes. Without one, a result has no FLOPS per watt.


@dataclass(frozen=True)
class Sources:
    """What can be read on one node, as `nvml (devices)`, the widest scope first; and why other sources cannot."""

    readable: tuple[str, ...]
    missing: str


def look_for_sources(*, on_gpu: bool) -> Sources:
    """Open each source of this node once."""
    found = find_sources(automatic_names(on_gpu=on_gpu))
    readable = tuple(f"{name} ({source.scope})" for name, source in found.sources.items())
    found.take(None)
    return Sources(readable, found.words)


def check_sources(answers: Sequence[Answer[Sources]]) -> Check:
    """Check that the nodes have the same sources; `answers` has one rank of each node."""
    fix = "a power meter's file can be used too: docs/power.md"
    if failed := failures(POWER, answers, "cannot look for sources of power", fix):
        return Check(POWER, "warn", failed.detail, fix)
    found = values(answers)
    having = [(answer.host, sources.readable) for answer, sources in found if sources.readable]
    if not having:
        return Check(POWER, "skip", f"no source of power: {found[0][1].missing}", fix)
    host, readable = having[0]
    detail = ", ".join(readable)
    without = [(answer.host, sources) for answer, sources in found if not set(readable) & set(sources.readable)]
    if without:
        names = listed(name for name, _ in without)
        return Check(POWER, "warn", f"{host} has {detail}, but {names} not: {without[0][1].missing}", fix)
    return Check(POWER, "pass", detail + (f", on {len(found)} nodes" if len(found) > 1 else ""))


# ----------------------------------------------------------------------------------------------------
# Measuring a matrix product on the device of each rank: whether its numbers are right, and how fast it is.


Multiply = Callable[[Tensor, Tensor], Tensor]
# Large enough for the speed that large layers reach, small enough to take a second.
SIDES = {"cpu": 2048, "cuda": 8192}
_EFFORT = Effort(width=0.02, least=5, seconds=1.5, warm_up=2)
_AT_ONCE = {"cpu": 1, "cuda": 8}
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Operands of the exact check: three of four elements are 0, the others -1 or 1. Every partial sum of thousands of them
# is a whole number that bfloat16 represents, so the result is exact in any order of summation.
_SEED = 500
_ROWS = 1024


@dataclass(frozen=True)
class Product:
    """What was measured of a rank's product of square matrices.

    Attributes:
        flops: operations a second, by the median time; `best_flops` by the shortest.
        spread: interquartile range of the times, divided by their median.
        wrong_rows: number of rows with a wrong element.
    """

    side: int
    flops: float
    spread: float
    wrong_rows: int
    best_flops: float


def measure_product(
    device: torch.device, precision: str, side: int, multiply: Multiply = torch.matmul, effort: Effort = _EFFORT
) -> Product:
    """Check `multiply` on `device` in `precision` (a recipe's word), then time it.

    Where a processor lacks fp16, torch takes a hundred times as long: the side is then a quarter.
    Sets torch's global fp32 precision of matrix products.
    """
    dtype = _TYPES[arithmetic_of(precision)]
    if device.type == "cpu" and dtype == torch.float16 and not _has_fp16():
        side //= 4
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    wrong_rows = count_wrong_rows(device, dtype, side, multiply)
    generator = torch.Generator().manual_seed(_SEED)
    left, right = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    at_once = _AT_ONCE[device.type]

    def run() -> float:
        _finish(device)
        start = time.perf_counter()
        for _ in range(at_once):
            multiply(left, right)
        _finish(device)
        return (time.perf_counter() - start) / at_once

    timing = repeat(run, effort)
    flops = 2 * side**3
    return Product(side, flops / timing.median, timing.spread, wrong_rows, flops / min(timing.seconds))


def _has_fp16() -> bool:
    """Whether this processor multiplies in fp16, by oneDNN, which a torch for CPUs may lack."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def count_wrong_rows(device: torch.device, dtype: torch.dtype, side: int, multiply: Multiply) -> int:
    """The number of rows of a product of whole numbers that are not exactly right, checked on the CPU.

    For a vector x, (A B) x must be A (B x), which takes a thousandth of the time of a second product (R. Freivalds,
    "Probabilistic machines can use less running time", 1977). In float64 all of it is exact.
    """
    generator = torch.Generator().manual_seed(_SEED)
    left, right = (_whole_numbers(side, generator) for _ in range(2))
    result = multiply(left.to(device, dtype), right.to(device, dtype)).cpu()
    vector = (torch.randint(1, 1000, (side,), generator=generator)).double()
    expected = _times(left, _times(right, vector))
    # Rows with an infinity or NaN are not equal to anything.
    return int((_times(result, vector) != expected).sum())


def _whole_numbers(side: int, generator: torch.Generator) -> Tensor:
    eighths = torch.randint(0, 8, (side, side), generator=generator, dtype=torch.int8)
    return (eighths == 1).to(torch.float32) - (eighths == 2).to(torch.float32)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """The product in float64, converting some rows at a time to save memory."""
    return torch.cat([rows.double() @ vector for rows in matrix.split(_ROWS)])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ----------------------------------------------------------------------------------------------------
# Checking the matrix products of all ranks.


# Share of what the machine reached before, or of the median of all ranks.
ENOUGH = 0.9
# At half the speed the clock or the power limit is wrong, or another job computes there: a run would be worthless.
_TOO_LITTLE = 0.5
_CPU_FIX = "look for other processes on these hosts (`top`), their cores (`taskset -p $$`) and their clock (`cpupower`)"
_GPU_FIX = "`nvidia-smi -q -d PERFORMANCE,CLOCK,POWER` on these hosts shows the cause; exclude them until it is fixed"


def check_products(
    answers: Sequence[Answer[Product]], precision: str, expected_flops: float | None, *, on_cpu: bool
) -> Check:
    """Check that all products are right, and fast.

    `expected_flops` (a second, of one rank) comes from the machine's description; where it is None, ranks are compared
    with each other.
    """
    fix = _CPU_FIX if on_cpu else _GPU_FIX
    if failed := failures(GEMM, answers, "cannot multiply matrices", fix):
        return failed
    found = values(answers)
    wrong = [(answer.name, product.wrong_rows) for answer, product in found if product.wrong_rows]
    if wrong:
        name, rows = wrong[0]
        return Check(
            GEMM,
            "fail",
            f"wrong numbers from {listed(name for name, _ in wrong)}: {rows} of {found[0][1].side} rows of a "
            f"product of whole numbers on {name}",
            "do not compute there; test its memory and device (`hpcai500 self-test` on that host shows more)",
        )
    median = statistics.median(product.flops for _, product in found)
    detail = f"right; {_flops(median)} a rank in {precision}"
    reference = median if expected_flops is None else expected_flops
    if expected_flops is None and len(found) == 1:
        return Check(GEMM, "pass", f"{detail} (to compare it, give --machine or start more ranks)")
    what = "the median" if expected_flops is None else f"what the machine reaches ({_flops(reference)})"
    slow = [(answer, product) for answer, product in found if product.flops < ENOUGH * reference]
    if not slow:
        least = min(product.flops for _, product in found)
        return Check(GEMM, "pass", f"{detail}, the slowest at {least / reference:.0%} of {what}")
    slow.sort(key=lambda it: it[1].flops)
    shown = listed(f"{answer.name} at {product.flops / reference:.0%}" for answer, product in slow)
    broken = expected_flops is not None and slow[0][1].flops < _TOO_LITTLE * reference
    return Check(GEMM, "fail" if broken else "warn", f"{detail}, but {shown} of {what}", fix)


def expected_flops(machine: Machine, precision: str) -> float | None:
    """Measured FLOPS of matrix products on one accelerator of `machine`; None if there is no measurement."""
    level = machine.node or machine.system
    names = [f"gemm {name}" for name in names_of(precision)]
    ceilings = {name.lower(): value for name, value in level.ceilings.items()} if level else {}
    found = next((ceilings[name] for name in names if name in ceilings), None)
    return found / level.accelerators if found and level else None


def _flops(rate: float) -> str:
    for unit, size in (("PFLOPS", 1e15), ("TFLOPS", 1e12)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate / 1e9:.3g} GFLOPS"


# ----------------------------------------------------------------------------------------------------
# Versions: differences in software that a run would refuse, and those that make results hard to compare.


_KERNEL, _DRIVER, _CUDA, _NCCL = "kernel", "NVIDIA driver", "CUDA of torch", "NCCL of torch"
# If these differ, a run only warns.
_MAY_DIFFER = (_KERNEL, _DRIVER, _CUDA, _NCCL)
# The first with NCCL_LAUNCH_ORDER_IMPLICIT, on which jobs in stages rely (docs/communication.md).
_LEAST_NCCL = (2, 26)
_ONE_NCCL = (
    "start every rank with one torch, and unset LD_PRELOAD and LD_LIBRARY_PATH where they name another libnccl.so.2"
)
_SHOWN_CHARACTERS = 12
_HASH_CHARACTERS = 64

Facts = Mapping[str, str | None]


def version_facts() -> dict[str, str | None]:
    """Versions of this rank's software; None is not compared."""
    return {
        **code_facts(),
        _DRIVER: find_traces().kernel_module,
        _CUDA: torch.version.cuda,
        _NCCL: nccl_version(),
        _KERNEL: platform.release(),
    }


def check_versions(facts: Sequence[Facts], hosts: Sequence[str]) -> Check:
    """Check that all ranks have the same software; `facts` and `hosts` are by rank."""
    differing = {name: groups for name in facts[0] if len(groups := _groups(name, facts, hosts)) > 1}
    refused = [name for name in differing if name not in _MAY_DIFFER]
    detail = "; ".join(
        f"{name}: {', '.join(f'{_shown(value)} on {listed(where)}' for value, where in differing[name].items())}"
        for name in refused or differing
    )
    if refused:
        fix = "start every rank from one installation or image, on a file system that all hosts share"
        return Check(VERSIONS, "fail", detail, fix)
    if _NCCL in differing:
        return Check(VERSIONS, "warn", f"{detail}: ranks may not connect, or wait for ever", _ONE_NCCL)
    if differing:
        fix = "install the same system on all hosts, or exclude those that differ"
        return Check(VERSIONS, "warn", f"{detail}: hosts may differ in speed", fix)
    alike, nccl = _alike(facts[0], len(set(hosts))), facts[0].get(_NCCL)
    if nccl and tuple(map(int, nccl.split(".")[:2])) < _LEAST_NCCL:
        least = ".".join(map(str, _LEAST_NCCL))
        fix = f"build torch with NCCL {least} or later, as PyTorch's own builds are, or use parallel_mode = data"
        return Check(VERSIONS, "warn", f"{alike}; before NCCL {least} jobs in stages may wait for ever", fix)
    return Check(VERSIONS, "pass", alike)


def _groups(name: str, facts: Sequence[Facts], hosts: Sequence[str]) -> dict[str, list[str]]:
    """Hosts by value; the commonest value comes first."""
    groups: dict[str, list[str]] = {}
    for own, host in zip(facts, hosts, strict=True):
        if (value := own.get(name)) is not None:
            groups.setdefault(value, []).append(host)
    return dict(sorted(groups.items(), key=lambda it: -len(it[1])))


def _alike(facts: Facts, hosts: int) -> str:
    names = {
        "version of hpcai500": "hpcai500",
        "version of torch": "torch",
        _DRIVER: "driver",
        _NCCL: "NCCL",
        _KERNEL: _KERNEL,
    }
    shown = [f"{short} {facts[name]}" for name, short in names.items() if facts.get(name)]
    where = f"the same on {hosts} hosts: " if hosts > 1 else ""
    return f"{where}{', '.join(shown)}, code {_shown(facts.get('code') or 'unknown')}"


def _shown(value: str) -> str:
    return value[:_SHOWN_CHARACTERS] if len(value) == _HASH_CHARACTERS else value
