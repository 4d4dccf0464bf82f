"""Seeds are those of the plan, each another one, none picked."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "seeds"


def check_seeds(context: Context) -> Iterator[Finding]:
    """The plan's seeds among themselves, and each record's with the plan's."""
    planned = {trial.trial: trial.seed for trial in context.campaign.trials}
    seeds = list(planned.values())
    found = []
    for seed in sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        found.append(fail(_NAME, f"the plan has the seed {seed} {seeds.count(seed)} times: those runs are one"))
    first = context.campaign.tables["hyperparameters"]["seed"]
    if not found and seeds != list(range(first, first + len(seeds))):
        found.append(fail(_NAME, f"the plan has the seeds {seeds}; expected {first}, {first + 1}, …: they were picked"))
    for name, record in context.records.items():
        trial, seed = context.attempts[name].trial, record.tables["hyperparameters"]["seed"]
        if trial in planned and seed != planned[trial]:
            found.append(fail(_NAME, f"{name}: ran with the seed {seed}; planned was {planned[trial]}"))
    yield from found
    if not found:
        yield note(_NAME, f"{len(seeds)} trials, each with its own seed from {first} on, and the records ran with them")
