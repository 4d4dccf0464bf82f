"""`python -m hpcai500.self_test.training_command FOLDER LIMIT BENCHMARK`: a tiny run of the real engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcai500.errors import ExitCode
from hpcai500.self_test.process import begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Train. The findings tell how it ended; the exit code does not."""
    here = begin(arguments)
    (benchmark,) = here.words
    # Worker processes that the run starts import this file again; without torch here they start faster.
    from hpcai500.self_test.training import train_tiny

    here.findings.check(f"training run: {benchmark}", lambda: train_tiny(benchmark, here.folder))
    return ExitCode.PASS


if __name__ == "__main__":
    sys.exit(main())
