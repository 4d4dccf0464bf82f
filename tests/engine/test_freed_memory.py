"""Freed memory stays with the process: in its own one, because nothing takes the setting back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from hpcai500.engine.precision import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(20_000_000)  # 80 MB: more than glibc ever keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
# Small blocks that lie behind a large one make the first rounds take new memory.
print([faults() for _ in range(6)][-1])
"""


@pytest.mark.parametrize(("how", "stays"), [("keep", True), ("as it is", False)])
def test_a_tensor_takes_the_memory_of_the_one_before(how: str, stays: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    assert (int(ended.stdout) < 20) == stays
