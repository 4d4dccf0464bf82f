"""Contestants of one case: made one after the other, so that what one cannot do leaves the others their turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from clock import Timed, turns
from held import free
from options import Options
from rows import first_line

# Makes whatever a contestant needs and returns its timed calls.
Maker = Callable[[], Timed]
NO_MEMORY = "does not fit into the device's memory"


def hold(
    makers: Mapping[str, Maker], options: Options, warm_up: int = 5
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Let contestants take turns; returns the seconds of those that could, and why the others could not."""
    ready: dict[str, Timed] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        made = _made(make)
        if isinstance(made, str):
            failed[name] = made
            free(options.device)
        else:
            ready[name] = made
    if not ready:
        return {}, failed
    try:
        return turns(ready, options, warm_up), failed
    except torch.OutOfMemoryError:
        # Together they need more than each of them alone.
        return {}, failed | dict.fromkeys(ready, f"{NO_MEMORY} beside its rivals")


def _made(make: Maker) -> Timed | str:
    """A contestant after its first call, or why it cannot: then nothing holds what it had made when this returns."""
    try:
        run = make()
        # Not every lack of memory shows before the first call.
        run(1)
    except Exception as error:  # noqa: BLE001 - whatever keeps one contestant is written down, and the others go on
        return reason(error)
    return run


def reason(error: Exception) -> str:
    """One line; of memory in words that do not change with its size."""
    return NO_MEMORY if isinstance(error, torch.OutOfMemoryError) else first_line(error)


def speed_rows(
    case: Mapping[str, Any], seconds: Mapping[str, list[float]], failed: Mapping[str, str], amount: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A row for each contestant: `case`, its median, and each of `amount` (of one call) a second.

    A contestant that failed has a row with the reason.
    """
    rows: list[dict[str, Any]] = []
    for name, values in seconds.items():
        median = statistics.median(values)
        rates = {f"{what}_per_second": much / median for what, much in amount.items()}
        rows.append({**case, "contestant": name, "median_seconds": median, **rates, "reason": None})
    nothing = dict.fromkeys(("median_seconds", *(f"{what}_per_second" for what in amount)))
    rows += [{**case, "contestant": name, **nothing, "reason": why} for name, why in failed.items()]
    return rows
