"""What the manifest says of the campaign is what the campaign says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcai500.results.submission.claim import accelerators_of, framework_of
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import begun_on, image, package
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "manifest"


def check_manifest(context: Context) -> Iterator[Finding]:
    """Each fact of the manifest that the campaign or the records have as well."""
    manifest, campaign = context.submission.manifest, context.campaign
    pairs: dict[str, tuple[Any, Any]] = {
        "benchmark": (manifest.benchmark, campaign.benchmark),
        "edition": (manifest.edition, campaign.edition),
        "campaign": (manifest.campaign, campaign.identity),
        "trials": (manifest.trials, len(campaign.trials)),
        "attempts": (manifest.attempts, len(campaign.attempts)),
    }
    for name, record in context.done.items():
        ran = package(record)
        pairs[f"code.version, in {name}"] = (manifest.code.version, ran.get("version"))
        pairs[f"code.code_sha256, in {name}"] = (manifest.code.code_sha256, ran.get("code_sha256"))
        pairs[f"code.core_sha256, in {name}"] = (manifest.code.core_sha256, ran.get("core_sha256"))
        pairs[f"code.image_sha256, in {name}"] = (manifest.code.image_sha256, image(record).get("content_sha256"))
        # A run that went on elsewhere has two systems. It is not ranked, and whichever is named is no lie.
        either = (record, begun_on(record))
        for what, told, told_by in (
            ("accelerators", manifest.accelerators, accelerators_of),
            ("framework", manifest.framework, framework_of),
        ):
            found = [told_by(one) for one in either]
            pairs[f"{what}, in {name}"] = (told, told if told in found else found[0])
    wrong = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    for what, (told, found) in wrong.items():
        yield fail(_NAME, f"{what}: the manifest says {told}, the campaign {found}")
    if not wrong:
        yield note(_NAME, f"{len(pairs)} facts are those of the campaign and its records")
