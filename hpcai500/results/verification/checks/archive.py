"""What the archive holds, once it could be opened: each file has the hash that the manifest names."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import note, skipped


def check_archive(context: Context) -> Iterator[Finding]:
    """How much was compared, and what was left out or replaced before it was packed."""
    manifest = context.submission.manifest
    size = sum(entry.bytes for entry in manifest.files)
    yield note("archive", f"{len(manifest.files)} files, {size} bytes: each has the SHA-256 that the manifest names")
    reasons: dict[str, list[str]] = {}
    for left in manifest.left_out:
        reasons.setdefault(left.reason, []).append(left.path)
    for reason, paths in reasons.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield skipped("left-out", f"{paths[0]}{more}: {reason}")
    if manifest.anonymised:
        heads = manifest.anonymised.original_heads
        yield skipped(
            "anonymised",
            f"{manifest.anonymised.hosts} host names were replaced; ask for the originals of {len(heads)} logs where "
            "names matter: their last hashes must be those in the manifest",
        )
