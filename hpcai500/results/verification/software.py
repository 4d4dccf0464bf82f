"""Which version of the software, and which code, a record says that it was written by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcai500 import __version__
from hpcai500.record import Record
from hpcai500.results.verification.facts import package, packages, values

if TYPE_CHECKING:
    from hpcai500.results.verification.context import Context


def versions_of(record: Record) -> frozenset[str]:
    """All versions that any place of the record names."""
    started = {str(value.get("version")) for value in values(record, "init_start")}
    return frozenset(started | {str(package(record).get("version"))})


def is_of_our_version(record: Record) -> bool:
    """Whether any place of it names the version that is installed here: such a record holds all that this writes.

    Not the hash of its code: one comment that is changed in a file of a free layer gives another one.
    """
    return __version__ in versions_of(record)


def is_campaign_of_our_version(context: Context) -> bool:
    """Whether the version that is installed here planned it, or made one of its runs."""
    runs = (is_of_our_version(record) for record in context.records.values())
    return context.campaign.start.get("version") == __version__ or any(runs)


def other_code(record: Record, level: str | None, ours: str) -> str | None:
    """Why nobody can tell the level of a record without its sources; None where its code is what is installed here.

    Args:
        record: of a run.
        level: that its recipe qualifies for.
        ours: `package_code_hash`, which takes a while.
    """
    if codes_of(record) == {ours}:
        return None
    return (
        f"its code is not that of this installation: level {level or 'none'} by its recipe alone; give the submission "
        "(`hpcai500 submit`) and let verification compare the sources"
    )


def codes_of(record: Record) -> frozenset[str]:
    """Hashes of the package's code that each process of the run names; `None` of one that names none."""
    return frozenset(str(one.get("code_sha256")) for one in packages(record))
