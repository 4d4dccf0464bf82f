"""Kernels give the same bits on every instruction set and processor."""

from __future__ import annotations

import os
import subprocess

from builders.needs import needs_cross
from sanitized import drivers

from hpcai500 import _core


def outputs(preset: str, isa: str, *emulator: str) -> dict[str, str]:
    """What each kernel gives, by its name."""
    command = [*emulator, str(drivers(preset) / "kernel_outputs")]
    done = subprocess.run(command, env=os.environ | {"HPCAI500_ISA": isa}, capture_output=True, text=True, check=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found.pop("isa") == isa
    assert len(found) == 15
    return found


def rounded_alike(found: dict[str, str]) -> dict[str, str]:
    """Without those of a fused multiply-add, which rounds once where the portable kernels round twice."""
    return {kernel: value for kernel, value in found.items() if not kernel.endswith("_fused")}


def test_every_instruction_set_of_this_processor_gives_the_same_bits() -> None:
    kernels = _core.build_info()["isa"]
    *vectors, portable = (outputs("kernels", isa) for isa in kernels[kernels.index(_core.cpu_isa()) :])
    assert all(found == vectors[0] for found in vectors)
    assert all(rounded_alike(found) == rounded_alike(portable) for found in vectors)


@needs_cross
def test_neon_gives_the_bits_of_x86() -> None:
    neon, portable = (outputs("aarch64", isa, "qemu-aarch64-static") for isa in ("neon", "portable"))
    here = outputs("kernels", "portable")
    assert portable == here
    assert rounded_alike(neon) == rounded_alike(here)
    if _core.cpu_isa() != "portable":
        assert neon == outputs("kernels", _core.cpu_isa())
