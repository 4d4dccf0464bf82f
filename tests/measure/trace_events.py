"""Events as torch's profiler exports them, for tests of what is read out of a trace."""

from __future__ import annotations

from typing import Any


def event(name: str, start: float, seconds: float, category: str = "cpu_op", thread: int = 1, **more: Any) -> Any:
    """One complete event; times in seconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread,
        "ts": 4.4e12 + start * 1e6, "dur": seconds * 1e6, "args": more,
    }  # fmt: skip


def tensors(*described: tuple[list[int], list[int], str]) -> dict[str, Any]:
    """The arguments of an operator that was given tensors (shape, strides, element)."""
    shapes, strides, elements = (list(column) for column in zip(*described, strict=True))
    return {"Input Dims": [*shapes, []], "Input Strides": [*strides, []], "Input type": [*elements, "Scalar"]}


IMAGES = [8, 16, 4, 4]
CHANNELS_FIRST, CHANNELS_LAST = [256, 16, 4, 1], [256, 1, 64, 16]
