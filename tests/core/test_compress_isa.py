"""Buffers, residuals and norms have the same bits on every processor and for any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpcai500 import _core

SCRIPT = """
import hashlib, sys
import numpy as np
from bucket_reference import ITEMS, some_tensors
from hpcai500 import _core

random = np.random.default_rng(3)
threads = int(sys.argv[1])
digest = hashlib.sha256()
tensors = some_tensors(2)
# Any bits: all exponents, subnormal numbers, infinite ones, every kind of NaN.
tensors.append(random.integers(0, 1 << 32, 100_003, np.uint32).view(np.float32))
tensors.append(random.integers(0, 1 << 32, 5_000, np.uint32).view(np.float32))
tensors[-1][~np.isfinite(tensors[-1])] = 0
count = sum(t.size for t in tensors)
target, norms = np.empty(count, np.float32), np.empty(len(tensors))
for wire, item in ITEMS.items():
    for scale in (1.0, 0.1, 1e-30):
        out = np.empty(count, item)
        _core.pack(tensors, out, wire=wire, scale=scale, threads=threads, norms=norms)
        digest.update(out.tobytes() + norms.tobytes())
        _core.unpack(out, [target], wire=wire, scale=3 * scale, threads=threads, norms=norms[:1])
        digest.update(target.tobytes() + norms[:1].tobytes())
buffer = np.empty(_core.quantised_bytes(count), np.uint8)
for scale in (1.0, 0.1, 1e-30):
    rest = (random.standard_normal(count) * scale).astype(np.float32)
    _core.quantise(tensors, buffer, scale=scale, threads=threads, residual=rest, norms=norms)
    digest.update(buffer.tobytes() + rest.tobytes() + norms.tobytes())
    _core.dequantise(buffer, [target], scale=scale, threads=threads, norms=norms[:1])
    _core.dequantise(buffer, [target], scale=7.0, threads=threads, accumulate=True)
    digest.update(target.tobytes() + norms[:1].tobytes())
_core.layer_norms(tensors, norms, threads=threads)
print(digest.hexdigest(), hashlib.sha256(norms.tobytes()).hexdigest(), _core.cpu_isa())
"""


def digests(isa: str, threads: int) -> list[str]:
    environment = os.environ | {"HPCAI500_ISA": isa, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", SCRIPT, str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *found, used = done.stdout.split()
    assert used == isa
    return found


def test_every_instruction_set_and_number_of_threads_gives_the_same_bits() -> None:
    kernels = _core.build_info()["isa"]
    here = kernels[kernels.index(_core.cpu_isa()) :]
    first = digests(here[0], 1)
    assert all(digests(isa, 3) == first for isa in here)
