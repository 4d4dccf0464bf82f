"""What one check of the surroundings found, and what all of them amount to."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = "hpcai500-doctor-1"

# `unknown`: it could not be found out, and nothing speaks against a run.
Status = Literal["ok", "warning", "error", "unknown"]
Verdict = Literal["ok", "warning", "error"]


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
    return "error" if "error" in found else "warning" if "warning" in found else "ok"


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
        yield f"{check.status:7}  {check.name:{width}}  {check.detail}"
        if check.fix:
            yield f"{'':7}  {'':{width}}    fix: {check.fix}"
    yield f"verdict {verdict(checks)}"
