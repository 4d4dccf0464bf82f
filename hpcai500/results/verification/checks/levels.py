"""The level: what recipes and code change, against what is claimed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpcai500.results.verification.code_changes import Changed
from hpcai500.results.verification.context import Context, Scored
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped
from hpcai500.results.verification.software import codes_of

_NAME = "level"
_NONE = "none that allows what was changed"


def check_levels(context: Context) -> Iterator[Finding]:
    """A level that is claimed must allow all that the recipes and the code change."""
    claimed, scored = context.submission.manifest.claim.level, context.claimed
    order = _order(scored)
    if not order:
        told = f"edition {scored.edition} has no levels of {context.campaign.benchmark}"
        yield skipped(_NAME, told) if claimed is None else fail(_NAME, f"claimed is {claimed}, but {told}")
        return
    needed = needed_level(context, scored)
    if _rank(claimed, order) < _rank(needed, order):
        why = "; ".join(dict.fromkeys(_reasons(context, needed)))
        yield fail(_NAME, f"claimed is {claimed}; needed is {needed or _NONE}: {why}")
    elif claimed != needed:
        yield note(_NAME, f"claimed is {claimed or _NONE}, where {needed} would do")
    else:
        changes = {change.field for judgement in scored.judgements.values() for change in judgement.changes}
        told = f"{len(changes)} fields are not the reference's" + (
            f" ({', '.join(sorted(changes))})" if changes else ""
        )
        code = (
            "the code is not compared (see `code`)" if context.code_changes is None else "the code is compared as well"
        )
        yield note(_NAME, f"{claimed or _NONE}, as claimed: {told}; {code}")


def level_of(context: Context) -> str | None:
    """The level of the submission: what is needed, or a higher one where that is claimed.

    None where no level allows what was changed, and where the code was not compared.
    """
    if not context.asked.judgements or not_compared(context):
        return None
    order = _order(context.asked)
    return _highest([context.submission.manifest.claim.level, needed_level(context, context.asked)], order)


def not_compared(context: Context) -> str | None:
    """Why nobody here can tell what the code changes, and so which level it needs; None where it was compared."""
    if context.code_changes is None:
        return (
            f"its code is of version {context.submission.manifest.code.version}, which could not be compared here: "
            "install that version and verify with it"
        )
    mixed = next((name for name, record in context.done.items() if len(codes_of(record)) > 1), None)
    return f"{mixed}: went on with other code than it had begun with, and only one of them is here" if mixed else None


def needed_level(context: Context, scored: Scored) -> str | None:
    """The least level that allows what recipes and code change; None where none does."""
    recipes = [judgement.level for judgement in scored.judgements.values()]
    code = [_level(changed, scored) for changed in _counted(context)]
    return _highest([*recipes, *code], _order(scored))


def _order(scored: Scored) -> Sequence[str]:
    return tuple(scored.rules.get("levels", {}).get("order", ()))


def _rank(level: str | None, order: Sequence[str]) -> int:
    return order.index(level) if level in order else len(order)


def _highest(levels: Iterable[str | None], order: Sequence[str]) -> str | None:
    """The least strict of them; None where one of them is."""
    rank = max((_rank(level, order) for level in levels), default=0)
    return order[rank] if rank < len(order) else None


def _counted(context: Context) -> list[Changed]:
    """Changed files of a layer; those of none are refused at any level."""
    return [changed for changed in context.code_changes or () if changed.layer is not None]


def _level(changed: Changed, scored: Scored) -> str | None:
    """The least level that allows a change of anything in the file's layer: what it changes, no program can tell."""
    layers = scored.rules["levels"]["layers"].values()
    level = next((str(row["level"]) for row in layers if row["layer"] == changed.layer), None)
    return level if level in _order(scored) else None


def _reasons(context: Context, needed: str | None) -> Iterator[str]:
    for judgement in context.claimed.judgements.values():
        if judgement.level == needed:
            for change in judgement.forcing:
                yield f"{change.field} is {change.value!r}, the reference has {change.reference!r} ({change.section})"
    for changed in _counted(context):
        if _level(changed, context.claimed) == needed:
            yield f"{changed.path} is {changed.how} (layer {changed.layer})"
