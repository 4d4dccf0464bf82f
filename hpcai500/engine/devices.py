"""The device of a rank."""

from __future__ import annotations

import os
import sys

import torch

from hpcai500.engine.ranks import Ranks
from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Recipe
from hpcai500.system.accelerator import Torch
from hpcai500.system.doctor import why_no_device


def device_of(recipe: Recipe, ranks: Ranks) -> torch.device:
    """The device of the recipe. There is no silent fall-back to a CPU: its numbers would be taken for the device's."""
    if recipe.accelerator.device != "cuda":
        return torch.device(recipe.accelerator.device)
    if not torch.cuda.is_available():
        raise EnvironmentLacksError(
            why_no_device(
                os.environ,
                Torch(torch.__version__, torch.version.cuda, torch.version.hip),
                # The options of a job are those of its command.
                [recipe.benchmark, *sys.argv[1:]],
            )
        )
    # A launcher may show each rank its own device only.
    devices = torch.cuda.device_count()
    local_rank = ranks.placement.local_rank if devices > 1 else 0
    if local_rank >= devices:
        raise EnvironmentLacksError(
            f"{ranks.name} is number {local_rank} on its host, which shows {devices} devices: start as many ranks a "
            "node as it has devices"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def device_name(device: torch.device) -> str:
    """`cuda:1 (NVIDIA H100)`, or `cpu`."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
