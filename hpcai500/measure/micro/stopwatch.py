"""Seconds of a call on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def stopwatch(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """A function that makes a call and returns the seconds that the device took for it."""
    return _on_stream if device.type == "cuda" else _on_host


def _on_host(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _on_stream(call: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
