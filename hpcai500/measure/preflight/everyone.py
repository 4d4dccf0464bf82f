"""Ask every rank the same, and keep what each of them answers, also that it could not."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpcai500.comm.base import Communicator
from hpcai500.errors import CommunicationError, HpcAi500Error
from hpcai500.hostlist import is_first_of_host
from hpcai500.system.checks import Check

Value = TypeVar("Value")
# More of them help nobody: mend these first.
_MOST = 6


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """What one rank found, or why it could not."""

    rank: int
    host: str
    value: Value | None
    error: str | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"rank {self.rank} on host {self.host}"


def ask_everyone(world: Communicator, ask: Callable[[], Value]) -> list[Answer[Value]]:
    """Each rank's answer, by rank, on all of them; `ask` talks to no other rank.

    Raises:
        RunError: a rank is lost.
    """
    mine: tuple[Value | None, str | None]
    try:
        mine = ask(), None
    except CommunicationError:
        raise
    except HpcAi500Error as error:
        mine = None, str(error)
    except Exception as error:  # noqa: BLE001 - whatever a device or a file system says is an answer
        mine = None, " ".join("".join(traceback.format_exception_only(error)).split())
    gathered = world.gather_objects(mine)
    return [Answer(rank, host, *it) for rank, (host, it) in enumerate(zip(world.hosts, gathered, strict=True))]


def ask_hosts(world: Communicator, ask: Callable[[], Value]) -> list[Answer[Value]]:
    """The same of one rank of each host, its first."""
    answers = ask_everyone(world, lambda: ask() if is_first_of_host(world.rank, world.hosts) else None)
    first = {host: rank for rank, host in reversed([*enumerate(world.hosts)])}.values()
    return [Answer(it.rank, it.host, it.value, it.error) for it in answers if it.rank in first]


def failures(name: str, answers: Sequence[Answer[Value]], what: str, fix: str) -> Check | None:
    """The check `name` that has failed where a rank could not answer; None where all could."""
    wrong = [answer for answer in answers if answer.error is not None]
    if not wrong:
        return None
    first = wrong[0]
    others = f" (and {listed(answer.name for answer in wrong[1:])})" if wrong[1:] else ""
    return Check(name, "fail", f"{first.name} {what}: {first.error}{others}", fix)


def values(answers: Sequence[Answer[Value]]) -> list[tuple[Answer[Value], Value]]:
    """Those that could answer, with what they said."""
    return [(answer, answer.value) for answer in answers if answer.value is not None]


def listed(words: Iterable[str]) -> str:
    """`a, b and 3 more`."""
    found = list(dict.fromkeys(words))
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more
