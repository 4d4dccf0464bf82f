"""Whether all-reduces are right, and as fast as the links between the hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpcai500.machine import Link, Machine
from hpcai500.measure.preflight.everyone import listed
from hpcai500.measure.preflight.exchange import Exchange, Wire
from hpcai500.system.checks import Check, Status
from hpcai500.system.preflight import ALL_REDUCE

# Of the link's own rate; or of what the machine reached before.
_ENOUGH_OF_LINK, _TOO_LITTLE_OF_LINK = 0.6, 0.25
_ENOUGH_OF_MACHINE, _TOO_LITTLE_OF_MACHINE = 0.8, 0.5
# What one core carries by TCP; Gloo has one connection a neighbour. A faster link is not to blame for that.
_ONE_CORE_BYTES_PER_SECOND = 1.25e9
# An interface that is idle is worth a word where it is that much faster.
_FASTER = 2.0
_CHOICES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_CABLE = "look at cable, port and duplex (`ethtool`, `ibstat`), and at who else uses the link"


@dataclass(frozen=True)
class Expected:
    """What the links should carry.

    Attributes:
        machine: what all-reduces reached before, by the machine's description; None without.
        by_sockets: whether one core moves the bytes (Gloo, MPI over TCP), and not the adapter.
    """

    machine: Link | None
    by_sockets: bool


def expected_link(machine: Machine | None, hosts: int) -> Link | None:
    """The link of `machine` that all-reduces over `hosts` go by."""
    if machine is None:
        return None
    return machine.network if hosts > 1 else machine.node_link


def judge_exchange(exchange: Exchange, hosts: tuple[str, ...], expected: Expected) -> Check:
    """Whether right, and fast.

    Args:
        exchange: what was measured.
        hosts: of each rank.
        expected: what it is held against.
    """
    if wrong := [f"rank {rank} on host {hosts[rank]}" for rank, count in enumerate(exchange.wrong) if count]:
        return Check(
            ALL_REDUCE,
            "fail",
            f"wrong sums by {exchange.library} on {listed(wrong)}",
            "do not measure with this library here: --set communication.backend=torch (or horovod)",
        )
    problems = [*_slow(exchange, expected), *_idle(exchange.wires)]
    told = f"right; {in_words(exchange.bus_bytes_per_second)} by {exchange.library}, {len(hosts)} ranks"
    carriers = _carriers(exchange.wires)
    told = f"{told}{f', over {carriers}' if carriers else ''}"
    if not problems:
        return Check(ALL_REDUCE, "pass", told)
    # What is too slow, the idle interface explains: its fix is the one to type.
    worst = next((check for check in problems if check.status == "fail"), problems[0])
    return Check(ALL_REDUCE, worst.status, "; ".join([told, *(check.detail for check in problems)]), problems[-1].fix)


def _slow(exchange: Exchange, expected: Expected) -> Iterator[Check]:
    if expected.machine is not None:
        share = exchange.bus_bytes_per_second / expected.machine.bytes_per_second
        if share < _ENOUGH_OF_MACHINE:
            status: Status = "fail" if share < _TOO_LITTLE_OF_MACHINE else "warn"
            told = f"{share:.0%} of what the machine reaches ({in_words(expected.machine.bytes_per_second)})"
            yield Check(ALL_REDUCE, status, told, _fix(exchange.wires))
        return
    shares = {host: it for host, wire in exchange.wires.items() if (it := _share(wire, expected)) is not None}
    slow = sorted((share, host) for host, share in shares.items() if share < _ENOUGH_OF_LINK)
    if slow:
        share, host = slow[0]
        wire = exchange.wires[host]
        link = sum(wire.links[name] for name in wire.rates)
        others = f" (and {listed(name for _, name in slow[1:])})" if slow[1:] else ""
        told = (
            f"{host}{others}: {in_words(sum(wire.rates.values()))} over {' + '.join(wire.rates)}, whose link has "
            f"{in_words(link)}"
        )
        how: Status = "fail" if share < _TOO_LITTLE_OF_LINK else "warn"
        yield Check(ALL_REDUCE, how, told, _fix(exchange.wires))


def _share(wire: Wire, expected: Expected) -> float | None:
    """How much of what the interfaces can carry they carried; None where one does not say what it can."""
    if not wire.rates or any(name not in wire.links for name in wire.rates):
        return None
    link = sum(wire.links[name] for name in wire.rates)
    return sum(wire.rates.values()) / (min(link, _ONE_CORE_BYTES_PER_SECOND) if expected.by_sockets else link)


def _idle(wires: Mapping[str, Wire]) -> Iterator[Check]:
    """A warning where a far faster interface is up and carried nothing."""
    for host, wire in wires.items():
        used = sum(wire.links.get(name, 0.0) for name in wire.rates)
        idle = {name: rate for name, rate in wire.links.items() if name not in wire.rates}
        best = max(idle, key=lambda name: idle[name], default=None)
        if best is not None and used and idle[best] >= _FASTER * used:
            yield Check(
                ALL_REDUCE,
                "warn",
                f"{host}: {best} ({in_words(idle[best])}) is up and carried nothing",
                _choose(best),
            )
            return


def _fix(wires: Mapping[str, Wire]) -> str:
    used = next((name for wire in wires.values() for name in wire.rates), None)
    return f"{_CABLE}; if {used} is the wrong one: {_choose('NAME')} (`ip -br address`)" if used else _CABLE


def _choose(interface: str) -> str:
    if "/" in interface:
        return f"NCCL_IB_HCA={interface.partition('/')[0]}, and an MPI with UCX; docs/communication.md"
    return f"export {' '.join(f'{name}={interface}' for name in _CHOICES)}"


def _carriers(wires: Mapping[str, Wire]) -> str:
    """`eth0 (10 Gbit/s)`, or host by host where they differ."""
    by_host = {
        host: " + ".join(_with_rate(name, wire.links.get(name)) for name in wire.rates) or "an unknown interface"
        for host, wire in wires.items()
    }
    if len(set(by_host.values())) == 1:
        return next(iter(by_host.values()))
    return listed(f"{it} on {host}" for host, it in by_host.items())


def _with_rate(name: str, rate: float | None) -> str:
    return f"{name} ({in_words(rate)})" if rate else name


def in_words(bytes_per_second: float) -> str:
    """As networks are sold: `9.41 Gbit/s`."""
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
