"""Templates to text. Whatever a record says is escaped, and what hides in it spelt out; drawings do both themselves."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup

from hpcai500 import __version__
from hpcai500.results.report.words import legible

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """The page of `template`."""
    return _environment().get_template(template).render(version=__version__, **values)


def legible_value(value: object) -> object:
    """What a template shows of `value`: text as `legible` has it, and what is markup already as it is."""
    return legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - keeps other commands fast

    return Environment(
        loader=PackageLoader("hpcai500.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
