"""The code that ran is the code that is here; and where it is not this version's, which files differ."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500 import __version__
from hpcai500.chain import iterate
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import package
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped, warning
from hpcai500.system.versions import code_hash, package_code_hash

_NAME, _CHANGED, _TRUST = "code", "code-changed", "measuring-code-changed"


def check_code(context: Context) -> Iterator[Finding]:
    """Sources, each record and the plan have one hash; then the sources with those that are installed here."""
    yield from _is_one(context)
    changes = context.code_changes
    if changes is None:
        version = context.submission.manifest.code.version
        yield warning(
            _NAME,
            f"of version {version}; here is {__version__}: what of it was changed is not seen. Install hpcai500 "
            f"{version} and verify with that",
        )
        yield skipped(
            _CHANGED, f"the sources of version {version} were not compared file by file: here is {__version__}"
        )
        return
    for changed in changes:
        if changed.layer is None:
            yield fail(_TRUST, f"hpcai500/{changed.path} is {changed.how}: it measures, records or judges")
        else:
            yield warning(
                _CHANGED, f"hpcai500/{changed.path} is {changed.how}: layer {changed.layer}; read it in the bundle"
            )
    if not changes:
        yield note(_NAME, f"the sources are those of hpcai500 {__version__} as it is installed here, file by file")


def _is_one(context: Context) -> Iterator[Finding]:
    bundled = code_hash(context.submission.code)
    planned = context.campaign.start.get("code_sha256")
    told = {name: package(record).get("code_sha256") for name, record in context.done.items()}
    wrong = {name: found for name, found in told.items() if found != bundled}
    for name, found in wrong.items():
        yield fail(_NAME, f"{name}: ran the code {found}; the sources here are {bundled}")
    versions = {
        str(event["value"].get("version"))
        for record in context.done.values()
        for event in iterate(record.events, "init_start")
    }
    for version in sorted(versions - {context.submission.manifest.code.version}):
        yield fail(
            _NAME,
            f"a record was begun by version {version}; the manifest says {context.submission.manifest.code.version}",
        )
    if planned != bundled:
        yield warning(_NAME, f"planned with the code {planned}, and run with {bundled}")
    if told and not wrong:
        same = ", this installation's" if bundled == package_code_hash() else ""
        yield note(_NAME, f"{len(told)} records ran the sources that are here ({bundled}{same})")
