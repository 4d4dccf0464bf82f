"""The container image: one in all records, on every node."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import image, nodes
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped

_NAME = "image"


def check_images(context: Context) -> Iterator[Finding]:
    """The content's hash in each record, and at each node where that tells one."""
    contents = {name: image(record).get("content_sha256") for name, record in context.done.items()}
    different = sorted({str(content) for content in contents.values()})
    if len(different) > 1:
        yield fail(_NAME, f"the trials ran in {len(different)} images: {', '.join(different)}")
        return
    for name, record in context.done.items():
        for node in nodes(record):
            container = node.get("container") or {}
            content = container.get("content_sha256")
            if content is not None and content != contents[name]:
                yield fail(_NAME, f"{name}: {node.get('host')} ran in the image {content}, rank 0 in {contents[name]}")
    if different == ["None"]:
        yield skipped(_NAME, "no image is named: what else was installed there is told by no hash")
    elif different:
        yield note(_NAME, f"all records ran in the image {different[0]}: it is the published one where hashes agree")
