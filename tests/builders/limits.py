"""Small runs of real training under the limits of a site, which end well or are refused in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.commands import HPCAI500, Ended
from builders.ranks import clean_environment
from builders.runs import TINY
from hpcai500.record import iterate, read_record

# Longer than any of these runs on the busiest machine: what takes longer hangs.
HANGS_SECONDS = 600


def run_under(
    limit: Sequence[str],
    images: Path,
    folder: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Train by the command line, started by the command `limit`; threads by default. The record is `folder`/record."""
    settings = [word for text in TINY if not text.startswith("os.") for word in ("--set", text)]
    line = ["ic", "--recipe", "ic/smoke", "--data", str(images), "--out", "record", *settings]
    return subprocess.run(
        [*limit, *HPCAI500, *line, "--set", "problem.epochs=1", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**clean_environment(), **(environment or {})},
        timeout=HANGS_SECONDS,
        check=False,
    )


def shell_limit(option: str, value: object) -> list[str]:
    """A command that starts another one under `ulimit`."""
    return ["bash", "-c", f'ulimit {option} {value}; exec "$@"', "limited"]


def errors_of(ended: Ended) -> list[str]:
    return [line for line in ended.stderr.splitlines() if line.startswith("hpcai500: error: ")]


def require_sound(ended: Ended, record: Path) -> None:
    """Require that the run has ended well, with its results."""
    assert ended.returncode == 0, ended.stderr
    assert not errors_of(ended)
    assert list(iterate(read_record(record).events, "run_stop"))
    assert "HPCAI500 RESULT PASS" in ended.stdout


def require_refused(ended: Ended, limit: str) -> None:
    """Require that the run was refused, or ended early, with one line that names the limit."""
    assert ended.returncode not in (0, 2), ended.stdout
    assert len(errors_of(ended)) == 1, ended.stderr
    assert limit in errors_of(ended)[0]
    assert "Traceback" not in ended.stderr
    assert "unexpected" not in ended.stderr
