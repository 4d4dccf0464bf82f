"""What the pages of submissions are called: by the hash of their manifest, so that a link stays right for years."""

from __future__ import annotations

from hpcai500.results.ranking.examined import Examined

_LETTERS = 16


def place_of(examined: Examined) -> str:
    """The submission's short name."""
    return examined.facts.manifest_sha256[:_LETTERS] if examined.facts else ""


def page_name(examined: Examined) -> str | None:
    """File of its page; None for a file that could not be read far enough to have one."""
    return f"{place_of(examined)}.html" if examined.facts else None


def report_name(examined: Examined) -> str | None:
    """File of the report about its runs; None where there is none."""
    return f"{place_of(examined)}-report.html" if examined.facts and examined.facts.report else None
