"""Templates to text. Whatever a record says is escaped; only drawings, which escape it themselves, are markup."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hpcai500 import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """The page of `template`."""
    return _environment().get_template(template).render(version=__version__, **values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - keeps other commands fast

    return Environment(
        loader=PackageLoader("hpcai500.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
