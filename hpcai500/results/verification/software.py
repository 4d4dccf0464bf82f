"""Which version of the software, and which code, a record says that it was written by."""

from __future__ import annotations

from hpcai500.record import Record
from hpcai500.results.verification.facts import package, packages, values
from hpcai500.system.versions import package_code_hash


def versions_of(record: Record) -> frozenset[str]:
    """All versions that any place of the record names."""
    started = {str(value.get("version")) for value in values(record, "init_start")}
    return frozenset(started | {str(package(record).get("version"))})


def has_our_code(record: Record) -> bool:
    """Whether it was written by the very code that is installed here."""
    return package(record).get("code_sha256") == package_code_hash()


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
