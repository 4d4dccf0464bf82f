"""The number of samples in an update, from a recipe in plain tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def global_batch(tables: Mapping[str, Any]) -> int:
    """Samples of one update over all replicas of the model."""
    policy, hardware = tables["hyperparameters"], tables["hardware"]
    replicas = hardware["nodes"] * hardware["accelerators_per_node"] // tables["programming"].get("stages", 1)
    return int(policy["batch_size"] * policy["accumulation_steps"] * replicas)
