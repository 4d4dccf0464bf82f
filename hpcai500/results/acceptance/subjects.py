"""What was judged: which work, on which data, by which recipe, on what, so that nobody signs for another thing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcai500.campaign.reading import Campaign
from hpcai500.chain import iterate
from hpcai500.editions import benchmark_rules
from hpcai500.recipe import tables_hash
from hpcai500.results.acceptance.evidence import Evidence, Run
from hpcai500.results.report.words import UNKNOWN, count, short, table, tables

_MOST_NAME = 80
_MADE = {"real": "real", "synthetic": "SYNTHETIC", "memory": "NO DATA: from memory"}


@dataclass(frozen=True)
class Subject:
    """Runs of one kind. Unknown is None.

    Attributes:
        benchmark: its name.
        edition: of the rules.
        dataset: its name in the recipe.
        input: `real` or `synthetic` files, or `memory` where nothing was read.
        training_samples: that the data set has.
        evaluation_samples: that the data set has.
        fingerprint: of the data set.
        recipe_hash: of the resolved recipe, with the seed of the first trial of a campaign, or of the first run.
        metric: of quality.
        target: that the recipe aims at.
        edition_target: that the edition fixes.
        achieved: quality of each run.
        precision: that the recipe asks for.
        accelerators: of all nodes, by name.
        ranks: of each run.
        nodes: of each run.
        runs: how many.
        campaign: identity of the campaign, which can be registered before its first run; None outside of one.
        path: of the campaign.
    """

    benchmark: str
    edition: str
    dataset: str
    input: str
    training_samples: int | None
    evaluation_samples: int | None
    fingerprint: str | None
    recipe_hash: str
    metric: str
    target: float
    edition_target: float | None
    achieved: tuple[float | None, ...]
    precision: str | None
    accelerators: tuple[tuple[str, int], ...]
    ranks: int
    nodes: int
    runs: int
    campaign: str | None
    path: Path | None

    @property
    def sentence(self) -> str:
        """For people, but for the hashes."""
        samples = f"{_counted(self.training_samples)} + {_counted(self.evaluation_samples)} samples"
        devices = ", ".join(f"{number} x {name}" for name, number in self.accelerators) or "no accelerator"
        return (
            f"{self.benchmark}, edition {self.edition}, on {short(self.dataset, _MOST_NAME)} "
            f"({_MADE.get(self.input, self.input)}, {samples}); {self.quality}; "
            f"{self.precision or UNKNOWN}, {devices}, {count(self.ranks, 'rank')} on {count(self.nodes, 'node')}, "
            f"{count(self.runs, 'run')}"
        )

    @property
    def quality(self) -> str:
        """`top1 0.7631 to 0.7649, target 0.763`, with the edition's target where the recipe has another one."""
        known = [value for value in self.achieved if value is not None]
        ends = list(dict.fromkeys(f"{value:.4f}" for value in (min(known), max(known)))) if known else [UNKNOWN]
        other = self.edition_target not in (None, self.target)
        fixed = f" (edition {self.edition} fixes {self.edition_target:g})" if other else ""
        return f"{short(self.metric, 30)} {' to '.join(ends)}, target {self.target:g}{fixed}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        plain = {name: getattr(self, name) for name in self.__annotations__}
        return plain | {
            "achieved": list(self.achieved),
            "accelerators": dict(self.accelerators),
            "path": None if self.path is None else str(self.path),
        }


def edition_target(edition: str, benchmark: str) -> float | None:
    """The target quality that an edition fixes; None for a benchmark that it does not know."""
    target = benchmark_rules(edition, benchmark).get("target_quality")
    return None if target is None else float(target)


def subjects(evidence: Evidence) -> tuple[Subject, ...]:
    """What was judged, by campaign and by what the runs have in common."""
    campaigns = {campaign.path: campaign for campaign in evidence.campaigns}
    found: dict[str, Subject] = {}
    for run in evidence.runs:
        one = _subject(run, campaigns.get(run.record.path.parent))
        key = json.dumps([_without_seed(run.record.tables), one.document() | {"achieved": 0, "recipe_hash": 0}])
        first = found.get(key)
        both = first and replace(first, achieved=(*first.achieved, *one.achieved), runs=first.runs + 1)
        found[key] = both or one
    return tuple(found.values())


def _subject(run: Run, campaign: Campaign | None) -> Subject:
    result, recipe = run.result, run.record.tables
    last = next(iterate(reversed(run.record.events), "dataset"), None)
    data = table(last["value"]) if last else {}
    precision = table(recipe.get("accelerator")).get("precision")
    return Subject(
        benchmark=result.benchmark,
        edition=result.edition,
        dataset=str(table(recipe.get("problem")).get("dataset")),
        input=result.input,
        training_samples=_whole(data.get("training_samples")),
        evaluation_samples=_whole(data.get("evaluation_samples")),
        fingerprint=None if data.get("fingerprint") is None else str(data["fingerprint"]),
        recipe_hash=str(campaign.start["recipe_hash"]) if campaign else tables_hash(recipe),
        metric=result.quality.metric,
        target=result.quality.target,
        edition_target=edition_target(result.edition, result.benchmark),
        achieved=(result.quality.achieved,),
        precision=None if precision is None else short(precision, _MOST_NAME),
        accelerators=tuple(_accelerators(run.record.system)),
        ranks=result.world_size,
        nodes=result.nodes,
        runs=1,
        campaign=campaign.identity if campaign else None,
        path=campaign.path if campaign else None,
    )


def _accelerators(system: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    devices = (device for node in tables(system.get("nodes")) for device in tables(node.get("accelerators")))
    yield from sorted(Counter(short(device.get("name"), _MOST_NAME) for device in devices).items())


def _without_seed(recipe: Mapping[str, Any]) -> str:
    return tables_hash({**recipe, "hyperparameters": {**table(recipe.get("hyperparameters")), "seed": None}})


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _counted(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"
