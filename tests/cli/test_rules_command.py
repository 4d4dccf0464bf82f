"""`hpcai500 rules` as people and harnesses use it: what it prints where, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from hpcai500.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "rules", *arguments])
        code = main()
        streams = capsys.readouterr()
        return int(code), streams.out, streams.err

    return run


def test_it_ends_well_whatever_the_level(ended: Command) -> None:
    code, out, err = ended("ic/smoke")
    assert (code, err) == (0, "")
    assert "level       none (forced by problem.dataset" in out


def test_a_recipe_alone_is_no_ranked_result(ended: Command) -> None:
    assert "rankable    its recipe can be ranked; a result needs runs too" in ended("ic/lars-8192")[1]


def test_a_level_that_is_missed_ends_with_2_and_says_by_what(ended: Command) -> None:
    code, out, _ = ended("ic/reference", "--set", "framework.compile=true", "--level", "hardware")
    assert code == 2
    assert out.endswith("framework.compile is not the reference's: level system (V2.0 5.2)\n")
    assert ended("ic/reference", "--set", "framework.compile=true", "--level", "system")[0] == 0


def test_json_is_one_document(ended: Command) -> None:
    code, out, _ = ended("ic/lars-4096", "--json", "--level", "free")
    document = json.loads(out)
    assert (code, document["level"], document["qualifies"]) == (0, "free", True)


def test_without_a_subject_it_prints_the_rules(ended: Command) -> None:
    code, out, _ = ended("--edition", "v3.0")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "Edition v3.0, which extends v2.0")
    assert lines[3].split()[:5] == ["9", "problem", "fixed", "fixed", "fixed"]
    assert len(lines) < 20
    assert max(map(len, lines)) <= 110
    assert "docs/rules.md" in out
    assert "members x degree" in ended("--edition", "v3.0", "--json")[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--level", "hardware"], "of what? hpcai500 rules ic/reference --level hardware"),
        (["ic/reference", "--level", "x"], "--level: expected one of hardware, system, free, got x"),
        (["ic/none"], "no such recipe file; the recipes that come with hpcai500 are"),
        (["ic/reference", "--edition", "v9"], "edition: expected one of v2.0, v3.0, got 'v9'"),
        (["/"], "not a record"),
    ],
)
def test_what_cannot_be_judged_ends_with_64(ended: Command, arguments: list[str], complaint: str) -> None:
    code, out, err = ended(*arguments)
    assert (code, out) == (64, "")
    assert complaint in err
