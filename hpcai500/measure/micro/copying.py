"""How fast memory is copied: the core's copy past the cache, or torch's, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.micro.crew import Crew
from hpcai500.measure.micro.memory import available_bytes, last_level_cache_bytes
from hpcai500.measure.micro.stopwatch import stopwatch
from hpcai500.measure.repetition import Effort
from hpcai500.progress import Progress

# STREAM's rule: each array at least four times as large as all last-level caches.
_CACHES = 4
# A machine whose caches are unknown, or small: pages, threads and kernels start up in no time beside this.
_LEAST_BYTES = 256 << 20
_LINE = 64
# A prime: no page, line or thread's part of the memory repeats the pattern at the same place.
_PERIOD = 1_000_003


def copy_bytes(caches: int, available: int, ranks_here: int) -> int:
    """Bytes of each of a rank's two arrays: four times the caches over all ranks of a host, if memory allows."""
    wanted = max(_CACHES * caches // ranks_here, _LEAST_BYTES)
    return min(wanted, available // 2) // _LINE * _LINE


def measure_copy(crew: Crew, seconds: float, bar: Progress) -> dict[str, Any]:
    """The document's entry: bytes read and written a second, of one node (STREAM's way to count).

    Raises:
        WrongAnswerError: a copy is not what it is a copy of.
        EnvironmentLacksError: there is no memory.
    """
    size = min(crew.gather(_size(crew)))
    if size == 0:
        raise EnvironmentLacksError("copy: no memory is left on this host: end other programs")
    effort = Effort(seconds=seconds, most_seconds=2 * seconds)
    source = _pattern(size, crew.device)
    target = torch.zeros_like(source)
    watch = stopwatch(crew.device)
    entries = []
    for name, copy in _ways(source, target, crew).items():
        target.zero_()
        timing = crew.time(lambda copy=copy: watch(copy), effort)  # type: ignore[misc]
        crew.require(f"copy by {name}", _complaint(source, target))
        entry = crew.entry("bytes/s", 2 * size, timing, share=1 / crew.nodes)
        entries.append({**entry, "shape": f"2 arrays of {size} bytes", "call": name, "precision": None})
    bar.advance()
    best = max(entries, key=lambda entry: entry["value"])
    tried = [{"shape": entry["shape"], "call": entry["call"], "value": entry["value"]} for entry in entries]
    return {**best, "verified": True, "last_level_cache_bytes": last_level_cache_bytes() or None, "tried": tried}


def _size(crew: Crew) -> int:
    caches = last_level_cache_bytes() if crew.device.type == "cpu" else 0
    return copy_bytes(caches, available_bytes(crew.device, crew.ranks_here), crew.ranks_here)


def _pattern(size: int, device: torch.device) -> Tensor:
    """Bytes that differ from place to place; numbered places would not fit into 32 bits beside caches of gigabytes."""
    numbers = torch.arange(_PERIOD, dtype=torch.int32, device=device)
    return numbers.repeat(-(-size // 4 // _PERIOD))[: size // 4].view(torch.uint8)


def _ways(source: Tensor, target: Tensor, crew: Crew) -> dict[str, Callable[[], object]]:
    ways: dict[str, Callable[[], object]] = {"torch copy_": lambda: target.copy_(source)}
    if crew.device.type == "cpu":
        # torch aligns host memory to the lines that the core wants.
        ours, theirs = source.numpy(), target.numpy()
        ways["stream_copy"] = lambda: _core.stream_copy(ours, theirs, threads=torch.get_num_threads())
    return ways


def _complaint(source: Tensor, target: Tensor) -> str | None:
    return None if torch.equal(source, target) else "the copy differs from what was copied"
