"""Templates of the site, which are laid over those of the report. What is put into them is escaped, as there.

A policy in each page's head names what a browser may do with it: use the one style that stands in the page, by its
hash, and run the site's own script on pages with tables; nothing else, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from hpcai500 import __version__
from hpcai500.results.report.rendering import legible_value

if TYPE_CHECKING:
    from jinja2 import Environment

SCRIPT = "site.js"


def site_page(template: str, *, above: str = "", script: bool = False, made: date, **values: object) -> str:
    """The page of `template`.

    Args:
        template: its file.
        above: way up to the site's folder: empty, or `../`.
        script: whether it has tables to sort.
        made: the day that the page names.
        values: what the template shows.
    """
    style = site_style()
    return (
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            style=Markup(style),  # noqa: S704 - our own file
            policy=policy(style, script),
            script=f"{above}{SCRIPT}" if script else None,
            above=above,
            made=made.isoformat(),
            **values,
        )
    )


def site_script() -> str:
    """The script of the tables."""
    return _template("site.js")


@cache
def site_style() -> str:
    """The report's style with the site's own after it."""
    report = files("hpcai500.results.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    # The template puts it between line ends, which count for its hash.
    return f"\n{report}{_template('site.css')}"


def policy(style: str, script: bool) -> str:
    """The content security policy of a page with this style."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    scripts = "script-src 'self'; " if script else ""
    return (
        f"default-src 'none'; {scripts}style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _template(name: str) -> str:
    return files("hpcai500.results.ranking.site").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - a terminal needs none

    return Environment(
        loader=ChoiceLoader([PackageLoader("hpcai500.results.ranking.site"), PackageLoader("hpcai500.results.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
