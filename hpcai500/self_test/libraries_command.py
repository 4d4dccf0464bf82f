"""`python -m hpcai500.self_test.libraries_command FOLDER LIMIT`: what is loaded, and the kernels on a CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from hpcai500.errors import ExitCode
from hpcai500.self_test import accelerator, libraries
from hpcai500.self_test.process import begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks. The findings tell how they ended; the exit code does not."""
    findings = begin(arguments).findings
    facts = {
        "compiled core": libraries.core_facts,
        "Python and torch": libraries.python_facts,
        "MPI launcher": libraries.mpi_facts,
        "Horovod": libraries.horovod_facts,
    }
    for name, tell in facts.items():
        findings.check(f"libraries: {name}", tell)
    for name, body in accelerator.CHECKS.items():
        findings.check(f"{name} [CUDA]", _on_device(body))
    return ExitCode.PASS


def _on_device(body: Callable[[torch.device], str]) -> Callable[[], str]:
    def check() -> str:
        device = accelerator.find_device()
        return f"{torch.cuda.get_device_name(device)}: {body(device)}"

    return check


if __name__ == "__main__":
    sys.exit(main())
