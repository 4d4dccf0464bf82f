"""A recipe is one that its version takes, and states every field: what is not stated cannot be judged."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500 import __version__
from hpcai500.campaign.reading import RECIPE
from hpcai500.errors import RecipeError
from hpcai500.plugins.benchmarks import recipe_type
from hpcai500.recipe import load_recipe
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail
from hpcai500.results.verification.software import is_campaign_of_our_version, is_of_our_version

_NAME = "recipe-fields"


def check_recipe_fields(context: Context) -> Iterator[Finding]:
    """Values that this version refuses, and fields that joined the reference later, in what this version wrote.

    An older record does not state these fields, and they count as no change (`Judgement.absent`): whoever takes one out
    of a recipe of today hides a change of it.
    """
    if is_campaign_of_our_version(context) and recipe_type(context.campaign.benchmark) is not None:
        try:
            load_recipe(context.campaign.path / RECIPE)
        except RecipeError as error:
            told = str(error).replace(f"{context.campaign.path}/", "")
            yield fail(_NAME, f"hpcai500 {__version__} does not take the campaign's recipe: {told}")
    for name, judgement in context.claimed.judgements.items():
        if judgement.absent and is_of_our_version(context.records[name]):
            yield fail(
                _NAME,
                f"{name}: its recipe does not state {', '.join(judgement.absent)}, which hpcai500 {__version__} writes "
                "into every recipe: taken out, or written by a hand",
            )
