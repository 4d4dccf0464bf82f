"""`hpcai500 verify`: the verdict first, exit codes, one JSON document, and errors that say what to type."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, heads_given, write_campaign, write_heads
from typer.testing import CliRunner

from hpcai500.cli.commands import app
from hpcai500.errors import HpcAi500Error
from hpcai500.results.submission.archive import open_submission
from hpcai500.results.submission.pack import SubmitRequest, add_file, pack
from hpcai500.results.verification import context
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding, Verification, fail, guarded, warning
from hpcai500.results.verification.verify import verification_lines, verify_submission
from hpcai500.system.software import package_code_hash


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key, and a signed submission of two short trials."""
    folder = tmp_path_factory.mktemp("verify")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "us", "-f", folder / "key"], check=True)
    campaign = write_campaign(folder / "campaign", *SHORT, trials=2, package_code=package_code_hash())
    pack(SubmitRequest(campaign, folder / "signed.zip", "System", "Organisation", key=folder / "key"))
    pack(SubmitRequest(campaign, folder / "unsigned.zip", "System", "Organisation"))
    return folder


def _verify(*arguments: Any) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["verify", *map(str, arguments)], catch_exceptions=True)
    if isinstance(ended.exception, HpcAi500Error):
        return ended.exception.exit_code, str(ended.exception)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout


def failed(verification: Verification) -> list[Finding]:
    return [finding for finding in verification.findings if finding.severity == "fail"]


def test_an_honest_submission_is_verified_and_the_verdict_comes_first(folder: Path) -> None:
    code, said = _verify(folder / "signed.zip")
    assert code == 0, said
    assert said.startswith("VERIFIED")
    assert "an unverified key" in " ".join(said.split())
    first, *_, last = said.splitlines()
    assert re.fullmatch(r"VERIFIED  .*signed\.zip: \d+ warnings, \d+ passed, \d+ skipped", first)
    assert all(words in said for words in ("\nwarnings:\n", "\npassed:\n", "\nskipped:\n"))
    assert "docs/verification.md" in last


def test_text_fits_the_terminal_and_hangs_below_its_first_word(folder: Path) -> None:
    verification = verify_submission(folder / "signed.zip")
    lines = list(verification_lines(Path("s.zip"), verification, width=90))
    found = lines[lines.index("skipped:") :]
    beginning = next(line for line in found if line.startswith("  registered"))
    continued = found[found.index(beginning) + 1]
    place = beginning.index("not compared")
    assert continued[:place].isspace()
    assert not continued[place].isspace()
    # A hash stays in one piece, wherever it ends.
    assert all(len(line) <= 90 or re.search(r"[0-9a-f]{64}", line) for line in lines[1:])
    vflops = next(line for line in lines if line.startswith("vflops "))
    assert re.fullmatch(r"vflops +[\d.]+ [kMGTPE]?FLOPS \(mean of 2 runs, variation [\d.]+%\)", vflops)


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("heads", [True, False])
def test_the_last_sentence_advises_nothing_that_was_done(replayed: bool, registered: bool, heads: bool) -> None:
    verified = Verification((Finding("archive", "note", "fine"),))
    done = {"replayed": replayed, "registered": registered, "heads": heads}
    said = list(verification_lines(Path("s.zip"), verified, **done, width=1000))[-1]
    advised = {"--replay": not replayed, "--registered": not registered, "--heads": not heads}
    assert {option: option in said for option in advised} == advised
    assert "that nothing was run outside of the campaign" in said
    assert said.endswith("docs/verification.md")


def test_what_is_no_submission_is_refused_in_one_finding_without_advice(tmp_path: Path) -> None:
    (tmp_path / "odd.zip").write_bytes(b"no zip at all")
    code, said = _verify(tmp_path / "odd.zip")
    assert (code, "--replay" in said, "cannot prove" in said) == (2, False, False)
    (finding,) = json.loads(_verify(tmp_path / "odd.zip", "--json")[1])["findings"]
    assert (finding["name"], "\n" in finding["evidence"]) == ("archive", False)


def test_a_refused_submission_is_not_replayed(folder: Path) -> None:
    def replay(context: Context) -> Iterable[Finding]:
        raise AssertionError("a stranger's weights were loaded")

    for file in ("unsigned.zip", "key"):
        found = verify_submission(folder / file, replay=replay).findings
        told = [(one.severity, one.evidence) for one in found if one.name == "replay-missing"]
        assert told == [("skipped", "not replayed: the submission is refused anyway")]


def test_a_replay_that_was_asked_for_and_cannot_be_made_refuses(folder: Path, tmp_path: Path) -> None:
    request = SubmitRequest(folder / "campaign", tmp_path / "s.zip", "System", "Us", key=folder / "key")
    pack(replace(request, checkpoints=False))
    code, said = _verify(tmp_path / "s.zip", "--replay", tmp_path)
    assert (code, said.startswith("REFUSED")) == (2, True)
    assert "trial-02: its last checkpoint is missing" in said


def test_json_is_one_document(folder: Path) -> None:
    code, said = _verify(folder / "signed.zip", "--json")
    document = json.loads(said)
    assert document.keys() == {"verdict", "rankable", "reasons", "level", "signer", "metrics", "findings"}
    assert (code, document["verdict"], document["rankable"]) == (0, "verified", False)
    assert document["metrics"]["vflops"]["runs"] == 2
    assert {"name", "severity", "evidence"} == document["findings"][0].keys()
    severities = [finding["severity"] for finding in document["findings"]]
    assert severities == sorted(severities, key=["fail", "warning", "note", "skipped"].index)


def test_an_unsigned_submission_is_refused(folder: Path) -> None:
    code, said = _verify(folder / "unsigned.zip")
    assert (code, said.startswith("REFUSED")) == (2, True)
    assert "manifest.json.sig is missing" in said


def test_a_key_that_is_vouched_for_is_named_and_another_refused(folder: Path, tmp_path: Path) -> None:
    public = (folder / "key.pub").read_text()
    signers = tmp_path / "signers"
    signers.write_text(f'site@example namespaces="hpcai500" {public}')
    verification = verify_submission(folder / "signed.zip", signers=signers)
    assert verification.verdict == "verified"
    assert str(verification.signer).endswith("(site@example)")
    assert ("warning", "signature") not in [(finding.severity, finding.name) for finding in verification.findings]
    for options, why in (
        ('namespaces="other"', "but not for the namespace"),
        ('valid-before="20200101"', "it expired on"),
    ):
        signers.write_text(f"site@example {options} {public}")
        (found,) = failed(verify_submission(folder / "signed.zip", signers=signers))
        assert found.name == "signature"
        assert f"{signers}:1 lists for site@example, " in found.evidence
        assert why in found.evidence


def test_a_signature_of_another_manifest_is_refused(folder: Path, tmp_path: Path) -> None:
    opened = open_submission(folder / "signed.zip", tmp_path / "opened")
    manifest = opened.manifest_bytes.replace(b'"System"', b'"Better"')
    with zipfile.ZipFile(folder / "signed.zip") as old, zipfile.ZipFile(tmp_path / "forged.zip", "w") as new:
        for name in old.namelist():
            add_file(new, name, manifest if name == "manifest.json" else old.read(name))
    verification = verify_submission(tmp_path / "forged.zip")
    assert {finding.name for finding in failed(verification)} == {"signature"}
    assert verification.signer is None


def test_the_registered_identity_is_compared(folder: Path) -> None:
    identity = verify_submission(folder / "signed.zip").manifest
    assert identity is not None
    assert _verify(folder / "signed.zip", "--registered", identity.campaign)[0] == 0
    assert _verify(folder / "signed.zip", "--registered", identity.campaign.upper())[0] == 0
    code, said = _verify(folder / "signed.zip", "--registered", "0" * 64)
    assert code == 2
    assert "was registered, and this campaign is" in " ".join(said.split())


def test_heads_of_a_committee_are_compared(folder: Path, tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", heads_given(folder / "campaign"))
    code, said = _verify(folder / "signed.zip", "--heads", heads)
    assert code == 0, said
    assert "4 heads of this campaign were received" in " ".join(said.split())
    copy = write_campaign(tmp_path / "copy", *SHORT, trials=2, idle_s=3600.0)
    code, said = _verify(folder / "signed.zip", "--heads", write_heads(heads, heads_given(copy)))
    assert code == 2
    assert "another copy of the campaign was run" in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.zip"], "nowhere.zip: no such file"),
        (["."], "a folder; make a submission of it first: `hpcai500 submit . -o FILE …`"),
        (["campaign/trial-01"], "the record of one run: check it with `hpcai500 score campaign/trial-01`"),
        (["/dev/null"], "not a regular file"),
        (["signed.zip", "--registered", "xyz"], "'x' is not a hex digit; expected 64 hex digits"),
        (["signed.zip", "--registered", "A" * 63], "has 63 hex digits; expected 64 hex digits"),
        (["signed.zip", "--signers", "key.pub"], "key.pub:1: expected a line"),
        (["signed.zip", "--heads", "key.pub"], "--heads key.pub:1: expected `HPCAI500 HEAD IDENTITY LINE HASH"),
        (["signed.zip", "--edition", "v9"], "v9"),
        (["signed.zip", "--replay-trials", "1"], "add --replay DATA"),
        (["signed.zip", "--held-back", "."], "add --replay DATA"),
        (["signed.zip", "--replay", "nowhere"], "--replay nowhere: no such folder"),
        (["signed.zip", "--replay", ".", "--held-back", "nowhere"], "--held-back nowhere: no such folder"),
        (["signed.zip", "--replay", ".", "--held-back", "campaign/.."], "campaign/..: the same as --replay"),
        (["signed.zip", "--signers", "nowhere"], "--signers nowhere: no such file"),
        (["signed.zip", "--replay", ".", "--device", "tpu"], "expected cpu or cuda"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(folder)
    code, said = _verify(*arguments)
    assert (code, told in said, "\n" in said) == (64, True, False), said


def test_a_campaign_of_very_many_runs_is_refused_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_MOST_RUNS", 1)
    assert [finding.name for finding in failed(verify_submission(folder / "signed.zip"))] == ["campaign"]


def test_many_findings_of_one_kind_are_cut_and_hide_no_other() -> None:
    found = guarded("odd", lambda: [*(warning("x", str(number)) for number in range(10_000)), fail("x", "last")])
    assert len(found) == 101
    assert found[-1].severity == "fail"


def test_a_name_with_terminal_codes_is_spelt_out() -> None:
    assert fail("x", "a\x1b[2Jb\nc\u202e").evidence == "a\\x1b[2Jb\\nc\\u202e"
    assert len(fail("x", "a" * 10_000).evidence) <= 600
