"""`python -m hpcai500.self_test.command FOLDER LIMIT PART [WORD…]`: one process of `hpcai500 self-test`.

PART is `kernels` (HPCAI500_ISA selects the instruction set), `libraries [no-gpu]`, `convolutions`, `training
BENCHMARK`, or `ranks KIND SIZE`: one of SIZE ranks that a launcher has started. Imports come after the time limit is
set, and worker processes of a training run, which import this file again, start faster without torch.
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
from hpcai500.plugins import installed_plugins
from hpcai500.stopping import let_signals_in
from hpcai500.streams import kept_stderr, prepare_streams
from hpcai500.system.process import end_by_alarm


@dataclass(frozen=True)
class Process:
    """Input of this process: the log of findings, a folder for files, and the arguments of its part."""

    findings: FindingsLog
    folder: Path
    options: Sequence[str]


def begin(arguments: Sequence[str] | None = None) -> Process:
    """Parse `FOLDER LIMIT [WORD…]`: findings go to FOLDER/findings.jsonl, all output to FOLDER/log.

    The original stderr gets only a line for each finished check. After LIMIT seconds, not counting those without a
    processor, SIGALRM ends this process, even if it hangs in a library. A signal to stop ends it at once: there is
    nothing to save.
    """
    prepare_streams()
    place, limit_seconds, *options = sys.argv[1:] if arguments is None else arguments
    folder = Path(place)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_by_alarm(float(limit_seconds))
    let_signals_in()
    stderr = kept_stderr()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable()
    return Process(FindingsLog(folder / "findings.jsonl", stderr), folder, options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks of a part. Results are in the findings; only for ranks also in the exit code."""
    process = begin(arguments)
    part, *options = process.options
    if part == "ranks":
        from hpcai500.self_test import ranks

        kind, size = options
        return ranks.run_rank(process.findings, kind, int(size))
    for name, check in _checks(part, options, process.folder).items():
        process.findings.check(name, check)
    return ExitCode.PASS


def _checks(part: str, options: Sequence[str], folder: Path) -> Mapping[str, Callable[[], str]]:
    """The checks of a part by name; they write files into `folder`."""
    match part:
        case "kernels":
            from hpcai500 import _core
            from hpcai500.self_test import kernels

            return {f"{name} [{_core.cpu_isa()}]": check for name, check in kernels.checks(folder).items()}
        case "libraries":
            from hpcai500.self_test import accelerator, libraries

            facts = {f"libraries: {name}": fact for name, fact in libraries.FACTS.items()}
            leave_out = "no-gpu" in options
            on_device = {
                f"{name} [CUDA]": partial(accelerator.on_device, check, leave_out=leave_out)
                for name, check in accelerator.checks().items()
            }
            plugins = {f"plug-in: {one.name}": partial(libraries.check_plugin, one.name) for one in installed_plugins()}
            return {**facts, **plugins, **on_device}
        case "convolutions":
            from hpcai500.self_test import libraries

            recipes = ("ic/smoke", "ewa/smoke")
            return {f"convolutions: {recipe}": partial(libraries.check_convolutions, recipe) for recipe in recipes}
        case _:
            from hpcai500.self_test.training import train_tiny

            (benchmark,) = options
            return {f"training run: {benchmark}": lambda: train_tiny(benchmark, folder)}


if __name__ == "__main__":
    sys.exit(main())
