"""Every kernel and operator of ours is of a class: a profile of our own run must not have unknown time in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcai500.methodology.kernel_classes import kernel_class, operator_class

ROOT = Path(__file__).resolve().parents[2]
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")
_OPERATOR = re.compile(r"custom_op\(\s*\"(hpcai500::\w+)\"")


def _found(pattern: re.Pattern[str], folder: str, *suffixes: str) -> list[str]:
    files = (path for suffix in suffixes for path in (ROOT / folder).rglob(f"*{suffix}"))
    return sorted({name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))})


KERNELS = _found(_KERNEL, "csrc/core", ".cu", ".cuh")
OPERATORS = _found(_OPERATOR, "hpcai500", ".py")


def test_all_of_them_were_found() -> None:
    declared = sum(
        path.read_text(encoding="utf-8").count("__global__")
        for suffix in ("cu", "cuh")
        for path in (ROOT / "csrc" / "core").rglob(f"*.{suffix}")
    )
    assert len(KERNELS) == declared > 10
    assert {"hpcai500::nms", "hpcai500::roi_align"} <= set(OPERATORS)


@pytest.mark.parametrize("name", KERNELS)
def test_a_cuda_kernel_of_ours_has_a_class(name: str) -> None:
    assert kernel_class(f"void hpcai500::(anonymous namespace)::{name}<float, 192>(hpcai500::Table<192>, float*)")


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_ours_has_a_class(name: str) -> None:
    assert operator_class(name)
