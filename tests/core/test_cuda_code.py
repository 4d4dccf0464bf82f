"""What nvcc makes of the kernels of buckets: whole vectors from memory and to it, and no memory in place of registers.

Their speed cannot be measured without a device; what it rests on can be read in the code. Memory is read and written
16 bytes at a time (a half's four are 8), which nvcc does only where it finds that it may: a change in how an address
is computed has undone it before.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVCC = os.environ.get("CUDACXX") or shutil.which("nvcc")
KERNELS = ROOT / "csrc" / "core" / "gradients"
SETTINGS = ROOT / "csrc" / "cmake" / "CudaCompiler.cmake"
# Of 65,536 registers, what leaves room for three blocks of 256 threads and their 192 bytes of values each.
MOST_REGISTERS = 80

pytestmark = pytest.mark.skipif(NVCC is None, reason="no CUDA compiler")


@dataclass(frozen=True)
class Code:
    """A kernel: its PTX, and what the assembler says that its machine code takes of a thread."""

    ptx: str
    registers: int
    stack: int
    spilled: int

    def count(self, operation: str) -> int:
        """How often an operation, as a regular expression, stands in the code."""
        return len(re.findall(rf"\b{operation}\s", self.ptx))


def compiled(source: str, folder: Path) -> dict[str, Code]:
    """The kernels of a file for sm_90, by their names without what the compiler adds."""
    command = [str(NVCC), "-arch=sm_90", "-std=c++20", "-O3", "--fmad=false", f"-I{ROOT / 'csrc'}", "-cubin"]
    command += ["--resource-usage", "--keep", f"--keep-dir={folder}", str(KERNELS / source)]
    done = subprocess.run(
        [*command, "-o", str(folder / "out.cubin")], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    (ptx,) = folder.glob("*.ptx")
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)\n}\n", ptx.read_text(), re.DOTALL))
    usage = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers",
        done.stderr,
        re.DOTALL,
    )
    assert bodies.keys() == {name for name, *_ in usage}
    return {
        name: Code(bodies[name], int(registers), int(stack), int(spilled)) for name, stack, spilled, registers in usage
    }


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Code]:
    """All kernels of buckets."""
    found: dict[str, Code] = {}
    for source in sorted(path.name for path in KERNELS.glob("*.cu")):
        found |= compiled(source, tmp_path_factory.mktemp("code"))
    return found


# Of each kernel, by what its name has: at least so many reads and writes of four items at once.
FOURS = {
    r"(?<!un)pack_tiles.*Float32": (r"ld\.global\.v4\.[fu]32", 4, r"st\.global\.v4\.[fu]32", 4),
    r"(?<!un)pack_tiles.*B?Float16": (r"ld\.global\.v4\.[fu]32", 4, r"st\.global\.v4\.u16", 4),
    r"unpack_tiles.*Float32": (r"ld\.global\.v4\.[fu]32", 4, r"st\.global\.v4\.[fu]32", 4),
    r"unpack_tiles.*B?Float16": (r"ld\.global\.v4\.u16", 4, r"st\.global\.v4\.[fu]32", 4),
    r"(?<!de)quantise_chunks": (r"ld\.global\.v4\.[fu]32", 8, r"st\.global\.v4\.[fu]32", 4),
    r"dequantise_tiles": (r"ld\.global\.v4\.u8", 4, r"st\.global\.v4\.[fu]32", 4),
    r"sum_tiles": (r"ld\.global\.v4\.[fu]32", 4, "", 0),
}


@pytest.mark.parametrize("kernel", FOURS)
def test_kernels_read_and_write_vectors(codes: dict[str, Code], kernel: str) -> None:
    reading, reads, writing, writes = FOURS[kernel]
    mine = {name: code for name, code in codes.items() if re.search(kernel, name)}
    assert mine
    for name, code in mine.items():
        assert code.count(reading) >= reads, name
        assert not writing or code.count(writing) >= writes, name


def test_every_kernel_is_looked_at(codes: dict[str, Code]) -> None:
    assert [name for name in codes if not any(re.search(kernel, name) for kernel in FOURS)] == []


def test_no_kernel_keeps_values_in_memory(codes: dict[str, Code]) -> None:
    assert {name: code.stack + code.spilled for name, code in codes.items() if code.stack + code.spilled > 0} == {}


def test_kernels_leave_room_for_enough_threads(codes: dict[str, Code]) -> None:
    assert {name: code.registers for name, code in codes.items() if code.registers > MOST_REGISTERS} == {}


def test_every_device_that_sites_have_gets_code_of_its_generation() -> None:
    listed = subprocess.run([str(NVCC), "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    board_computers = {87, 110}
    known = {int(name) for name in re.findall(r"compute_(\d+)\b", listed)} - board_computers
    ours = re.search(r"foreach\(architecture ([\d ]+)\)", SETTINGS.read_text())
    assert ours is not None
    compiled_for = {int(name) for name in ours[1].split()}
    lacking = {
        device
        for device in known
        if not any(device // 10 == code // 10 and code <= device for code in compiled_for & known)
    }
    assert lacking == set(), f"{SETTINGS} has no code that runs on them"
