"""Links and places: how long a message takes, and who shares a wire with whom."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcai500.errors import UsageError

# Of a frame of 1514 bytes on Ethernet, 1448 are data under TCP and IPv4 with time stamps: the most that a link carries.
TCP_SHARE = 1448 / 1514


@dataclass(frozen=True)
class Hockney:
    """A message of m bytes takes latency + m / bandwidth (Hockney 1994, "The communication challenge for MPP").

    Attributes:
        latency_seconds: of a message without content, one way.
        bytes_per_second: one way, while the other way is in use as well.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_seconds) and self.latency_seconds >= 0 and self.bytes_per_second > 0):
            raise UsageError(
                f"link: expected a latency of 0 s or more and a positive bandwidth, got {self.latency_seconds} s and "
                f"{self.bytes_per_second} bytes/s"
            )

    def seconds(self, message_bytes: float) -> float:
        """One message."""
        return self.latency_seconds + message_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Network:
    """The two kinds of links of a cluster.

    Attributes:
        within: between two ranks of a node; each rank has its own.
        between: of a node to all others; its ranks share it.
    """

    within: Hockney
    between: Hockney


@dataclass(frozen=True)
class Layout:
    """Ranks, as many on each node, numbered node by node."""

    nodes: int
    per_node: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.per_node < 1:
            raise UsageError(f"layout: expected a node and a rank or more, got {self.nodes} x {self.per_node}")

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.per_node
