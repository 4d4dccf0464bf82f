"""A member of an ensemble trained on what its seed draws: the draws are made again, from recipe and data set alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from hpcai500.methodology.integrity.values import Dataset
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail
from hpcai500.results.verification.records.run import Run, judged

_NAME = "drawn"
# So many take about a second, and up to 50 bytes of memory each; a campaign may have 300 records, each with a seed and
# a size of its own. ImageNet has three fifths of it.
MOST_DRAWN = 1 << 21


@dataclass(frozen=True)
class Draws:
    """What a seed draws.

    Attributes:
        facts: as the event `dataset` tells them.
        coverage: digest of an epoch that delivers them.
    """

    facts: Mapping[str, Any]
    coverage: str


def check_drawn(run: Run) -> Iterator[Finding]:
    """What the member says that it drew, with what the recipe makes of the data set."""
    dataset = run.log.values(Dataset, "dataset")[-1]
    faults = list(_faults(run, dataset))
    yield from judged(_NAME, faults, fail)
    if faults or dataset.drawn is None or dataset.training_samples > MOST_DRAWN:
        return
    expected, told = draws_of(run, dataset).facts, dataset.drawn.model_dump()
    wrong = (f"{key} {told[key]}, expected {value}" for key, value in expected.items() if told[key] != value)
    yield from judged(_NAME, wrong, fail)


def draws_can_be_made(run: Run, dataset: Dataset) -> bool:
    """Whether recipe and data set say what is drawn of what, and it is no more than can be drawn again."""
    return dataset.training_samples <= MOST_DRAWN and not any(_faults(run, dataset))


def draws_of(run: Run, dataset: Dataset) -> Draws:
    """What the recipe's seed draws of this data set; see `draws_can_be_made`."""
    strata = tuple(dataset.drawn.strata) if dataset.drawn else ()
    seed, sampling = int(run.field("hyperparameters", "seed")), str(run.field("ensemble", "sampling"))
    return _draws(dataset.training_samples, seed, sampling, strata)


def _faults(run: Run, dataset: Dataset) -> Iterator[str]:
    """Whether anything was drawn, and of which groups: their sizes are the data set's, and cannot be computed."""
    asked, drawn = run.record.tables.get("ensemble"), dataset.drawn
    if asked is None or drawn is None:
        if asked is not None:
            yield "the event dataset does not tell what was drawn"
        elif drawn is not None:
            yield "samples were drawn, and the recipe has no [ensemble]"
        return
    if drawn.sampling != asked["sampling"]:
        yield f"samples were drawn by {drawn.sampling}; the recipe asks for {asked['sampling']}"
    name, groups = asked["strata"], len(drawn.strata)
    first, last = run.record.tables["problem"].get("training_years") or (0, 0)
    wanted = {"none": 0, "class": dataset.classes, "year": last - first + 1}.get(name, groups)
    if groups != wanted:
        yield f"samples were drawn from {groups} strata; the recipe's {name} makes {wanted}"
    elif groups and sum(drawn.strata) != dataset.training_samples:
        yield f"the strata have {sum(drawn.strata)} samples; the training set has {dataset.training_samples}"


@lru_cache(maxsize=16)
def _draws(samples: int, seed: int, sampling: str, strata: tuple[int, ...]) -> Draws:
    from hpcai500.methodology.bootstrap import drawn_digest, drawn_facts, draws  # noqa: PLC0415 - imports numpy

    drawn = draws(samples, seed, sampling, strata)
    facts = {**asdict(drawn_facts(drawn, samples, sampling, strata)), "strata": list(strata)}
    return Draws(facts, drawn_digest(drawn))
