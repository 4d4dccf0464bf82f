"""All trials ran the recipe of the campaign: they differ in the seed, and in nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.campaign.company import company_difference
from hpcai500.recipe_tables import table_differences
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "recipes"
_SEED = "hyperparameters.seed"


def check_recipes(context: Context) -> Iterator[Finding]:
    """The recipe of each record with the campaign's, and who ran it with the first record."""
    found = []
    for name, record in context.records.items():
        differences = [one for one in table_differences(record.tables, context.campaign.tables) if one.field != _SEED]
        for one in differences:
            told = f"{one.field} is {one.value!r}; the campaign was planned with {one.reference!r}"
            found.append(fail(_NAME, f"{name}: {told}"))
    done = list(context.done.values())
    for record in done[1:]:
        if different := company_difference(done[0], record):
            found.append(fail(_NAME, different.replace(f"{context.campaign.path}/", "")))
    yield from found
    if not found:
        told = "follow the campaign's recipe but for the seed, on as many ranks and nodes"
        yield note(_NAME, f"{len(context.records)} records {told}")
