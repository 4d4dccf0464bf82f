"""A recipe states every field that the version which wrote it knows: what is not stated cannot be judged."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500 import __version__
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail
from hpcai500.results.verification.software import versions_of

_NAME = "recipe-fields"


def check_recipe_fields(context: Context) -> Iterator[Finding]:
    """Fields that joined the reference later, missing from a record whose own version writes them.

    An older record does not state them, and they count as no change (`Judgement.absent`): whoever takes one out of a
    recipe of today hides a change of it.
    """
    for name, judgement in context.claimed.judgements.items():
        if judgement.absent and __version__ in versions_of(context.records[name]):
            yield fail(
                _NAME,
                f"{name}: its recipe does not state {', '.join(judgement.absent)}, which hpcai500 {__version__} writes "
                "into every recipe: taken out, or written by a hand",
            )
