"""Submission files before a contract: verified first, and named on the page; what nobody checked is said."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner
from written_campaign import SHORT, write_campaign

from hpcai500.campaign.reading import read_campaign
from hpcai500.cli.commands import app
from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.results.acceptance.junit import junit_xml
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.spec import load_contract
from hpcai500.results.acceptance.submissions import Trust
from hpcai500.results.acceptance.text import acceptance_lines
from hpcai500.results.acceptance.verdict import Acceptance, Request, accept
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.system.versions import package_code_hash

CRITERION = '[[criteria]]\nmetric = "flops"\nreference = 1\nunit = "TFLOPS"\nlower = 0.0\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key, a file that vouches for it, and a signed submission of two short trials."""
    folder = tmp_path_factory.mktemp("submissions")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "us", "-f", folder / "key"], check=True)
    (folder / "allowed").write_text(f"us@site.example {(folder / 'key.pub').read_text()}")
    campaign = write_campaign(folder / "campaign", *SHORT, trials=2, quality=0.77, package_code=package_code_hash())
    pack(SubmitRequest(campaign, folder / "mine.zip", "System", "Organisation", key=folder / "key"))
    return folder


def judge(folder: Path, *records: Path, demands: str = "", trust: Trust | None = None) -> Acceptance:
    path = folder / "contract.toml"
    path.write_text(f'title = "t"\n[require]\nrankable = false\n{demands}{CRITERION}', encoding="utf-8")
    return accept(Request(load_contract(path), records, trust=trust or Trust()))


def test_a_submission_is_verified_and_every_output_names_signer_and_what_was_not_checked(folder: Path) -> None:
    made = judge(folder, folder / "mine.zip", demands='verified = true\nsigners = "allowed"\n')
    assert made.exit_code == 0, [one for one in made.requirements if one.verdict != "pass"]
    (document,) = made.document()["submissions"]
    assert document["verdict"] == "verified"
    assert "us@site.example" in document["signer"]
    assert document["findings"]["fail"] == 0
    assert document["findings"]["note"] > 0
    assert [said.split(" ")[1] for said in document["not_checked"]] == ["registration", "checkpoint", "Slurm"]
    page = html.unescape(acceptance_page(made))
    for said in ("us@site.example", *made.submissions[0].not_checked, document["manifest_sha256"]):
        assert said in page
    everything = page + json.dumps(made.document()) + "\n".join(acceptance_lines(made)) + junit_xml(made).decode()
    assert f"{folder}/mine.zip/trial-01" in everything
    assert "submission-1" not in everything, "the scratch folder is gone when anybody reads of it"


def test_what_was_registered_is_compared_with_submissions_and_campaigns(folder: Path) -> None:
    identity = read_campaign(folder / "campaign").identity
    for record in ("mine.zip", "campaign"):
        made = judge(folder, folder / record, demands=f'registered = "{identity}"\n')
        assert made.exit_code == 0
        assert made.document()["judged"][0]["campaign"] == identity
    other = judge(folder, folder / "campaign", trust=Trust(registered="0" * 64))
    assert (other.exit_code, other.requirements[3].verdict) == (2, "fail")
    with pytest.raises(WrongAnswerError, match=r"mine.zip: refused: registered: 0{64} was registered, and this"):
        judge(folder, folder / "mine.zip", trust=Trust(registered="0" * 64))
    with pytest.raises(UsageError, match=r"--registered 0{64}: the contract says"):
        judge(folder, folder / "mine.zip", demands=f'registered = "{identity}"\n', trust=Trust(registered="0" * 64))


def test_a_folder_is_not_accepted_where_submission_files_are_demanded(folder: Path) -> None:
    made = judge(folder, folder / "campaign", demands="verified = true\n")
    verified = next(one for one in made.requirements if one.name == "verified")
    assert (verified.verdict, made.exit_code) == ("fail", 2)
    assert "give the file that `hpcai500 submit` wrote" in verified.detail
    with pytest.raises(UsageError, match="--signers: says whose submission files are trusted, and none is judged"):
        judge(folder, folder / "campaign", trust=Trust(signers=folder / "allowed"))


def test_a_refused_submission_ends_with_2_and_its_first_finding(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    shutil.copyfile(folder / "mine.zip", broken)
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 0xFF
    broken.write_bytes(content)
    ended = CliRunner().invoke(app, ["accept", "smoke", str(broken), "--json"])
    document = json.loads(ended.stdout)
    assert (ended.exit_code, document["verdict"]) == (2, "FAIL")
    assert "broken.zip: refused: archive: " in document["error"]
