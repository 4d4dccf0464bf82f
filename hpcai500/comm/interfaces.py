"""Network interfaces of this host, and the one that leads to the other hosts of a job."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence

# <linux/sockios.h>: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
# torch's Gloo: by default it takes what the host name stands for, which on Debian is a loopback address.
_CHOICE = "GLOO_SOCKET_IFNAME"


def interface_addresses() -> dict[str, str]:
    """IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def prefer_route(own_address: str, seen_of_root: Sequence[str], rank: int, hosts: Sequence[str]) -> None:
    """Have Gloo use the interface by which the hosts of the job reached rank 0, unless the user has said which.

    Args:
        own_address: of this end of this rank's connection to rank 0.
        seen_of_root: for each rank, the address under which it reached rank 0.
        rank: this one.
        hosts: host name of each rank.
    """
    elsewhere = [address for address, host in zip(seen_of_root, hosts, strict=True) if host != hosts[0]]
    if not elsewhere or _CHOICE in os.environ:
        return
    # Rank 0's host may reach itself by a loopback address.
    address = elsewhere[0] if hosts[rank] == hosts[0] else own_address
    if name := _name_of(address, interface_addresses()):
        os.environ[_CHOICE] = name


def _name_of(address: str, addresses: Mapping[str, str]) -> str | None:
    plain = address.removeprefix("::ffff:")
    return next((name for name, its in addresses.items() if its == plain and not plain.startswith("127.")), None)
