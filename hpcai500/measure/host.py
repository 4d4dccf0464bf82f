"""The machine as the job sees it: what `system.json` says of its nodes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcai500.comm.base import Communicator
from hpcai500.methodology.node_differences import node_differences
from hpcai500.system.describe.node import Places, describe_node

# Tools' own output of so many nodes is kept: of the first, of those that differ, then of others.
MOST_RAW = 16


def available_cores() -> int:
    """Cores that this process may run on: a scheduler may have given it fewer than the node has."""
    return len(os.sched_getaffinity(0))


def boot_id() -> str | None:
    """Which start of which machine this is: clocks of two processes can be compared when they share it."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.is_file() else None


def capture_nodes(world: Communicator, places: Places, *, first_of_host: bool) -> list[dict[str, Any]]:
    """The documents of all nodes, on rank 0; none elsewhere. All ranks call it.

    Args:
        world: all ranks.
        places: as `describe_node` has them.
        first_of_host: whether this rank speaks for its node.
    """
    mine = capture_node(places) if first_of_host else None
    raw = mine.pop("raw") if mine else None
    # Compressed, because every rank gets those of all nodes.
    packed = world.gather_objects(_packed(mine) if mine else None)
    nodes = {rank: _unpacked(one) for rank, one in enumerate(packed) if one} if world.rank == 0 else {}
    keep = world.broadcast_object(_keepers(nodes) if world.rank == 0 else None)
    raws = world.gather_objects(_packed(raw) if world.rank in keep else None)
    return [{**node, "raw": _unpacked(raws[rank]) if raws[rank] else None} for rank, node in nodes.items()]


def capture_node(places: Places | None = None) -> dict[str, Any]:
    """Hardware, operating system and software of this node, with what torch knows of them; unknown is None."""
    return with_torch(describe_node(places or {}))


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
            # As NVML writes it, under `devices`.
            "uuid": f"GPU-{device.uuid}",
        }
        for device in properties
    ]


def _keepers(nodes: Mapping[int, Mapping[str, Any]]) -> set[int]:
    """Ranks whose node's raw captures are kept."""
    ranks = list(nodes)
    odd = {host for difference in node_differences([*nodes.values()]) for host in difference.outliers}
    outliers = [rank for rank in ranks if str(nodes[rank].get("host")) in odd]
    return set(list(dict.fromkeys([*ranks[:1], *outliers, *ranks]))[:MOST_RAW])


def _packed(document: Any) -> bytes:
    return zlib.compress(json.dumps(document).encode())


def _unpacked(content: bytes) -> Any:
    return json.loads(zlib.decompress(content))
