"""`hpcai500 self-test`: compares what an installation computes here with references.

Each part runs in its own processes: a crash or hang is a finding, and the other parts still run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error
from hpcai500.files import VARIABLE, scratch_folder
from hpcai500.findings import Finding, read_findings
from hpcai500.hosts import without_placement
from hpcai500.interpreter import module_command
from hpcai500.launch.launcher import run_horovod_ranks, run_local_ranks
from hpcai500.launch.processes import Patience, SignalRelay, start_child, wait_for
from hpcai500.streams import say

# Each part takes a few seconds, but importing torch from a busy file system may take a minute.
_LIMIT_SECONDS = 180
_GRACE_SECONDS = 20
# The processes of a part end by themselves at the limit, which does not count time without a processor; this is for
# a launcher that hangs before they begin.
_PATIENCE = Patience(1800.0)
_PROGRAM = "self_test.command"
_LOG_LINES = 15


@dataclass(frozen=True)
class Part:
    """One part: `start` gets the folder that it may write, and returns an exit code (negative for a signal).

    `absent` says why the part cannot run here; None if it can.
    """

    name: str
    start: Callable[[Path], int]
    absent: str | None = None


@dataclass(frozen=True)
class SelfTest:
    findings: Sequence[Finding]
    seconds: float

    @property
    def exit_code(self) -> int:
        """That of the worst finding: a wrong answer is worse than a crash, a crash worse than something missing."""
        codes = {finding.exit_code for finding in self.findings if finding.status == "fail"}
        order = (ExitCode.WRONG_ANSWER, ExitCode.RUN_FAILED, ExitCode.ENVIRONMENT)
        return next((code for code in order if code in codes), ExitCode.RUN_FAILED if codes else ExitCode.PASS)

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        return "fail" if self.exit_code else "pass"

    def document(self) -> dict[str, Any]:
        checks = [finding.document() for finding in self.findings]
        return {"verdict": self.verdict, "seconds": round(self.seconds, 3), "checks": checks}

    def lines(self) -> Iterator[str]:
        """A table for people; the last line is for harnesses."""
        width = max(len(finding.name) for finding in self.findings)
        for finding in self.findings:
            yield f"{finding.status}  {finding.name:{width}}  {finding.seconds:6.1f} s  {finding.detail}"
        counts = {status: sum(f.status == status for f in self.findings) for status in ("pass", "fail", "skip")}
        shown = ", ".join(f"{count} {status}" for status, count in counts.items())
        yield f"{shown} in {self.seconds:.0f} s"
        untested: dict[str, list[str]] = {}
        for finding in self.findings:
            if finding.status == "skip":
                untested.setdefault(finding.detail, []).append(finding.name)
        for reason, names in untested.items():
            yield f"NOT TESTED: {', '.join(names)}: {reason}"
        yield f"HPCAI500 SELF-TEST {self.verdict.upper()}"


def run_self_test(procs: int, *, no_gpu: bool = False) -> SelfTest:
    """Run every part, all-reduces with `procs` ranks. All files are written into a temporary folder."""
    started = time.monotonic()
    findings: list[Finding] = []
    try:
        with scratch_folder(os.environ, Path.cwd()) as folder:
            findings += run_parts(parts(procs, without_placement(os.environ), folder, no_gpu=no_gpu), Path(folder))
    except EnvironmentLacksError as error:
        findings.append(_printed(Finding("temporary files", "fail", str(error), exit_code=error.exit_code)))
    return SelfTest(findings, time.monotonic() - started)


def run_parts(parts: Iterable[Part], folder: Path) -> Iterator[Finding]:
    """Run `parts`, each in its own folder below `folder`; after a failure, the next one still runs."""
    for number, part in enumerate(parts):
        yield from _run(part, folder / str(number))


def parts(procs: int, environment: Mapping[str, str], folder: str, *, no_gpu: bool = False) -> Iterator[Part]:
    """All parts; temporary files go to `folder`. `no_gpu` skips the checks on a CUDA device."""
    environment = {**environment, VARIABLE: folder}
    for isa in _instruction_sets():
        start = _one_process({**environment, "HPCAI500_ISA": isa}, "kernels")
        yield Part(f"kernels [{isa}]", start)
    yield Part("libraries", _one_process(environment, "libraries", *(["no-gpu"] if no_gpu else [])))
    yield Part("all-reduce: torch, Gloo", _torch_ranks(procs, environment))
    no_horovod = None if importlib.util.find_spec("horovod") else "Horovod is not installed (`make horovod`)"
    no_mpi = None if shutil.which("mpirun") else "no mpirun on PATH"
    yield Part("all-reduce: Horovod, MPI", _horovod_ranks("mpi", procs, environment), no_horovod or no_mpi)
    yield Part("all-reduce: Horovod, Gloo", _horovod_ranks("gloo", procs, environment), no_horovod)
    yield Part("convolutions", _one_process(environment, "convolutions"))
    for benchmark in ("ic", "ewa"):
        yield Part(f"training run: {benchmark}", _one_process(environment, "training", benchmark))


def _instruction_sets() -> Sequence[str]:
    """The kernels' instruction sets that this processor has."""
    kernels = _core.build_info()["isa"]
    return kernels[kernels.index(_core.cpu_isa()) :]


def _one_process(environment: Mapping[str, str], *words: str) -> Callable[[Path], int]:
    def start(folder: Path) -> int:
        command = module_command(_PROGRAM, *_arguments(folder, *words))
        with SignalRelay(patience=_PATIENCE) as relay:
            child = start_child(command, environment=environment, hold=True)
            relay.add(child)
            code = wait_for(child)
        relay.conclude()
        return code

    return start


def _torch_ranks(procs: int, environment: Mapping[str, str]) -> Callable[[Path], int]:
    def start(folder: Path) -> int:
        command = module_command(_PROGRAM, *_arguments(folder, "ranks", "torch", str(procs)))
        return run_local_ranks(
            command, procs, grace_seconds=_GRACE_SECONDS, environment=environment, hold=True, patience=_PATIENCE
        )

    return start


def _horovod_ranks(over: Literal["mpi", "gloo"], procs: int, environment: Mapping[str, str]) -> Callable[[Path], int]:
    launcher: Literal["mpirun", "horovodrun"] = "mpirun" if over == "mpi" else "horovodrun"

    def start(folder: Path) -> int:
        arguments = _arguments(folder, "ranks", f"horovod-{over}", str(procs))
        return run_horovod_ranks(
            _PROGRAM, arguments, procs, launcher=launcher, environment=environment, patience=_PATIENCE
        )

    return start


def _arguments(folder: Path, *words: str) -> list[str]:
    return [str(folder), str(_LIMIT_SECONDS), *words]


def _run(part: Part, folder: Path) -> Iterator[Finding]:
    """The findings of `part`, with one for its end if it did not end well."""
    if part.absent:
        yield _printed(Finding(part.name, "skip", part.absent))
        return
    folder.mkdir()
    started = time.monotonic()
    trouble = _trouble(part, folder)
    seconds = round(time.monotonic() - started, 3)
    found = read_findings(folder / "findings.jsonl")
    yield from found.ended
    failed_already = any(finding.status == "fail" for finding in found.ended)
    if found.running or not found.ended or (trouble and not failed_already):
        name, (code, reason) = found.running or part.name, trouble or (ExitCode.RUN_FAILED, "it ended without a result")
        yield _printed(Finding(name, "fail", f"{reason}{_likely_cause(folder / 'log')}", seconds, code))


def _trouble(part: Part, folder: Path) -> tuple[int, str] | None:
    """Exit code and reason, if the processes of `part` did not end well."""
    try:
        code = part.start(folder)
    except (HpcAi500Error, OSError) as error:
        return getattr(error, "exit_code", ExitCode.RUN_FAILED), str(error)
    if code == -signal.SIGALRM:
        return ExitCode.RUN_FAILED, f"stopped: it did not end within {_LIMIT_SECONDS} s"
    if code < 0:
        return (
            ExitCode.RUN_FAILED,
            f"killed by {signal.Signals(-code).name}; the checks after it in its process did not run",
        )
    return (code, f"a process ended with exit code {code}") if code else None


def _likely_cause(log: Path) -> str:
    """The line of the log that most likely says why; the last lines are printed on stderr."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    lines = [line for line in lines if line.strip()]
    for line in lines[-_LOG_LINES:]:
        say(f"  {line}")
    fatal = [line for line in lines if line.startswith(("Fatal Python error", "hpcai500: error"))]
    cause = (fatal or lines)[-1:]
    return f" ({cause[0].strip()})" if cause else " (see its output)"


def _printed(finding: Finding) -> Finding:
    """Print a finding that no process of the part has printed."""
    say(finding.line())
    return finding
