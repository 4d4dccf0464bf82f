"""Where the time of training steps went: waiting for data, computing, waiting for communication, and the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

_PARTS = ("data_wait_seconds", "compute_seconds", "communication_wait_seconds")


class StepSplit(BaseModel):
    """Shares of the time of all training steps, means over ranks; they add up to 1."""

    model_config = ConfigDict(frozen=True)

    data_wait: float
    compute: float
    communication: float
    other: float


def step_split(epochs: Iterable[Mapping[str, Any]]) -> StepSplit | None:
    """The split over `epochs`, the values of `epoch_stop`; None where a record is older than it."""
    found = list(epochs)
    if not found or any(part not in epoch for epoch in found for part in _PARTS):
        return None
    whole = math.fsum(epoch["seconds"] for epoch in found)
    known = [math.fsum(epoch[part] for epoch in found) for part in _PARTS]
    # Clocks are read one after the other: their sum may exceed the whole by less than a microsecond a step.
    whole = max(whole, math.fsum(known))
    if not whole:
        return None
    data_wait, compute, communication = (seconds / whole for seconds in known)
    return StepSplit(
        data_wait=data_wait,
        compute=compute,
        communication=communication,
        other=max(0.0, 1.0 - data_wait - compute - communication),
    )
