"""What is claimed is what the records give, computed again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict

from hpcai500 import __version__
from hpcai500.results.submission.claim import plain
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, warning
from hpcai500.results.verification.metrics import same_number

_NAME = "claim"
_READ, _COMPARED = 2000, 300


def check_claim(context: Context) -> Iterator[Finding]:
    """Each metric over the trials, whether it may be ranked, and why not, under the edition that is claimed."""
    found = [*_metrics(context), *_rankable(context)]
    yield from found
    if not any(one.severity == "fail" for one in found):
        claim = context.submission.manifest.claim
        told = "rankable" if claim.rankable else "not rankable"
        yield note(_NAME, f"{len(claim.metrics)} metrics within 1e-9, and {told}, as computed from the records")
    if context.asked.edition != context.claimed.edition:
        told = f"claimed under {context.claimed.edition}; level, metrics and rank told here are those of"
        yield note("edition", f"{told} {context.asked.edition}, which was asked for")


def _metrics(context: Context) -> Iterator[Finding]:
    claimed = context.submission.manifest.claim.metrics
    if context.claimed.metrics is None:
        yield fail(_NAME, "the records give no metrics over the trials")
        return
    for name in sorted(claimed.keys() | context.claimed.metrics.keys()):
        told, found = claimed.get(name), context.claimed.metrics.get(name)
        if told is None or found is None:
            yield fail(_NAME, f"{name}: {_is_there(told)} in the claim, {_is_there(found)} by the records")
            continue
        computed = asdict(found)
        for key, value in told.model_dump().items():
            if not same_number(value, computed[key]):
                yield fail(_NAME, f"{name}.{key}: claimed is {value!r}; the records give {computed[key]!r}")


def _rankable(context: Context) -> Iterator[Finding]:
    claim, standing = context.submission.manifest.claim, context.claimed.standing
    if standing is None:
        yield fail(_NAME, "whether it may be ranked cannot be found out")
        return
    short = [_plain(reason) for reason in standing.reasons]
    if claim.rankable != standing.rankable:
        said = "rankable" if claim.rankable else "not rankable"
        yield fail(_NAME, f"claimed is {said}; the records give: {'; '.join(short) or 'rankable'}")
        return
    told = [_plain(reason) for reason in claim.reasons]
    only_claimed, only_found = sorted(set(told) - set(short)), sorted(set(short) - set(told))
    if only_claimed or only_found:
        evidence = f"reasons that are claimed only: {only_claimed}; that are found only: {only_found}"
        # Another version may say the same in other words.
        same_version = context.submission.manifest.code.version == __version__
        yield fail(_NAME, evidence) if same_version else warning(_NAME, evidence)


def _is_there(summary: object) -> str:
    return "absent" if summary is None else "there"


def _plain(reason: str) -> str:
    """`reason` as manifests hold it, with records named as they are named in the campaign, wherever that lay.

    Its beginning: a manifest cuts long ones, and whoever wrote them may have chosen their length.
    """
    return plain(re.sub(r"\S*/(?=trial-\d)", "", reason[:_READ]))[:_COMPARED]
