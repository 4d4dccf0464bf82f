"""One exception tree. Each class carries the exit code that the command line returns for it.

The codes follow what acceptance harnesses expect: 0 pass, 1 the run failed, 2 wrong answer, 5 correct but too slow;
64 and 69 are `EX_USAGE` and `EX_UNAVAILABLE` of sysexits.h.

A message says what was wrong, where, and what to do about it, in one line. An error with several mistakes has a line
for each: `RecipeError(*lines)`.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    PASS = 0
    RUN_FAILED = 1
    WRONG_ANSWER = 2
    TOO_SLOW = 5
    UNDECIDED = 6
    USAGE = 64
    ENVIRONMENT = 69


class HpcAi500Error(Exception):
    """Base of all errors that this package raises on purpose."""

    exit_code: ExitCode = ExitCode.RUN_FAILED

    @property
    def lines(self) -> tuple[str, ...]:
        """The message: a line for each mistake."""
        return tuple(map(str, self.args or ("",)))

    def __str__(self) -> str:
        return "; ".join(self.lines)


class RunError(HpcAi500Error):
    """A run started and could not finish (diverged, interrupted, disk full, a rank lost)."""


class CommunicationError(RunError):
    """A collective failed: another rank has ended or cannot be reached. The monitor reports which one."""


class StoppedError(RunError):
    """A run was stopped on request, with a checkpoint; it is raised on all ranks."""


class PeerError(RunError):
    """An error that rank 0 on the same machine prints; the rank that raises it prints nothing."""


class OutOfTimeError(RunError):
    """Something exceeded its time limit."""


# Part of the message of a `NotFiniteError` that occurred on one rank or one host only, after `… alone, host NAME, …`.
# The batch script of an ensemble's member looks for it, and excludes that host.
FAULTY_DEVICE = "so the device may be faulty"


class NotFiniteError(RunError):
    """Training produced a number that is not finite; it is raised on all ranks."""


class WrongAnswerError(HpcAi500Error):
    """A run or a verification finished with a wrong answer."""

    exit_code = ExitCode.WRONG_ANSWER


class UsageError(HpcAi500Error):
    """The user's input cannot be used as it is."""

    exit_code = ExitCode.USAGE


class RecipeError(UsageError):
    """A recipe has an unknown key, a wrong type or an impossible value."""


class DataError(UsageError):
    """A data set is missing, incomplete or damaged."""


class RecordError(UsageError):
    """A record cannot be read, or is inconsistent."""


class EnvironmentLacksError(HpcAi500Error):
    """The machine or the installation lacks something that the command needs."""

    exit_code = ExitCode.ENVIRONMENT


def error_kind(code: int) -> type[HpcAi500Error]:
    """The class of the error that ended one of our processes, from its exit code."""
    kinds: dict[int, type[HpcAi500Error]] = {
        ExitCode.WRONG_ANSWER: WrongAnswerError,
        ExitCode.USAGE: UsageError,
        ExitCode.ENVIRONMENT: EnvironmentLacksError,
    }
    return kinds.get(code, RunError)
