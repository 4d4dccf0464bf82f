"""Buckets of any bits under the address, undefined-behaviour and thread sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from sanitized import build, run

from hpcai500 import _core

KERNELS = _core.build_info()["isa"]


@pytest.mark.parametrize("isa", KERNELS[KERNELS.index(_core.cpu_isa()) :])
def test_buckets_of_any_bits_are_clean_under_asan(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = build("asan", tmp_path) / "compression_stress"
    monkeypatch.setenv("HPCAI500_ISA", isa)
    result = run([str(driver), "20", "3"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == "20 rounds\n"


def test_buckets_threads_are_free_of_races(tmp_path: Path) -> None:
    result = run([str(build("tsan", tmp_path) / "compression_stress"), "8", "4"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == "8 rounds\n"
