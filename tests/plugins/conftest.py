"""The plug-in `clipped` (builders/plugins.py), installed once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from builders.commands import python_with
from builders.plugins import Clipped, install


@pytest.fixture(scope="session")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Clipped:
    """In an environment of its own."""
    work = tmp_path_factory.mktemp("clipped")
    site = work / "site"
    install("clipped", site)
    return Clipped(site, python_with(work / "python", site), work)


@pytest.fixture
def here(clipped: Clipped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clipped]:
    """This process sees the plug-in too, while the test runs."""
    monkeypatch.syspath_prepend(str(clipped.site))
    before = set(sys.modules)
    yield clipped
    for name in set(sys.modules) - before:
        if name.startswith("hpcai500_clipped"):
            del sys.modules[name]
