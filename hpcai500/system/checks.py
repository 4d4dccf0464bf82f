"""What one check of the surroundings found, and what all of them amount to."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = "hpcai500-doctor-2"

# `skip`: it could not be found out (the detail says why), and nothing speaks against a run.
Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: the same in every version: programs look for it.
        status: whether a run can go on.
        detail: what was found, in words.
        fix: the line to type, or what to do; None where nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None

    @property
    def sentence(self) -> str:
        """Detail and fix in one line, as errors have them."""
        return f"{self.detail}; {self.fix}" if self.fix else self.detail


def verdict(checks: Sequence[Check]) -> Verdict:
    """The worst of all."""
    found = {check.status for check in checks}
    return "fail" if "fail" in found else "warn" if "warn" in found else "pass"


def document(checks: Sequence[Check]) -> dict[str, Any]:
    """For programs."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(checks),
        "host": platform.node(),
        "checks": [asdict(check) for check in checks],
    }


def lines(checks: Sequence[Check]) -> Iterator[str]:
    """For people: a line for each check, its fix below it, the verdict last."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        yield f"{check.status}  {check.name:{width}}  {check.detail}"
        if check.fix:
            yield f"{'':4}  {'':{width}}    fix: {check.fix}"
    yield f"verdict {verdict(checks)}"
