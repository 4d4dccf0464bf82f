"""The compiled core: one in all records. It is built on each machine, so another build's hash says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import package
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped
from hpcai500.system.versions import core_hash

_NAME = "core"


def check_core(context: Context) -> Iterator[Finding]:
    """The core's hash in the records, and here."""
    told = {name: package(record).get("core_sha256") for name, record in context.done.items()}
    found = sorted({str(core) for core in told.values()})
    if len(found) > 1:
        yield fail(_NAME, f"the trials ran with {len(found)} compiled cores: {', '.join(found)}")
    elif found == [core_hash()]:
        yield note(_NAME, f"the compiled core of all records is this installation's ({found[0]})")
    elif found:
        yield skipped(
            _NAME,
            f"one compiled core in all records ({found[0]}), which is not this installation's: each machine builds its "
            "own. That of a published image can be compared inside of that image: hpcai500 version",
        )
