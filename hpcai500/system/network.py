"""Network devices of this host, their speed, and which one reaches the other hosts of a job."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcai500.system.devices import numa_of, pci_facts
from hpcai500.system.looking import Absent, Host, Part, anonymous, folders, link_name, read, read_number

# ----------------------------------------------------------------------------------------------------
# Interfaces and InfiniBand adapters, from the kernel.


# Linux's ARP hardware types (if_arp.h) by their usual names.
_KINDS = {"1": "ethernet", "32": "infiniband", "772": "loopback"}
_MEGA, _GIGA = 10**6, 10**9


def describe_network(host: Host) -> Part:
    """`network` (interfaces) and `infiniband` (ports of adapters)."""
    interfaces, ports = network_interfaces(host.root), infiniband_ports(host.root)
    raw, absent = {}, []
    if ports:
        answer = host.ask(["ibstat"])
        if answer.text:
            # Only for the record: the values are read from the kernel's files.
            raw["ibstat"] = anonymous(answer.text)
        else:
            absent.append(Absent("InfiniBand details", "ibstat (infiniband-diags)", answer.reason or ""))
    unknown = [one["name"] for one in interfaces if one["is_physical"] and one["bits_per_second"] is None]
    if unknown:
        why = "the driver reports no speed, or the link is down"
        absent.append(Absent(f"speed of {', '.join(unknown)}", "ethtool DEVICE (as root), or the switch", why))
    return Part({"network": interfaces, "infiniband": ports}, raw, absent)


def network_interfaces(root: Path) -> list[dict[str, Any]]:
    """Interfaces except loopback; speeds in bits per second."""
    return [
        _interface(folder, root)
        for folder in folders(root / "sys/class/net", "*")
        if folder.is_dir() and read(folder / "type") != "772"
    ]


def _interface(folder: Path, root: Path) -> dict[str, Any]:
    speed, device = read_number(folder / "speed"), folder / "device"
    return {
        "name": folder.name,
        "kind": _KINDS.get(read(folder / "type") or "", "other"),
        "is_physical": device.exists(),
        "bits_per_second": speed * _MEGA if speed is not None and speed > 0 else None,
        "state": read(folder / "operstate"),
        "mtu_bytes": read_number(folder / "mtu"),
        "duplex": read(folder / "duplex"),
        "driver": link_name(device / "driver"),
        "numa_node": numa_of(device),
        "over": sorted(path.name.removeprefix("lower_") for path in folder.glob("lower_*")),
        **pci_facts(root, device.resolve().name if device.exists() else None),
    }


def infiniband_ports(root: Path) -> list[dict[str, Any]]:
    """Each port of each adapter of the RDMA class: InfiniBand, RoCE, Omni-Path."""
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        adapter = port.parents[1]
        device = adapter / "device"
        found.append(
            {
                "name": f"{adapter.name}/{port.name}",
                "adapter": read(adapter / "hca_type"),
                "board": read(adapter / "board_id"),
                "firmware": read(adapter / "fw_ver"),
                "bits_per_second": parse_rate(read(port / "rate")),
                "rate": read(port / "rate"),
                "state": _word(read(port / "state")),
                "physical_state": _word(read(port / "phys_state")),
                "link_layer": read(port / "link_layer"),
                "numa_node": numa_of(device),
                **pci_facts(root, device.resolve().name if device.exists() else None),
            }
        )
    return found


def parse_rate(text: str | None) -> int | None:
    """`200 Gb/sec (4X HDR)` as bits per second."""
    found = re.match(r"([\d.]+) Gb/sec", text or "")
    return round(float(found.group(1)) * _GIGA) if found else None


def _word(text: str | None) -> str | None:
    """`4: ACTIVE` -> `Active`, as ibstat writes it; `5: LinkUp` stays."""
    word = text.partition(": ")[2] if text else None
    return word.capitalize() if word and word.isupper() else word


# ----------------------------------------------------------------------------------------------------
# Nominal speeds.


_BITS = 8


def link_rates(root: Path = Path("/")) -> dict[str, float]:
    """Bytes per second, one way, of each interface that is up; an adapter's port is `mlx5_0/1`, as in measure.network.

    Interfaces on top of others (bonds, bridges) and those of unknown speed (most virtual machines) are left out.
    """
    devices = [one for one in network_interfaces(root) if one["state"] in ("up", "unknown") and not one["over"]]
    ports = [port for port in infiniband_ports(root) if port["state"] == "Active"]
    return {one["name"]: one["bits_per_second"] / _BITS for one in [*devices, *ports] if one["bits_per_second"]}


# ----------------------------------------------------------------------------------------------------
# The interface to the other hosts.


# <linux/sockios.h>: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
# Absent if the kernel has no IPv6.
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_LINK_SCOPE = "20"
# <linux/if_addr.h>: another host has the address (IFA_F_DADFAILED), or that is not known yet (IFA_F_TENTATIVE).
_NOT_USABLE = 0x08 | 0x40
# Gloo's variable: by default it uses the address of the host name, which on Debian is a loopback address.
_CHOICE = "GLOO_SOCKET_IFNAME"
# NCCL's: by default it takes the first one that is up, such as a bridge of virtual machines or the USB port of a board
# controller. With `=` it takes exactly this name, else all that begin with it.
_CHOICE_OF_NCCL = "NCCL_SOCKET_IFNAME"


def interface_addresses() -> dict[str, tuple[str, ...]]:
    """Addresses of each interface that has any, IPv4 before IPv6, without those that are only valid on one link."""
    found: dict[str, tuple[str, ...]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = (socket.inet_ntoa(answer[20:24]),)
    for line in (read(_IPV6_ADDRESSES) or "").splitlines():
        # proc_net(5): address, number of the interface, prefix, scope, flags, name.
        digits, _, _, scope, flags, name = line.split()
        if scope != _LINK_SCOPE and not int(flags, 16) & _NOT_USABLE:
            found[name] = (*found.get(name, ()), socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def is_loopback(address: str) -> bool:
    """Whether `address` can only be reached from this host itself."""
    return address.startswith("127.") or address == "::1"


def prefer_route(own_address: str, seen_of_root: Sequence[str], rank: int, hosts: Sequence[str]) -> None:
    """Make Gloo and NCCL use the interface through which the hosts reached rank 0, unless the user has set another.

    Args:
        own_address: of this rank's end of its connection to rank 0.
        seen_of_root: for each rank, the address at which it reached rank 0.
        hosts: host name of each rank.
    """
    elsewhere = [address for address, host in zip(seen_of_root, hosts, strict=True) if host != hosts[0]]
    if not elsewhere:
        return
    if _CHOICE not in os.environ:
        # Ranks on rank 0's host may have used a loopback address.
        _choose(elsewhere[0] if hosts[rank] == hosts[0] else own_address)
    if _CHOICE in os.environ:
        os.environ.setdefault(_CHOICE_OF_NCCL, f"={os.environ[_CHOICE]}")


def _choose(address: str) -> None:
    """Make Gloo use the interface that has `address`, if it is not a loopback address."""
    plain = address.removeprefix("::ffff:")
    if is_loopback(plain):
        return
    if name := next((name for name, its in interface_addresses().items() if plain in its), None):
        os.environ[_CHOICE] = name
