"""`python -m hpcai500.self_test.command FOLDER LIMIT PART [WORD…]`: one process of `hpcai500 self-test`.

PART is `kernels` (HPCAI500_ISA selects the instruction set), `libraries`, `convolutions`, `training BENCHMARK`, or
`ranks KIND SIZE`: one of SIZE ranks that a launcher has started. Each imports what it needs only once the limit is set;
worker processes that a training run starts import this file again, and start faster without torch.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcai500.errors import ExitCode
from hpcai500.findings import FindingsLog
from hpcai500.stopping import let_signals_in
from hpcai500.streams import prepare_streams


@dataclass(frozen=True)
class Surroundings:
    """What the login half gave this process: a log of findings, a folder to write to, and words for its task."""

    findings: FindingsLog
    folder: Path
    words: Sequence[str]


def begin(arguments: Sequence[str] | None = None) -> Surroundings:
    """Take `FOLDER LIMIT [WORD…]`: findings go to FOLDER/findings.jsonl, all output to FOLDER/log.

    The original stderr only gets a line for each check that ends. After LIMIT seconds the kernel ends this process by
    SIGALRM, even where it hangs in a library. A signal to stop ends it at once: there is nothing to save.
    """
    prepare_streams()
    place, limit_seconds, *words = sys.argv[1:] if arguments is None else arguments
    folder = Path(place)
    for number in (signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(int(limit_seconds))
    let_signals_in()
    told = os.fdopen(os.dup(2), "w", encoding="utf-8")
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable()
    return Surroundings(FindingsLog(folder / "findings.jsonl", told), folder, words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks of a part. The findings tell how they ended; only a rank's exit code does too."""
    here = begin(arguments)
    part, *words = here.words
    if part == "ranks":
        from hpcai500.self_test import ranks

        kind, size = words
        return ranks.be_rank(here.findings, kind, int(size))
    for name, check in _checks(part, words, here.folder).items():
        here.findings.check(name, check)
    return ExitCode.PASS


def _checks(part: str, words: Sequence[str], folder: Path) -> Mapping[str, Callable[[], str]]:
    """The checks of a part by their names; `folder` takes the files that they write."""
    match part:
        case "kernels":
            from hpcai500 import _core
            from hpcai500.self_test import kernels

            return {f"{name} [{_core.cpu_isa()}]": check for name, check in kernels.checks(folder).items()}
        case "libraries":
            from hpcai500.self_test import accelerator, libraries

            facts = {f"libraries: {name}": tell for name, tell in libraries.FACTS.items()}
            on_device = {
                f"{name} [CUDA]": partial(accelerator.on_device, check) for name, check in accelerator.CHECKS.items()
            }
            return {**facts, **on_device}
        case "convolutions":
            from hpcai500.self_test import libraries

            recipes = ("ic/smoke", "ewa/smoke")
            return {f"convolutions: {recipe}": partial(libraries.check_convolutions, recipe) for recipe in recipes}
        case _:
            from hpcai500.self_test.training import train_tiny

            (benchmark,) = words
            return {f"training run: {benchmark}": lambda: train_tiny(benchmark, folder)}


if __name__ == "__main__":
    sys.exit(main())
