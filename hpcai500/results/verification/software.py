"""Which version of the software a record says that it was written by."""

from __future__ import annotations

from hpcai500.record import Record
from hpcai500.results.verification.facts import package, values
from hpcai500.system.versions import package_code_hash


def versions_of(record: Record) -> frozenset[str]:
    """All versions that any place of the record names."""
    started = {str(value.get("version")) for value in values(record, "init_start")}
    return frozenset(started | {str(package(record).get("version"))})


def has_our_code(record: Record) -> bool:
    """Whether it was written by the very code that is installed here."""
    return package(record).get("code_sha256") == package_code_hash()
