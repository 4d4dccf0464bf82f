"""Whether the bytes that ranks say they sent are those that the network counters saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

# Frame and TCP headers are 4.6 % at an MTU of 1500, 0.1 % on loopback; acknowledgements and heartbeats add some.
LEAST_RATIO, MOST_RATIO = 0.95, 1.15


class CounterDifference(TypedDict):
    """What a host's counters moved by; `sent_bytes` and `received_bytes` by interface, without loopback."""

    loopback_sent_bytes: int | None
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    restarted: list[str]


class RankTraffic(TypedDict):
    """What one rank tells the first: its own count since its counters were read, and what they moved by.

    `between_hosts_bytes` is the part of `sent_bytes` for ranks on other hosts, None where only the library knows it.
    """

    host: str
    sent_bytes: int
    between_hosts_bytes: int | None
    counters: CounterDifference


def check_traffic(ranks: Sequence[RankTraffic], library: str) -> dict[str, Any]:
    """Counted bytes against the counters of all hosts; plain JSON for the event `communication`.

    Gloo sends everything by TCP, within a host over loopback: its whole count is compared with loopback and interfaces
    together. Other libraries use shared memory within a host: of them, the bytes between hosts are compared with the
    interfaces. Counters see whatever else the hosts send, so a ratio above 1.15 need not be a wrong count; one below
    0.95 means that bytes went another way, or were not sent.

    Args:
        ranks: all of them, by rank.
        library: who moves the bytes (`Communicator.library`).

    Returns:
        `counted_bytes`, `counter_bytes`, their `ratio` (counters / count; None where they cannot be compared), `over`
        which way they were compared, and a `verdict` in words.
    """
    hosts = {rank["host"]: rank["counters"] for rank in reversed(ranks)}
    if "gloo" in library.lower():
        over = "loopback" if len(hosts) == 1 else "loopback and network"
        return _compared(over, sum(rank["sent_bytes"] for rank in ranks), hosts, with_loopback=True)
    if len(hosts) == 1:
        return _unknown(f"not comparable: on one host, {library} uses shared memory")
    between = [_between(rank, len(hosts) == len(ranks)) for rank in ranks]
    known = [amount for amount in between if amount is not None]
    if len(known) < len(between):
        return _unknown(f"not comparable: how much of it stays within a host, only {library} knows")
    return _compared("network", sum(known), hosts, with_loopback=False)


def _between(rank: RankTraffic, is_alone_on_its_host: bool) -> int | None:
    return rank["sent_bytes"] if is_alone_on_its_host else rank["between_hosts_bytes"]


def _compared(over: str, counted: int, hosts: dict[str, CounterDifference], *, with_loopback: bool) -> dict[str, Any]:
    for host, counters in hosts.items():
        if counters["restarted"]:
            return _unknown(f"not comparable: {counters['restarted'][0]} of {host} was set up anew during the run")
    if not counted:
        return _unknown("not comparable: no byte was counted")
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
