"""Whether two campaigns did the same work, and whether on systems of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.campaign.company import company
from hpcai500.campaign.likeness import SEED
from hpcai500.methodology.result import system_identity
from hpcai500.recipe import Difference
from hpcai500.recipe_tables import table_differences
from hpcai500.record import Record
from hpcai500.results.global_batch import global_batch
from hpcai500.results.replication.data import fingerprints_of
from hpcai500.results.replication.side import Side

# A recipe's fields up to this layer describe the system: hardware, operating system, communication, accelerators.
HIGHEST_SYSTEM_LAYER = 4
# On other numbers of accelerators these keep the global batch, and so the mathematics of an update.
BATCH_FIELDS = ("hyperparameters.batch_size", "hyperparameters.accumulation_steps")
_SOFTWARE = ("image", "code", "plug-in", "software versions")
_COMPANY = {"world_size": "ranks", "nodes": "nodes", "backend": "backend"}


@dataclass(frozen=True)
class Likeness:
    """What two sides have in common.

    Attributes:
        obstacles: why one is no repetition of the other, a sentence each.
        same_system: whether speed must come out the same.
        notes: what else differs, a sentence each.
    """

    obstacles: tuple[str, ...]
    same_system: bool
    notes: tuple[str, ...]


def likeness(one: Side, other: Side) -> Likeness:
    """How alike the work and the systems of two sides are."""
    found = [one for one in table_differences(other.tables, one.tables) if one.field != SEED]
    other_system = [*_hardware_differences(one.records[0], other.records[0]), *_company_differences(one, other)]
    allowed = [difference for difference in found if _is_of_the_system(difference)]
    obstacles = [
        *(_sentence(difference) for difference in found if not _is_of_the_system(difference)),
        *_batch_obstacle(one.tables, other.tables),
        *_data_obstacles(one.records, other.records),
    ]
    notes = [
        *(_sentence(difference) for difference in allowed),
        *other_system,
        *_software_differences(one.records[0], other.records[0]),
        *_seed_notes(one, other),
        *_rank_notes(one, other),
    ]
    return Likeness(tuple(obstacles), not allowed and not other_system, tuple(notes))


def _is_of_the_system(difference: Difference) -> bool:
    return 0 < difference.layer <= HIGHEST_SYSTEM_LAYER or difference.field in BATCH_FIELDS


def _sentence(difference: Difference) -> str:
    return f"{difference.field} is {difference.reference} in the original, {difference.value} in the repetition"


def _batch_obstacle(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = global_batch(one), global_batch(other)
    if ours != theirs:
        yield (
            f"an update is over {ours} samples in the original, over {theirs} in the repetition: choose "
            f"{' and '.join(BATCH_FIELDS)} so that batch x accumulation x accelerators is {ours}"
        )


def _data_obstacles(ours: Sequence[Record], theirs: Sequence[Record]) -> Iterator[str]:
    kinds = [dict.fromkeys(kind for record in side for kind in fingerprints_of(record)) for side in (ours, theirs)]
    # The content decides; whoever has not checked it has a fingerprint of the list of files only.
    for kind in (kind for kind in kinds[0] if kind in kinds[1]):
        left, right = (
            {found[kind] for record in side if kind in (found := fingerprints_of(record))} for side in (ours, theirs)
        )
        if left != right:
            yield f"other data: the fingerprint is {_listed(left)} in the original, {_listed(right)} in the repetition"
        return


def _listed(fingerprints: set[str]) -> str:
    return ", ".join(f"{one[:16]}…" for one in sorted(fingerprints))


def _hardware_differences(one: Record, other: Record) -> Iterator[str]:
    left, right = (system_identity(record.system) for record in (one, other))
    for what in ("processors", "accelerators"):
        ours, theirs = (_counted(side[what]) for side in (left, right))
        if ours != theirs:
            yield f"{what}: {_told(ours)} in the original, {_told(theirs)} in the repetition"


def _counted(names: Sequence[Any]) -> Counter[str]:
    flat = [name for names_of in names for name in (names_of if isinstance(names_of, list) else [names_of])]
    return Counter(map(str, flat))


def _told(names: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


def _company_differences(one: Side, other: Side) -> Iterator[str]:
    left, right = company(one.records[0]), company(other.records[0])
    for key, word in _COMPANY.items():
        if key in left and key in right and left[key] != right[key]:
            yield f"{word}: {left[key]} in the original, {right[key]} in the repetition"


def _software_differences(one: Record, other: Record) -> Iterator[str]:
    left, right = (system_identity(record.system) for record in (one, other))
    for what in _SOFTWARE:
        if _first(left[what]) != _first(right[what]):
            yield f"{what}: {_first(left[what])} in the original, {_first(right[what])} in the repetition"
    ours, theirs = (company(record).get("library") for record in (one, other))
    if None not in (ours, theirs) and ours != theirs:
        yield f"library: {ours} in the original, {theirs} in the repetition"


def _first(found: Any) -> Any:
    """Versions are listed for each node; they are the same on all."""
    return found[0] if isinstance(found, list) and found and isinstance(found[0], list) else found


def _seed_notes(one: Side, other: Side) -> Iterator[str]:
    shared = len(set(one.seeds) & set(other.seeds))
    if shared:
        yield (
            f"{shared} seeds are the same on both sides: such runs begin alike, and are no independent draws; the "
            "intervals are then wider than they need be"
        )


def _rank_notes(one: Side, other: Side) -> Iterator[str]:
    for reason in dict.fromkeys([*one.reasons, *other.reasons]):
        both = reason in one.reasons and reason in other.reasons
        who = "neither is" if both else f"the {'original' if reason in one.reasons else 'repetition'} is not"
        yield f"{who} rankable: {reason}"
