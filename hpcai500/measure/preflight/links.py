"""How fast the network interfaces of this host say that they are."""

from __future__ import annotations

from pathlib import Path

from hpcai500.system.describe.network import infiniband_ports, network_interfaces

_BITS = 8


def link_rates(root: Path = Path("/")) -> dict[str, float]:
    """Bytes a second of each interface that is up, one way; an adapter's port is `mlx5_0/1`, as in measure.network.

    What is made of others (bonds, bridges) is left out, and so is what does not know its speed (most virtual machines).
    """
    devices = [one for one in network_interfaces(root) if one["state"] in ("up", "unknown") and not one["over"]]
    ports = [port for port in infiniband_ports(root) if port["state"] == "Active"]
    return {one["name"]: one["bits_per_second"] / _BITS for one in [*devices, *ports] if one["bits_per_second"]}
