"""`hpcai500 rank`, on real submissions of campaigns that nobody ran: whatever one file does, the next is looked at.

`verify_submission` stands replaced where a file must misbehave in a way that none can be made to.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from builders.campaigns import heads_given, write_campaign, write_heads
from builders.submissions import a_manifest

from hpcai500.cli import main
from hpcai500.errors import EnvironmentLacksError, RecordError, RunError, WrongAnswerError
from hpcai500.results.ranking.entries import Examined, examine, facts_of
from hpcai500.results.ranking.pages import make_ranking
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification import verify
from hpcai500.results.verification.finding import Finding, Verification


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command as it is typed."""

    def typed(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "rank", *map(str, arguments)])
        return Ended(main(), *capsys.readouterr())

    return typed


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A submission that is ranked, one of too few runs, a copy of the first, and a part of it."""
    folder = tmp_path_factory.mktemp("submissions")
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    wanted: dict[str, dict[str, Any]] = {"quick": {"trials": 10}, "few": {"trials": 3, "start_s": 1.6e9}}
    for name, campaign in wanted.items():
        written = write_campaign(folder / name, **campaign)
        pack(SubmitRequest(written, folder / f"{name}.zip", f"System <b>{name}</b>", "A laboratory", key=key))
    shutil.copy(folder / "quick.zip", folder / "quick-again.zip")
    (folder / "cut.zip").write_bytes((folder / "quick.zip").read_bytes()[:3000])
    return {name: folder / f"{name}.zip" for name in ("quick", "few", "quick-again", "cut")}


def test_submissions_are_ranked_on_a_site(
    packed: dict[str, Path], ranked: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = ranked(*packed.values(), tmp_path / "gone.zip", "--json", "--published", "--html", tmp_path / "site")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    [entry] = document["entries"]
    assert (entry["rank"], entry["system"], entry["level"]) == (1, "System <b>quick</b>", "hardware")
    assert entry["vflops"] == pytest.approx(9.4e14, rel=0.05)
    assert (entry["precision"], entry["world_size"], entry["trials"]) == ("bf16", 16, 10)
    listed = {Path(one["file"]).name: (one["status"], one["reason"]) for one in document["unverified"]}
    assert listed["few.zip"][0] == "not-rankable"
    assert listed["quick.zip"] == ("duplicate", "the same campaign as quick-again.zip, which is ranked")
    assert listed["cut.zip"][1].startswith("archive: ")
    assert "no such file" in listed["gone.zip"][1]
    assert len(document["published"]) == 9
    assert "few.zip: verified, not rankable" in ended.err
    pages = sorted((tmp_path / "site" / "submissions").iterdir())
    assert [page.name.endswith("-report.html") for page in pages] == [True, False] * 2
    assert "System &lt;b&gt;quick&lt;/b&gt;" in (tmp_path / "site" / "index.html").read_text()
    everything = "".join(path.read_text() for path in (tmp_path / "site").rglob("*.*") if path.is_file())
    assert not [private for private in (tmp_path, packed["quick"].parent) if str(private) in everything]


def test_published_alone_prints_nine_systems(ranked: Callable[..., Ended]) -> None:
    entries = json.loads(ranked("--published", "--json").out)["entries"]
    assert [one["rank"] for one in entries] == list(range(1, 10))
    assert {"published_vflops", "vflops_n5", "vflops_n10"} <= set(entries[0])
    text = ranked("--published")
    assert text.code == 0
    assert "Fujitsu" in text.out
    assert max(map(len, text.out.partition("VFLOPS = ")[2].splitlines())) <= 100


def test_heads_decide_who_is_ranked(packed: dict[str, Path], ranked: Callable[..., Ended], tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", heads_given(packed["quick"].parent / "quick"))
    document = json.loads(ranked(packed["quick"], packed["few"], "--heads", heads, "--json").out)
    assert [entry["system"] for entry in document["entries"]] == ["System <b>quick</b>"]
    [refused] = document["unverified"]
    assert refused["status"] == "unverified"
    assert refused["reason"].startswith("heads: no head of the campaign ")
    assert ranked(packed["quick"], "--heads", tmp_path / "nowhere").code == 64


def test_a_ranking_of_nothing_is_a_ranking(packed: dict[str, Path], ranked: Callable[..., Ended]) -> None:
    ended = ranked(packed["cut"])
    assert ended.code == 0
    assert ended.out.startswith("No submission is ranked.\n\nNot ranked\n  unverified")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "rank: give submissions: hpcai500 rank FILE"),
        (("gone.zip",), "gone.zip: no such file; give a file that `hpcai500 submit"),
        (("gone.zip", "--level", "hardwar"), "--level hardwar: expected one of hardware, system, free"),
        (("--published", "--benchmark", "foo"), "--benchmark foo: expected one of ic, ewa"),
        (("{packed}", "--signers", "nowhere"), "--signers nowhere: no such file"),
        (("{packed}", "--html", "{folder}"), "is not a site of hpcai500"),
    ],
)
def test_what_cannot_be_understood_ends_with_64_before_anything_is_verified(
    packed: dict[str, Path], ranked: Callable[..., Ended], arguments: tuple[str, ...], said: str
) -> None:
    ended = ranked(*(word.format(packed=packed["quick"], folder=packed["quick"].parent) for word in arguments))
    assert (ended.code, ended.out) == (64, "")
    assert said in ended.err
    assert "verified" not in ended.err


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
def test_no_file_stops_others(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path], error: Exception, said: str
) -> None:
    def answer(path: Path, **_: object) -> Verification:
        if path.name == "b.zip":
            raise error
        return Verification((Finding("archive", "note", "fine"),))

    replaced(monkeypatch, answer)
    told: list[Examined] = []
    found = examine(bundles, report=told.append)
    assert [one.problem for one in found] == [None, said, None]
    assert told == found


def test_files_that_are_no_submissions_are_refused_for_real(bundles: list[Path]) -> None:
    with zipfile.ZipFile(bundles[1], "w") as archive:
        archive.writestr("../../outside.txt", "traversal")
    ranking = make_ranking([*bundles, bundles[0].with_name("gone.zip")])
    assert not ranking.groups
    unranked = [(one.examined.file.name, one.status) for one in ranking.unranked]
    assert unranked == [(f"{name}.zip", "unverified") for name in ("a", "b", "c", "gone")]
    assert not (bundles[0].parents[1] / "outside.txt").exists()
    assert "no such file" in ranking.unranked[-1].reason


@pytest.mark.parametrize(
    "error", [EnvironmentLacksError("no ssh-keygen here"), RunError("/tmp/x: cannot be written: No space left")]
)
def test_what_this_machine_lacks_ends_it_and_is_no_finding_against_who_submitted(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path], error: Exception
) -> None:
    def answer(path: Path, **_: object) -> Verification:
        raise error

    replaced(monkeypatch, answer)
    with pytest.raises(type(error), match=str(error)):
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


def test_facts_and_report_are_taken_while_a_file_is_open(monkeypatch: pytest.MonkeyPatch, bundles: list[Path]) -> None:
    opened(monkeypatch)
    facts = examine(bundles, make_report=lambda _: "<page>")[0].facts
    assert facts.manifest_sha256 == hashlib.sha256(b"a.zip").hexdigest()
    assert (facts.precision, facts.compression, facts.report) == ("bf16", "int8", "<page>")


def test_no_report_praises_a_refused_submission_and_one_that_cannot_be_made_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, bundles: list[Path]
) -> None:
    def fails(_: object) -> str:
        raise RecordError("not that one")

    opened(monkeypatch)
    assert examine(bundles, make_report=fails)[0].facts.report_problem == "RecordError: not that one"
    opened(monkeypatch, Finding("clock", "fail", "it ran backwards"))
    assert examine(bundles, make_report=lambda _: "<page>")[0].facts.report is None


@pytest.mark.parametrize(
    "tables", [{}, {"accelerator": 7, "communication": []}, {"accelerator": {}, "communication": {"compression": None}}]
)
def test_recipes_of_anything_give_facts(tables: dict[str, Any]) -> None:
    facts = facts_of(b"", tables)
    assert (facts.precision, facts.compression) == (None, None)
