"""docs/submission-format.md says what the code does, because the code says it."""

from __future__ import annotations

from pathlib import Path

from hpcai500.results.submission.format_page import format_page
from hpcai500.results.submission.manifest import KINDS, Manifest, kind_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "submission-format.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == format_page(), (
        "run: python -m hpcai500.results.submission.format_page > docs/submission-format.md"
    )


def test_every_field_of_the_manifest_has_a_row() -> None:
    page = format_page()
    for name, field in Manifest.model_fields.items():
        assert f"| `{field.alias or name}` |" in page
        assert field.description
        assert field.description in page


def test_shown_paths_are_paths_of_their_kind() -> None:
    for kind in KINDS:
        path = kind.shown.replace("RECORD", "trial-01").replace("MODULE", "a/b").replace("JOB", "17")
        assert kind_of(path.replace("NAME", "x.csv")) is kind
