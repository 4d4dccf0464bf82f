"""What a check of one run looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcai500.methodology.integrity.log import Log
from hpcai500.methodology.integrity.passes import Pass, last_passes
from hpcai500.methodology.result import Result
from hpcai500.record import Record
from hpcai500.results.verification.finding import Finding

_MOST_TOLD = 3


@dataclass(frozen=True)
class Run:
    """A run that came to its end, its events with typed values.

    Attributes:
        record: as it was read.
        log: its events.
        rules: of the edition; empty for a benchmark that it does not know.
        result: what its events give; None where they give none.
    """

    record: Record
    log: Log
    rules: Mapping[str, Any]
    result: Result | None

    @cached_property
    def passes(self) -> dict[int, Pass]:
        """Each epoch as it was trained last."""
        return last_passes(self.log)

    @property
    def epochs(self) -> list[Pass]:
        """The same, in order."""
        return [self.passes[number] for number in sorted(self.passes)]

    def field(self, table: str, key: str) -> Any:
        """A field of the recipe.

        Raises:
            KeyError: it has no such.
        """
        return self.record.tables[table][key]

    @property
    def world_size(self) -> int:
        """Ranks that the recipe asks for."""
        return int(self.field("hardware", "nodes")) * int(self.field("hardware", "accelerators_per_node"))


RunCheck = Callable[[Run], Iterable[Finding]]


def few(faults: Iterable[str]) -> str | None:
    """The first of `faults` in one line, and how many more there are; None where there is none."""
    found = list(faults)
    more = f" (and {len(found) - _MOST_TOLD} more)" if len(found) > _MOST_TOLD else ""
    return "; ".join(found[:_MOST_TOLD]) + more if found else None


def judged(name: str, faults: Iterable[str], make: Callable[[str, str], Finding]) -> Iterable[Finding]:
    """One finding that `make` makes of all `faults`; none where there is none."""
    told = few(faults)
    return [make(name, told)] if told else []
