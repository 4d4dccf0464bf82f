"""Seconds of rivals that take turns, so that what a machine does meanwhile hits one as the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from options import Options

Call = Callable[[], object]
# Makes so many calls, one after the other, and returns the seconds of all of them.
Timed = Callable[[int], float]

# Long enough that the ends of a turn do not count, short enough that turns of rivals see the same machine.
_TURN_SECONDS = 0.3
_MOST_CALLS = 1000


def timed(call: Call, device: torch.device) -> Timed:
    """`call`, timed from an idle device to an idle device.

    On a CUDA device, events on the current stream are what is read: they stand for all that the calls have put there,
    and for the time in which the device waited for the host.
    """

    def on_host(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begin

    def on_device(calls: int) -> float:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        first.record()
        for _ in range(calls):
            call()
        last.record()
        torch.cuda.synchronize(device)
        return float(first.elapsed_time(last)) / 1e3

    return on_device if device.type == "cuda" else on_host


def timed_all(calls: Mapping[str, Call], device: torch.device) -> dict[str, Timed]:
    """`timed` of each."""
    return {name: timed(call, device) for name, call in calls.items()}


def warm(run: Timed, options: Options, calls: int) -> int:
    """Make `calls` calls that are not counted; returns how many fill a turn."""
    if options.quick:
        run(1)
        return 1
    run(calls)
    taken = run(2) / 2
    return min(_MOST_CALLS, max(2, round(_TURN_SECONDS / max(taken, 1e-9))))


def turns(contestants: Mapping[str, Timed], options: Options, warm_up: int = 5) -> dict[str, list[float]]:
    """Seconds of one call of each contestant in each round; each round begins with another one.

    Args:
        contestants: by name.
        options: where, and how many rounds.
        warm_up: calls before, in which libraries choose their kernels and memory is laid out.
    """
    counts = {name: warm(run, options, warm_up) for name, run in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(options.rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            seconds[name].append(contestants[name](counts[name]) / counts[name])
    return seconds
