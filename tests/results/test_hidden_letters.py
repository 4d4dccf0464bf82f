"""Letters that no reader sees, in what a stranger named: each kind of file that people open spells them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import Environment
from markupsafe import Markup
from written_record import write_record

from hpcai500.drawing import figure_files
from hpcai500.results.ranking import pages as site
from hpcai500.results.report import blocks as report
from hpcai500.results.report.drawing import element
from hpcai500.results.report.page import make_report
from hpcai500.text import legible

HIDDEN = "a\x1b[2J\x9b1m\u202eb\u2066c\u200bd\u2028e\r\x7f\ud800"
SHOWN = r"a\x1b[2J\x9b1m\u202eb\u2066c\u200bd\u2028e\r\u007f\ud800"


def test_what_hides_is_spelt_out_and_lines_tabs_and_blanks_stay() -> None:
    assert legible(HIDDEN) == SHOWN
    plain = "one\n\ttwo\N{NO-BREAK SPACE}GB, 日本 é ± ≥ ✓"
    assert legible(plain) == plain


def test_a_report_spells_out_what_its_record_hides(tmp_path: Path) -> None:
    html = make_report([write_record(tmp_path / "run\u202e\x1b[31m")]).html
    assert r"run\u202e\x1b[31m" in html
    assert not {letter for letter in html if not letter.isprintable()} - {"\n"}


@pytest.mark.parametrize("environment", [report._environment(), site._environment()], ids=["report", "site"])
def test_templates_leave_markup_and_lines_as_they_are(environment: Environment) -> None:
    template = environment.from_string("<pre>{{ text }}</pre>{{ drawing }}")
    drawing = Markup("<svg>\n\u200b</svg>")
    assert template.render(text=f"<b>\n{HIDDEN}", drawing=drawing) == f"<pre>&lt;b&gt;\n{SHOWN}</pre>{drawing}"


def test_drawings_spell_out_text_and_attributes() -> None:
    inner = element("title", HIDDEN)
    assert inner == f"<title>{SHOWN}</title>"
    assert element("g", inner, aria_label=HIDDEN) == f'<g aria-label="{SHOWN}"><title>{SHOWN}</title></g>'


def test_figures_spell_out_what_is_written_into_them() -> None:
    files = figure_files(lambda figure: figure.text(0.1, 0.5, "a\u202e\x1bb"), "name", (4, 3))
    assert rb">a\u202e\x1bb<" in files["name.svg"]
