"""Slurm's commands: called with a bound on the time that they may take, their words in our errors."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from hpcai500.errors import EnvironmentLacksError, RunError

_PATIENCE_SECONDS = 120.0
# Filters that a user has set for own use; and a bound on how many numbers of elements squeue and sacct print.
_FILTERS = ("SQUEUE_", "SACCT_")
_ALL_NUMBERS = {"SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


def call(environment: Mapping[str, str], program: str, *words: str) -> str:
    """What `program` printed on stdout.

    Raises:
        EnvironmentLacksError: there is no such program here.
        RunError: it failed, or does not answer; `error.args` has its words.
    """
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        raise EnvironmentLacksError(
            f"no {program} here: call this where Slurm's commands are: on a login node, not in the image"
        )
    kept = {name: value for name, value in environment.items() if not name.startswith(_FILTERS)}
    try:
        ended = subprocess.run(
            [path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**kept, **_ALL_NUMBERS},
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{program} did not answer within {_PATIENCE_SECONDS:g} s: try again later") from error
    except OSError as error:
        raise EnvironmentLacksError(f"{path} cannot be started: {error.strerror}") from error
    if ended.returncode != 0:
        raise RunError(f"{program}: {_said(program, ended.stderr) or f'exit code {ended.returncode}'}")
    return ended.stdout


def has(environment: Mapping[str, str], program: str) -> bool:
    """Whether `program` can be called here."""
    return shutil.which(program, path=environment.get("PATH")) is not None


def _said(program: str, text: str) -> str:
    lines: Sequence[str] = [line.removeprefix(f"{program}: ").removeprefix("error: ") for line in text.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip())[:400]
