"""What becomes of a member whose job has failed: the same on a cluster and on one machine."""

from __future__ import annotations

from hpcai500.errors import ExitCode

# As often a member may fail, time that ran out aside, before it is given up.
MOST_FAILURES = 3


def may_be_tried_again(exit_code: int, failures: int) -> bool:
    """Whether a member whose job ended with `exit_code`, its `failures`-th failure, is worth another try.

    What diverged, or cannot be run as it was planned, ends the same way however often it is tried. A code that is none
    of ours was a signal's, or its launcher's.
    """
    final = (ExitCode.WRONG_ANSWER, ExitCode.USAGE, ExitCode.ENVIRONMENT)
    return exit_code not in final and failures < MOST_FAILURES
