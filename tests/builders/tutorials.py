"""A tutorial, followed: each `$` line of its page is typed into a shell; what it prints is compared with the page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
# A page stands for any run: its hashes, numbers and columns are those of one.
_VARIES = (
    (re.compile(r"SHA256:\S+|\b[0-9a-f]{32,}\b"), "HASH"),
    (re.compile(r"[-+]?\d[\d,.]*(e[-+]?\d+)?"), "N"),
    (re.compile(r"\s+"), " "),
)
_SKIPPED = "…"

# Types a command into a shell: what it printed, on both streams, and its exit code.
Run = Callable[[str], tuple[str, int]]


@dataclass
class Step:
    """What is typed, and the lines that the page shows below it."""

    command: str
    shown: list[str] = field(default_factory=list)


def steps(page: str) -> list[Step]:
    """The steps of a page: in a block of code, `$ ` begins a command, `> ` goes on with it, all else is its output."""
    found: list[Step] = []
    is_open = False
    for line in page.splitlines():
        if not line.startswith("    "):
            # Within a block, a line may be empty.
            is_open = is_open and not line
            continue
        text = line[4:]
        if text.startswith("$ "):
            found.append(Step(text[2:]))
            is_open = True
        elif is_open and text.startswith(">"):
            found[-1].command += f"\n{text[2:]}"
        elif is_open:
            found[-1].shown.append(text)
    return found


def _plain(line: str) -> str:
    for varies, word in _VARIES:
        line = varies.sub(word, line)
    return line.strip()


def _is_shown(shown: str, printed: str) -> bool:
    return printed.startswith(shown[:-1].rstrip()) if shown.endswith(_SKIPPED) else printed == shown


def missing(shown: list[str], printed: str) -> list[str]:
    """The lines of a page that `printed` does not have in this order; all that is extra, where nothing is left out."""
    left = [_plain(line) for line in printed.splitlines() if line.strip()]
    wanted = [line for line in shown if line.strip()]
    if shown and _SKIPPED not in shown:
        return [] if [_plain(line) for line in wanted] == left else [*wanted, "(and no other line)"]
    lost = []
    for line in wanted:
        if line.strip() == _SKIPPED:
            continue
        at = next((at for at, one in enumerate(left) if _is_shown(_plain(line), one)), None)
        if at is None:
            lost.append(line)
        else:
            left = left[at + 1 :]
    return lost


def typed_here(folder: Path, environment: Mapping[str, str]) -> Run:
    """A shell for each command, in `folder`."""

    def run(command: str) -> tuple[str, int]:
        ended = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=dict(environment),
            check=False,
        )
        return ended.stdout, ended.returncode

    return run


def follow(name: str, run: Run) -> None:
    """Type all commands of the tutorial `name`.

    Raises:
        AssertionError: a command failed, or did not print what the page shows.
    """
    for step in steps((TUTORIALS / name).read_text(encoding="utf-8")):
        printed, code = run(step.command)
        assert code == 0, f"$ {step.command}\n{printed}"
        lost = missing(step.shown, printed)
        assert not lost, "\n".join([f"{name} shows what is not printed:", *lost, f"$ {step.command}", printed])
