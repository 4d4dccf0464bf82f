"""What tests of data share: a cache of their own, the handler of SIGTERM as it was, and calls of the command."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.commands import started_here

from hpcai500.cli import commands


@pytest.fixture(autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, which is not there yet: not that of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("cache") / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def without_progress() -> Callable[[str], str]:
    """Of what a command says, all but how far it is, which is told where it takes long: on a loaded machine."""

    def rest(said: str) -> str:
        return "".join(line for line in said.splitlines(keepends=True) if not re.search(r": \d+/\d+ ", line))

    return rest


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, without_progress: Callable[[str], str]
) -> Callable[..., tuple[str, str]]:
    """Runs `hpcai500 data WORDS` in this process to the exit code `code`; returns stdout and stderr."""

    started_here(monkeypatch)

    def run(*words: object, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["hpcai500", "data", *map(str, words)])
        assert commands.run() == code
        out, err = capsys.readouterr()
        return out, without_progress(err)

    return run


@pytest.fixture
def mistake(call: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """Runs `hpcai500 data WORDS`, which are wrong: exit code 64, and one line on stderr, which is returned."""

    def run(*words: object) -> str:
        out, err = call(*words, code=64)
        assert out == ""
        assert err.startswith("hpcai500: error: ")
        assert err.count("\n") == 1
        return err

    return run
