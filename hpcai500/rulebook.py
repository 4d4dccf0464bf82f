"""All that an edition rules for one benchmark, in plain tables: numbers, what each level may change, the reference."""

from __future__ import annotations

from typing import Any

from hpcai500.editions import benchmark_rules, load_edition
from hpcai500.recipe import ENSEMBLE, ensemble_reference, find_recipe, load_recipe, tables_hash


def rulebook(edition: str, benchmark: str) -> dict[str, Any]:
    """The rules of `benchmark` under `edition`, with `levels` and the tables of the `reference` recipe beside them.

    Empty for a plug-in's benchmark, which no edition knows. Where the recipe on this machine is not the one that the
    edition pins, there is no `reference`, and `reference_error` says so: nothing is judged by a changed measure.

    Raises:
        RecipeError: there is no such edition, or its reference recipe is missing or cannot be read.
    """
    rules = benchmark_rules(edition, benchmark)
    name = rules.get("reference_recipe")
    if name is None:
        return rules
    reference = load_recipe(name).model_dump(mode="json")
    levels = load_edition(edition)["levels"]
    expected = {find_recipe(name): (rules["reference_sha256"], tables_hash(reference))}
    joined = list(rules["joined_fields"])
    if "ensemble_sha256" in rules:
        table = ensemble_reference(benchmark)
        expected[find_recipe(f"{benchmark}/{ENSEMBLE}")] = rules["ensemble_sha256"], tables_hash(table)
        reference[ENSEMBLE] = table
        # One model alone states nothing of an ensemble.
        joined += [f"{ENSEMBLE}.{key}" for key in table]
    changed = next((path for path, (pinned, found) in expected.items() if pinned != found), None)
    if changed is not None:
        error = (
            f"{changed}: not the reference of edition {edition}: its hash differs, so no level can be told; "
            "restore the file, or install hpcai500 again"
        )
        return {**rules, "levels": levels, "reference_error": error}
    return {**rules, "joined_fields": joined, "levels": levels, "reference": reference}
