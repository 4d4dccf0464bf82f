"""The checks of a submission as a whole, in the order of its parts; `records` has those of single records."""

from __future__ import annotations

from hpcai500.results.verification.archive import (
    check_archive,
    check_chains,
    check_claim,
    check_code,
    check_core,
    check_images,
    check_manifest,
    check_power_samples,
    check_results,
)
from hpcai500.results.verification.campaign import (
    check_attempts,
    check_binding,
    check_ceilings,
    check_checkpoints,
    check_levels,
    check_recipe_fields,
    check_recipes,
    check_registration,
    check_seeds,
    check_standing,
    check_systems,
)
from hpcai500.results.verification.context import Check
from hpcai500.results.verification.copies import check_copies
from hpcai500.results.verification.dates import check_accounting, check_dates, check_heads

CHECKS: tuple[Check, ...] = (
    check_archive,
    check_manifest,
    check_chains,
    check_attempts,
    check_binding,
    check_registration,
    check_heads,
    check_seeds,
    check_recipes,
    check_recipe_fields,
    check_results,
    check_power_samples,
    check_claim,
    check_standing,
    check_levels,
    check_code,
    check_core,
    check_images,
    check_checkpoints,
    check_systems,
    check_ceilings,
    check_accounting,
    check_dates,
    check_copies,
)
