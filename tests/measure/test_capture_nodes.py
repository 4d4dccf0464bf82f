"""Nodes of a job, described where they are and brought together on rank 0."""

from __future__ import annotations

from typing import Any

from builders.ranks import run_ranks

from hpcai500.system.node import describe_node


def captured(communicator: Any, odd: int, most_raw: int) -> list[tuple[str, str | None, str | None]]:
    """Each rank plays a node of its own; that of rank `odd` has another swappiness."""
    from hpcai500.measure import host

    def described(places: Any) -> dict[str, Any]:
        node = describe_node(places)
        node["host"], node["raw"] = f"n{communicator.rank}", {"lscpu": f"of n{communicator.rank}"}
        node["kernel_settings"]["swappiness"] = "1" if communicator.rank == odd else "60"
        return node

    host.describe_node, host.MOST_RAW = described, most_raw  # type: ignore[misc]
    # The second rank is the second of its host: it has nothing to say.
    nodes = host.capture_nodes(communicator, {}, first_of_host=communicator.rank != 1)
    return [(node["host"], node["raw"] and node["raw"]["lscpu"], node["software"]["torch_build"]) for node in nodes]


def test_rank_0_has_all_nodes_and_the_raw_captures_of_the_first_and_of_those_that_differ() -> None:
    import torch

    build = torch.__config__.show()
    first, *others = run_ranks(captured, 4, 3, 2)
    assert first == [("n0", "of n0", build), ("n2", None, build), ("n3", "of n3", build)]
    assert others == [[], [], []]
