"""`hpcai500 submit` gives a file its name only once the whole of verification holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from written_campaign import copy_campaign, write_campaign

from hpcai500.cli import main
from hpcai500.errors import ExitCode
from hpcai500.results.verification.verify import verify_submission

Submit = Callable[..., int]
NAMES = ("--system", "A system", "--organisation", "A site")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of six, the second at its second attempt, by all sources of this package; nobody ran them."""
    folder = tmp_path_factory.mktemp("honest") / "c"
    return write_campaign(folder, recipe="ewa/reference", trials=6, done=3, failing={2})


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch) -> Submit:
    """The command."""

    def called(*arguments: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "submit", *map(str, arguments)])
        return main()

    return called


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Path:
    """The same, with another number in the result of one run."""
    folder = copy_campaign(honest, tmp_path / "c")
    path = folder / "trial-03" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vflops": 1e18}))
    return folder


def test_what_verification_accepts_is_kept_and_said_to_be_verified(
    honest: Path, key: Path, tmp_path: Path, submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.zip"
    file.write_bytes(b"an older one")
    assert submit(honest, "-o", file, *NAMES, "--key", key, "--json") == ExitCode.PASS
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["signer"].startswith("SHA256:")
    assert document["claim"]["rankable"] is False
    assert document["bytes"] == file.stat().st_size
    assert document["verification"]["verdict"] == verify_submission(file).verdict == "verified"
    assert "not rankable" in printed.err
    assert f"{file}: was there, and is replaced" in printed.err


def test_what_is_signed_by_nobody_may_lack_the_signature_and_nothing_else(
    honest: Path, tmp_path: Path, submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    untidy = copy_campaign(honest, tmp_path / "c")
    for name in ("notes.txt", "todo.txt"):
        (untidy / "trial-01" / name).write_text("what a user left here\n")
    assert submit(untidy, "-o", tmp_path / "s.zip", *NAMES, "--unsigned", "--no-checkpoints") == ExitCode.PASS
    printed = capsys.readouterr()
    for words in (
        "rankable    no",
        "3 finished runs",
        "3 of 6 planned, 4 attempts",
        " TFLOPS",
        "signed      by nobody",
        "verified    yes, all but the signature, which is missing",
        "and 1 more: no file of a record",
    ):
        assert words in printed.out
    assert "is replaced" not in printed.err


@pytest.mark.parametrize("older", [None, b"an older one"])
def test_what_verification_refuses_is_not_kept_and_an_older_file_stays(
    forged: Path, key: Path, submit: Submit, capsys: pytest.CaptureFixture[str], older: bytes | None
) -> None:
    file = forged.parent / "s.zip"
    if older:
        file.write_bytes(older)
    assert submit(forged, "-o", file, *NAMES, "--key", key) == ExitCode.WRONG_ANSWER
    printed = capsys.readouterr()
    assert "result: trial-03: result.json says vflops is 1e+18" in printed.out
    assert f"{file}: refused by verification" in printed.err
    assert ("the file that was there stays" in printed.err) == bool(older)
    assert (file.read_bytes() if file.exists() else None) == older
    assert {one.name for one in forged.parent.iterdir()} == {"c"} | ({"s.zip"} if older else set())


def test_a_refusal_is_one_document_with_json(forged: Path, submit: Submit, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(forged, "-o", forged.parent / "s.zip", *NAMES, "--unsigned", "--json") == ExitCode.WRONG_ANSWER
    document = json.loads(capsys.readouterr().out)
    assert document["file"] is None
    found = [one["name"] for one in document["verification"]["findings"] if one["severity"] == "fail"]
    assert found == ["result"]
