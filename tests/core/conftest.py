"""The drivers under each sanitizer, built once for all tests that run them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sanitized import build


@pytest.fixture(scope="session")
def asan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the drivers under the address and undefined-behaviour sanitizers."""
    return build("asan", tmp_path_factory.mktemp("asan"))


@pytest.fixture(scope="session")
def tsan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the drivers under the thread sanitizer."""
    return build("tsan", tmp_path_factory.mktemp("tsan"))
