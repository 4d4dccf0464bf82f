"""Plans a campaign: recipe, number of runs and seeds, before the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.campaign.reading import Campaign
from hpcai500.campaign.writing import create_campaign
from hpcai500.errors import DataError
from hpcai500.launch.crew import Crew
from hpcai500.layers import Recipe
from hpcai500.methodology.rules import judge
from hpcai500.methodology.trials import runs_to_plan
from hpcai500.recipe import load_recipe
from hpcai500.rulebook import rulebook


@dataclass(frozen=True)
class PlanRequest:
    """What the user asked for; `trials` is None for as many as the edition suggests."""

    folder: Path
    recipe: str
    trials: int | None = None
    data: Path | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """A new campaign.

    Attributes:
        campaign: as it lies on disk.
        least_runs: that its edition wants; None for a benchmark that it does not know.
        warnings: what the user may want to change before the first run.
    """

    campaign: Campaign
    least_runs: int | None
    warnings: Sequence[str]

    def lines(self) -> Iterator[str]:
        """For people."""
        campaign = self.campaign
        seeds = [trial.seed for trial in campaign.trials]
        wanted = f"; edition {campaign.edition} wants {self.least_runs} at least" if self.least_runs else ""
        yield f"campaign    {campaign.path}: {campaign.benchmark}, edition {campaign.edition}"
        yield f"identity    {campaign.identity}"
        yield f"recipe      {campaign.start['recipe_hash']}"
        yield f"trials      {len(seeds)}, seeds {seeds[0]} to {seeds[-1]}{wanted}"
        yield f"data        {campaign.start['data'] or 'made by hpcai500'}"
        yield "Register the identity before the first run: it shows that the plan was made before the runs. It cannot"
        yield "rule out a second copy of the campaign. To rule that out, send each HPCAI500 HEAD line as it is printed."
        yield f"Then: hpcai500 campaign run {campaign.path}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        campaign = self.campaign
        return {
            "path": str(campaign.path),
            "identity": campaign.identity,
            **campaign.start,
            "least_runs": self.least_runs,
            "warnings": list(self.warnings),
        }


def plan_campaign(request: PlanRequest, crew: Crew) -> Plan:
    """Fix the campaign of `request`, for the ranks of `crew`.

    Raises:
        UsageError: recipe, data or folder cannot be used.
    """
    overrides = [*request.overrides, *crew.fit(request.recipe, request.overrides)]
    recipe = load_recipe(request.recipe, overrides)
    rules = rulebook(recipe.edition, recipe.benchmark)
    least: int | None = rules.get("least_runs")
    trials = request.trials or runs_to_plan(least)
    _check_data(request.data, recipe)
    campaign = create_campaign(request.folder, recipe, trials, request.data)
    return Plan(campaign, least, [*_warnings(recipe, rules, trials, least), *_missing_data(request.data)])


def _check_data(data: Path | None, recipe: Recipe) -> None:
    dataset = recipe.problem.dataset
    if data is None and not dataset.startswith("synthetic-"):
        raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
    if data is not None and data.exists() and not data.is_dir():
        raise DataError(f"{data}: not a folder; give the folder of {dataset} with --data DIR")


def _missing_data(data: Path | None) -> Iterator[str]:
    """A plan may be made where the data cannot be seen: on a login node."""
    if data is not None and not data.exists():
        yield (
            f"{data}: no such folder here: if it is not on the nodes of the runs either, name it when they begin: "
            "`hpcai500 campaign run DIR --data FOLDER`"
        )


def _warnings(recipe: Recipe, rules: Mapping[str, Any], trials: int, least: int | None) -> Iterator[str]:
    if least is None:
        yield f"edition {recipe.edition} has no benchmark {recipe.benchmark}: this campaign cannot be ranked"
        return
    if trials < least:
        yield f"{trials} runs are fewer than the {least} that edition {recipe.edition} wants: not rankable"
    if "reference_error" in rules:
        yield f"{rules['reference_error']}: not rankable"
        return
    tables = recipe.model_dump(mode="json")
    forbidden = [change for change in judge(tables, rules).changes if change.level is None]
    if forbidden:
        first, more = forbidden[0], len(forbidden) - 1
        yield (
            f"{first.field} is {first.value}; edition {recipe.edition} fixes {first.reference}: not rankable"
            + (f" (and {more} more: hpcai500 rules RECIPE)" if more else "")
        )
    elif recipe.accelerator.loader == "memory":
        yield "accelerator.loader is memory, which reads no data: not rankable"
