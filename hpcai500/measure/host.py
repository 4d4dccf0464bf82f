"""The machine as the job sees it: the nodes in `system.json`, and counters of interfaces."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcai500.comm.communicator import Communicator
from hpcai500.files import boot
from hpcai500.methodology.communication import CounterDifference
from hpcai500.methodology.nodes import node_differences
from hpcai500.system.node import Places, describe_node

# ----------------------------------------------------------------------------------------------------
# The nodes.


# How many nodes keep the raw output of tools: the first, those that differ, then others.
MOST_RAW = 16


def available_cores() -> int:
    """The number of cores that this process may run on, which may be fewer than the node has."""
    return len(os.sched_getaffinity(0))


def boot_id() -> str | None:
    """The kernel's boot ID, None if unknown: processes with the same one can compare their clocks."""
    return boot() or None


def capture_nodes(world: Communicator, places: Places, *, first_of_host: bool) -> list[dict[str, Any]]:
    """The documents of all nodes, on rank 0; none elsewhere. All ranks call it together.

    `places` are those of `describe_node`; `first_of_host` is whether this rank describes its node.
    """
    mine = with_torch(describe_node(places)) if first_of_host else None
    raw = mine.pop("raw") if mine else None
    # Compressed, because every rank gets those of all nodes.
    packed = world.gather_objects(_packed(mine) if mine else None)
    nodes = {rank: _unpacked(one) for rank, one in enumerate(packed) if one} if world.rank == 0 else {}
    keep = world.broadcast_object(_keepers(nodes) if world.rank == 0 else None)
    raws = world.gather_objects(_packed(raw) if world.rank in keep else None)
    return [{**node, "raw": _unpacked(raws[rank]) if raws[rank] else None} for rank, node in nodes.items()]


def with_torch(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the devices that this process may use, and the libraries that its torch has loaded."""
    cuda = torch.version.cuda is not None and torch.cuda.is_available()
    software = {
        "torch": torch.__version__,
        "torch_build": torch.__config__.show(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else document["software"]["nccl"],
        "numpy": np.__version__,
    }
    return {**document, "accelerators": _accelerators(), "software": {**document["software"], **software}}


def _accelerators() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "name": device.name,
            "memory_bytes": device.total_memory,
            "multiprocessors": device.multi_processor_count,
            # The form of NVML, as under `devices`.
            "uuid": f"GPU-{device.uuid}",
        }
        for device in properties
    ]


def _keepers(nodes: Mapping[int, Mapping[str, Any]]) -> set[int]:
    ranks = list(nodes)
    odd = {host for difference in node_differences([*nodes.values()]) for host in difference.outliers}
    outliers = [rank for rank in ranks if str(nodes[rank].get("host")) in odd]
    return set(list(dict.fromkeys([*ranks[:1], *outliers, *ranks]))[:MOST_RAW])


def _packed(document: Any) -> bytes:
    return zlib.compress(json.dumps(document).encode())


def _unpacked(content: bytes) -> Any:
    return json.loads(zlib.decompress(content))


# ----------------------------------------------------------------------------------------------------
# Bytes over the network interfaces of this host, by the counters of the kernel and of adapters.


# This process's network namespace; that of /sys may be another.
_DEVICES = Path("/proc/self/net/dev")
_CLASSES = Path("/sys/class")
_LOOPBACK = "lo"
# Linux's ARP hardware types (if_arp.h): IP over InfiniBand, whose bytes are in the adapter's counters too, and tunnels,
# whose bytes are in those of the interface that they go through.
_IP_OVER_INFINIBAND = "32"
_TUNNELS = {"65534", "768", "769", "776", "778", "823"}
# Devices through which traffic shaping sends an interface's packets once more.
_SHAPING = "ifb"
# An InfiniBand port counts words of four bytes.
_WORD_BYTES = 4


@dataclass(frozen=True)
class Bytes:
    """Bytes since the interface came up."""

    sent: int
    received: int


@dataclass(frozen=True)
class NetworkCounters:
    """All counters at one moment; `loopback` is None without such an interface.

    `interfaces` are those that lead to other hosts, by name; an adapter's port is `mlx5_0/1`.
    """

    loopback: Bytes | None
    interfaces: dict[str, Bytes]

    def since(self, before: NetworkCounters) -> CounterDifference:
        """Bytes since `before`, over the interfaces that both have; plain data.

        An interface whose counter is lower than before was restarted: it is named in `restarted`, and its bytes are
        unknown.
        """
        both = {
            name: (before.interfaces[name], now) for name, now in self.interfaces.items() if name in before.interfaces
        }
        if self.loopback and before.loopback:
            both[_LOOPBACK] = before.loopback, self.loopback
        restarted = sorted(name for name, (old, new) in both.items() if new.sent < old.sent)
        sent = {name: new.sent - old.sent for name, (old, new) in both.items() if name not in restarted}
        received = {name: new.received - old.received for name, (old, new) in both.items() if name not in restarted}
        return {
            "loopback_sent_bytes": sent.pop(_LOOPBACK, None),
            "sent_bytes": sent,
            "received_bytes": {name: amount for name, amount in received.items() if name != _LOOPBACK},
            "restarted": restarted,
        }


def read_counters(devices: Path = _DEVICES, classes: Path = _CLASSES) -> NetworkCounters:
    """The counters now; reading them takes some tens of microseconds.

    Bonds, bridges, VLANs, tunnels, queues for shaping, and IP over InfiniBand beside the adapter's own counters are
    left out, because the interfaces below them count the same bytes.

    Raises:
        OSError: the system is not Linux, or /proc is not mounted.
    """
    found = dict(_network_devices(devices.read_text(encoding="ascii", errors="replace")))
    adapters = dict(_infiniband_ports(classes / "infiniband"))
    interfaces = {
        name: amount
        for name, amount in found.items()
        if name != _LOOPBACK and not _is_counted_below(classes / "net" / name, bool(adapters))
    }
    return NetworkCounters(found.get(_LOOPBACK), interfaces | adapters)


def _network_devices(listing: str) -> Iterator[tuple[str, Bytes]]:
    """Rows of /proc/net/dev: name, eight counters of received and eight of sent traffic; the first of each is bytes."""
    for line in listing.splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        yield name.strip(), Bytes(sent=int(fields[8]), received=int(fields[0]))


def _is_counted_below(device: Path, has_adapters: bool) -> bool:
    if any(device.glob("lower_*")) or device.name.startswith(_SHAPING):
        return True
    kind = (device / "type").read_text().strip() if (device / "type").is_file() else ""
    return kind in _TUNNELS or (has_adapters and kind == _IP_OVER_INFINIBAND)


def _infiniband_ports(adapters: Path) -> Iterator[tuple[str, Bytes]]:
    for port in sorted(adapters.glob("*/ports/*")):
        sent, received = port / "counters" / "port_xmit_data", port / "counters" / "port_rcv_data"
        # A virtual function may have the files without permission to read them.
        try:
            words = int(sent.read_text()), int(received.read_text())
        except (OSError, ValueError):
            continue
        name = f"{port.parents[1].name}/{port.name}"
        yield name, Bytes(words[0] * _WORD_BYTES, words[1] * _WORD_BYTES)
