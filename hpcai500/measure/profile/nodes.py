"""The curves of communication of all nodes, from what their ranks have sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcai500.measure.profile.curves import Point, link_points, loopback_points, network_points
from hpcai500.measure.profile.sampling import Sample

NETWORK, LOOPBACK, LINKS = "network", "loopback", "NVLink"


def curves_of_rank(samples: Sequence[Sample], rank: int, host: str) -> list[dict[str, Any]]:
    """What this rank has seen: `[{host, rank, path, points}]`, for `Communicator.gather_objects`."""
    curves: dict[str, list[Point]] = {
        NETWORK: network_points(samples),
        LOOPBACK: loopback_points(samples),
        LINKS: link_points(samples),
    }
    return [{"host": host, "rank": rank, "path": path, "points": points} for path, points in curves.items() if points]


def chosen_curve(curves: Sequence[Mapping[str, Any]], nodes: int) -> Mapping[str, Any] | None:
    """The curve that shows what gradients take: between nodes the network, else links, else TCP within the host.

    Of the first rank or node; None where nothing was sampled.
    """
    wanted = (NETWORK,) if nodes > 1 else (LINKS, LOOPBACK)
    return next((curve for path in wanted for curve in curves if curve["path"] == path), None)
