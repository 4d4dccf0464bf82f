"""All that an edition rules for one benchmark, in plain tables: numbers, what each level may change, the reference."""

from __future__ import annotations

from typing import Any

from hpcai500.editions import benchmark_rules, load_edition
from hpcai500.layers import RECIPE_TYPES
from hpcai500.recipe import reference_recipe


def rulebook(edition: str, benchmark: str) -> dict[str, Any]:
    """The rules of `benchmark` under `edition`, with `levels` and the tables of the `reference` recipe beside them.

    Empty for a plug-in's benchmark, which no edition knows.

    Raises:
        RecipeError: there is no such edition.
    """
    rules = benchmark_rules(edition, benchmark)
    if not rules or benchmark not in RECIPE_TYPES:
        return rules
    reference = reference_recipe(benchmark).model_dump(mode="json")
    return {**rules, "levels": load_edition(edition).get("levels", {}), "reference": reference}
