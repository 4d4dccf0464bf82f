"""Whether runs are trials of one thing: of one recipe but for the seed, one data set, one system, as many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcai500.campaign.company import company_difference
from hpcai500.chain import iterate
from hpcai500.methodology.result import system_identity
from hpcai500.recipe_tables import table_differences
from hpcai500.record import Record

SEED = "hyperparameters.seed"


def recipe_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first field but the seed in which two recipes in plain tables differ, or None."""
    return min((found.field for found in table_differences(other, one) if found.field != SEED), default=None)


def difference(one: Record, other: Record) -> str | None:
    """A sentence that says why `other` is no trial of what `one` is a trial of, or None.

    What really ran decides: recipes that agree do not help runs on other ranks, systems or files.
    """
    field = recipe_difference(one.tables, other.tables)
    if field:
        return f"{other.path} differs from {one.path} in {field}"
    if ran := company_difference(one, other):
        return ran
    if _data(one) != _data(other) and None not in (_data(one), _data(other)):
        return f"{other.path} trained on other data than {one.path}: their fingerprints differ"
    left, right = _system(one), _system(other)
    # Older records do not know every fact.
    changed = [key for key in left if key in right and left[key] != right[key]]
    return f"{other.path} ran on another system than {one.path}: {', '.join(changed)} differ" if changed else None


def _data(record: Record) -> str | None:
    last = next(iterate(reversed(record.events), "dataset"), None)
    value = last["value"] if last else {}
    found = value.get("fingerprint")
    return None if found is None else str(found)


def _system(record: Record) -> Mapping[str, Any]:
    return system_identity(record.system) if record.system else {}
