"""The tutorials of docs/tutorials, followed word for word; that of a cluster is in tests/site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders.commands import python_with
from builders.ranks import clean_environment
from builders.tutorials import TUTORIALS, follow, missing, steps, typed_here

HERE = ("laptop.md", "submit.md", "procurement.md")
# In tests/site/test_cluster_tutorial.py and tests/plugins/test_plugins_page.py.
ELSEWHERE = ("benchmark.md", "cluster.md")


def test_every_tutorial_is_followed_by_a_test() -> None:
    assert sorted(page.name for page in TUTORIALS.glob("*.md")) == sorted((*HERE, *ELSEWHERE))


@pytest.mark.parametrize("name", HERE)
def test_a_tutorial_works_word_for_word(name: str, tmp_path: Path) -> None:
    scripts = python_with(tmp_path / "python").parent
    (tmp_path / "here").mkdir()
    # A data set that hpcai500 has made is kept in the cache, for all tutorials.
    environment = {**clean_environment(), "PATH": f"{scripts}:{os.environ['PATH']}"}
    follow(name, typed_here(tmp_path / "here", environment))


def test_what_a_page_shows_is_compared_but_for_numbers() -> None:
    (step,) = steps("Text.\n\n    $ cat <<'END'\n    > a\n    > END\n    a 1.5\n    …\n    b  2\n\nText.\n")
    assert (step.command, step.shown) == ("cat <<'END'\na\nEND", ["a 1.5", "…", "b  2"])
    assert missing(step.shown, "a 7\nx\nb 3e4\n") == []
    assert missing(step.shown, "b 2\na 1\n") == ["b  2"]
    assert missing(["a"], "a\nb\n") == ["a", "(and no other line)"]
    assert missing(["a…", "…"], "abc\n") == []
