"""`hpcai500 demo`: all pages in seconds, each marked, and nothing that anybody could rank."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders.commands import Typed, typed

from hpcai500.demo.layout import lay_out

__all__ = ["typed"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "it"
    lay_out(folder)
    return folder


def test_every_page_says_that_it_is_a_demonstration(demo: Path) -> None:
    pages = list(demo.rglob("*.html"))
    assert len(pages) > 8
    for page in pages:
        assert "Demonstration: real runs of the smoke recipes" in page.read_text(encoding="utf-8"), page


def test_the_index_links_what_is_there(demo: Path) -> None:
    links = re.findall(r'href="([^"]+)"', (demo / "index.html").read_text(encoding="utf-8"))
    assert len(links) == 9
    assert [link for link in links if not (demo / link).is_file()] == []


def test_one_acceptance_passes_and_one_misses(demo: Path) -> None:
    assert "NOT ACCEPTED" not in (demo / "acceptance-pass.html").read_text(encoding="utf-8")
    assert "NOT ACCEPTED" in (demo / "acceptance-miss.html").read_text(encoding="utf-8")


def test_its_submission_is_refused_and_gets_no_rank(demo: Path, typed: Typed) -> None:
    ended = typed("verify", demo / "submission.zip")
    assert ended.returncode == 2
    assert ended.stdout.startswith("REFUSED")
    assert "ran the code" in ended.stdout
    ranking = json.loads(typed("rank", demo / "submission.zip", "--json").stdout)
    assert ranking["entries"] == []
    assert [one["status"] for one in ranking["unverified"]] == ["unverified"]


def test_the_commands_that_it_prints_work_on_its_records(demo: Path, typed: Typed) -> None:
    assert typed("score", demo / "ic").stdout.endswith("HPCAI500 RESULT PASS\n")
    assert "not rankable" in typed("score", demo / "campaign").stdout
    assert "done" in typed("watch", demo / "ewa").stdout


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    ended = typed("demo", tmp_path)
    assert ended.returncode == 64
    assert f"{tmp_path}: not empty; give a new folder: hpcai500 demo DIR" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
