"""CUDA kernels on the stand-in for a device (csrc/tests/cuda_on_cpu), under the sanitizers, against their CPU twins.

No GPU is here: what runs is each kernel as C++, thread by thread. The second half shows that the stand-in finds what it
is there for: kernels with one defect each must not pass.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sanitized import run

FAMILIES = ["calls", "compression", "detection", "images", "norms"]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_give_what_the_cpu_gives_in_any_order_and_touch_only_their_memory(asan: Path, family: str) -> None:
    result = run([str(asan / "cuda_on_cpu_stress"), family, "8"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == f"{family}: 8 rounds\n"


def test_a_driver_older_than_cuda_12_1_gets_small_tables(asan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_CUDA_ON_CPU_DRIVER", "12000")
    result = run([str(asan / "cuda_on_cpu_stress"), "compression", "4"])
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_are_free_of_races(tsan: Path, family: str) -> None:
    result = run([str(tsan / "cuda_on_cpu_stress"), family, "3"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == f"{family}: 3 rounds\n"


def test_each_family_of_kernels_is_run_here(asan: Path) -> None:
    listed = run([str(asan / "cuda_on_cpu_stress")]).stderr.strip().rpartition(": ")[2]
    assert listed.split() == FAMILIES


def defect(drivers: Path, kernel: str, order: str = "forward") -> tuple[int, str, str]:
    """Exit code, what the kernel wrote, and what was said against it."""
    result = run([str(drivers / "cuda_on_cpu_defects"), kernel, order])
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("kernel", ["sound_barrier", "sound_syncwarp", "sound_last_block"])
def test_a_sound_kernel_passes_and_does_not_depend_on_the_order(asan: Path, tsan: Path, kernel: str) -> None:
    outputs = set()
    for drivers in (asan, tsan):
        for order in ("forward", "reverse"):
            code, output, errors = defect(drivers, kernel, order)
            assert code == 0, errors
            outputs.add(output)
    assert len(outputs) == 1


@pytest.mark.parametrize("kernel", ["missing_barrier", "same_place"])
def test_a_result_that_depends_on_the_order_shows(asan: Path, kernel: str) -> None:
    assert defect(asan, kernel, "forward")[1] != defect(asan, kernel, "reverse")[1]


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("kernel", ["missing_barrier", "missing_syncwarp", "missing_fence", "same_place"])
def test_a_race_is_reported_in_any_order(tsan: Path, kernel: str, order: str) -> None:
    code, _, errors = defect(tsan, kernel, order)
    assert code != 0
    assert "ThreadSanitizer: data race" in errors


@pytest.mark.parametrize(
    ("kernel", "report"),
    [
        ("behind_the_end", "AddressSanitizer: heap-buffer-overflow"),
        ("behind_the_shared_end", r"index 64 out of bounds for type 'int \[64\]'"),
        ("misaligned", "misaligned address .* for type 'const struct int4'"),
    ],
)
def test_memory_that_is_not_the_kernels_is_reported(asan: Path, kernel: str, report: str) -> None:
    code, _, errors = defect(asan, kernel)
    assert code != 0
    assert re.search(report, errors)


@pytest.mark.parametrize(
    ("kernel", "report"),
    [
        ("divergent_barrier", "32 (the first is thread 0) at the barrier of cuda_on_cpu_defects.cu:"),
        ("absent_lanes", "32 (the first is thread 0) with their warp at cuda_on_cpu_defects.cu:"),
        ("lane_that_ended", "reads lane 31, which is absent"),
    ],
)
def test_threads_that_do_not_meet_as_they_must_are_told_with_the_kernels_name(
    asan: Path, kernel: str, report: str
) -> None:
    code, _, errors = defect(asan, kernel, "reverse")
    assert code != 0
    assert f"cuda_on_cpu_defects: {kernel}: block (0, 0, 0): " in errors
    assert report in errors
