"""Files one after the other: whatever one of them does, the next one is looked at.

`verify_submission` stands replaced here where a file must misbehave in a way that none can be made to.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitted import a_manifest

from hpcai500.errors import EnvironmentLacksError, RecordError, RunError, UsageError, WrongAnswerError
from hpcai500.results.ranking.entries import Examined, examine, facts_of
from hpcai500.results.ranking.pages import make_ranking
from hpcai500.results.verification import verify
from hpcai500.results.verification.finding import Finding, Verification


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    """Three files that are no submissions."""
    paths = [tmp_path / name for name in ("a.zip", "b.zip", "c.zip")]
    for path in paths:
        path.write_bytes(b"no archive")
    return paths


def replaced(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(verify, "verify_submission", answer)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (WrongAnswerError("a bomb"), "a bomb"),
        (RecordError("broken\nin two lines"), "broken in two lines"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (MemoryError(), "MemoryError:"),
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
        (KeyError("\u202e\x1b[31m"), "KeyError: '\\u202e\\x1b[31m'"),
    ],
)
def test_one_file_never_stops_the_others(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path], error: Exception, said: str
) -> None:
    def answer(path: Path, **_: object) -> Verification:
        if path.name == "b.zip":
            raise error
        return Verification((Finding("archive", "note", "fine"),))

    replaced(monkeypatch, answer)
    told: list[Examined] = []
    found = examine(bundles, told=told.append)
    assert [one.problem for one in found] == [None, said, None]
    assert told == found


def test_files_that_are_no_submissions_are_refused_for_real(bundles: list[Path]) -> None:
    with zipfile.ZipFile(bundles[1], "w") as archive:
        archive.writestr("../../outside.txt", "traversal")
    ranking = make_ranking([*bundles, bundles[0].with_name("gone.zip")])
    assert not ranking.groups
    assert [one.examined.file.name for one in ranking.unranked] == ["a.zip", "b.zip", "c.zip", "gone.zip"]
    assert {one.status for one in ranking.unranked} == {"unverified"}
    assert not (bundles[0].parents[1] / "outside.txt").exists()
    assert "no such file" in ranking.unranked[-1].reason


def test_no_file_at_all_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone.zip: no such file; give what `hpcai500 submit"):
        examine([tmp_path / "gone.zip"])


def test_a_list_of_signers_that_is_missing_is_a_usage_error(bundles: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--signers .*keys: no such file"):
        examine(bundles, signers=tmp_path / "keys")


def test_a_machine_that_cannot_verify_says_so_once(monkeypatch: pytest.MonkeyPatch, bundles: list[Path]) -> None:
    def answer(path: Path, **_: object) -> Verification:
        raise EnvironmentLacksError(f"{path}: no ssh-keygen here")

    replaced(monkeypatch, answer)
    with pytest.raises(EnvironmentLacksError):
        examine(bundles)


def opened(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """A verification that looks at the submission with the checks that it is given."""

    def answer(path: Path, *, more_checks: Any, **_: object) -> Verification:
        tables = {"accelerator": {"precision": "bf16"}, "communication": {"compression": "int8"}}
        context = SimpleNamespace(
            campaign=SimpleNamespace(tables=tables),
            submission=SimpleNamespace(manifest_bytes=path.name.encode()),
            done={},
        )
        assert [one for check in more_checks for one in check(context)] == []
        return Verification(findings, a_manifest())

    replaced(monkeypatch, answer)


def test_facts_and_report_are_taken_while_the_file_lies_open(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path]
) -> None:
    opened(monkeypatch)
    [one, *_] = examine(bundles, make_report=lambda _: "<page>")
    assert one.facts is not None
    assert one.facts.manifest_sha256 == hashlib.sha256(b"a.zip").hexdigest()
    assert (one.facts.precision, one.facts.compression, one.facts.report) == ("bf16", "int8", "<page>")


def test_a_refused_submission_has_no_report_that_would_praise_it(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path]
) -> None:
    opened(monkeypatch, Finding("clock", "fail", "it ran backwards"))
    [one, *_] = examine(bundles, make_report=lambda _: "<page>")
    assert one.facts is not None
    assert one.facts.report is None


def test_a_report_that_cannot_be_made_is_said_and_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path]
) -> None:
    def fails(_: object) -> str:
        raise RecordError("not that one")

    opened(monkeypatch)
    [one, *_] = examine(bundles, make_report=fails)
    assert one.facts is not None
    assert one.facts.report_problem == "RecordError: not that one"


@pytest.mark.parametrize(
    "tables", [{}, {"accelerator": 7, "communication": []}, {"accelerator": {}, "communication": {"compression": None}}]
)
def test_recipes_of_anything_give_facts(tables: dict[str, Any]) -> None:
    facts = facts_of(b"", tables)
    assert (facts.precision, facts.compression) == (None, None)


def test_a_site_that_cannot_go_there_is_said_before_anything_is_verified(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path]
) -> None:
    replaced(monkeypatch, lambda *_, **__: pytest.fail("verified"))
    with pytest.raises(UsageError, match="is no site of hpcai500"):
        make_ranking(bundles, site=bundles[0].parent)


def test_a_full_disk_here_ends_it_and_is_no_finding_against_who_submitted(
    bundles: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Verification:
        raise RunError("/tmp/x: cannot be written: No space left on device; free some space")

    replaced(monkeypatch, full)
    with pytest.raises(RunError, match="No space left"):
        examine(bundles)
