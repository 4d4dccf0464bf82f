"""Where rank 0's monitor can be reached: its listening socket, and every address under which others may find it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from hpcai500.comm.interfaces import interface_addresses


@dataclass(frozen=True)
class Offer:
    """What rank 0 tells the others so that they find its monitor and can prove that they belong to the job.

    Attributes:
        host: its host name.
        addresses: where it may be reached, likeliest first.
        port: TCP port.
        token: the secret of this job.
    """

    host: str
    addresses: tuple[str, ...]
    port: int
    token: str


def listen(waiting: int) -> socket.socket:
    """A socket on a free port of all interfaces, with room for `waiting` connections at once."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel with IPv6 whose administrator has switched it off
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=waiting, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=waiting)


def own_addresses() -> tuple[str, ...]:
    """This host's addresses, likeliest first: the interface of GLOO_SOCKET_IFNAME, MASTER_ADDR if it is ours, what the
    host name stands for, every other interface, and loopback addresses last.
    """
    by_interface = interface_addresses()
    ours = list(by_interface.values())
    named = [by_interface.get(name.strip(), "") for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")]
    master = [address for address in _resolved(os.environ.get("MASTER_ADDR", "")) if address in ours]
    found = [address for address in (*named, *master, *_resolved(socket.gethostname()), *ours) if address]
    return tuple(sorted(dict.fromkeys(found), key=is_loopback))


def is_loopback(address: str) -> bool:
    """Whether only the host itself can mean itself by this address: elsewhere it is another machine's."""
    return address.startswith("127.") or address == "::1"


def candidates(offer: Offer, own_host: str) -> list[str]:
    """Addresses of `offer` that are worth a try from host `own_host`."""
    return [one for one in offer.addresses if own_host == offer.host or not is_loopback(one)]


def _resolved(name: str) -> list[str]:
    """Addresses that `name` stands for; none where nobody knows it."""
    if not name:
        return []
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []
