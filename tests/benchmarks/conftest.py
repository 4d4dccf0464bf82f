"""The modules of benchmarks/gpu, which import each other by their plain names, as their script's folder lets them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
# Behind all else: their names are plain ones, and must not hide another's.
sys.path.append(str(GPU))

Measured = Callable[[str], dict[str, Any]]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Measurements set torch's switches as they need them."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    tf32, search = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, search


@pytest.fixture(scope="session")
def measured() -> Measured:
    """What the part of a name gives with tiny shapes on a CPU; measured once for all tests."""
    from options import Options
    from parts import PARTS

    by_name = {part.name: part for part in PARTS}
    return cache(lambda name: by_name[name].measure(Options(torch.device("cpu"), 1, True), None))
