"""What is looked at in a submission as a whole, in the order of its parts; `records` looks into each record."""

from __future__ import annotations

from hpcai500.results.verification.checks.accounting import check_accounting
from hpcai500.results.verification.checks.archive import check_archive
from hpcai500.results.verification.checks.attempts import check_attempts
from hpcai500.results.verification.checks.binding import check_binding
from hpcai500.results.verification.checks.ceilings import check_ceilings
from hpcai500.results.verification.checks.chains import check_chains
from hpcai500.results.verification.checks.checkpoints import check_checkpoints
from hpcai500.results.verification.checks.claim import check_claim
from hpcai500.results.verification.checks.code import check_code
from hpcai500.results.verification.checks.copies import check_copies
from hpcai500.results.verification.checks.core import check_core
from hpcai500.results.verification.checks.dates import check_dates
from hpcai500.results.verification.checks.heads import check_heads
from hpcai500.results.verification.checks.images import check_images
from hpcai500.results.verification.checks.levels import check_levels
from hpcai500.results.verification.checks.manifest import check_manifest
from hpcai500.results.verification.checks.power import check_power_samples
from hpcai500.results.verification.checks.recipe_fields import check_recipe_fields
from hpcai500.results.verification.checks.recipes import check_recipes
from hpcai500.results.verification.checks.registration import check_registration
from hpcai500.results.verification.checks.results import check_results
from hpcai500.results.verification.checks.seeds import check_seeds
from hpcai500.results.verification.checks.standing import check_standing
from hpcai500.results.verification.checks.systems import check_systems
from hpcai500.results.verification.context import Check

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
