"""Submission files before a contract: verified first, and named on the page; what nobody checked is said."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import forgeries_of_evidence
import pytest
from forgeries import Bundle, copy_of, unpack
from typer.testing import CliRunner
from written_campaign import SHORT, edit_record, write_campaign

from hpcai500.campaign.journal import read_campaign
from hpcai500.cli.commands import app
from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.results.acceptance.contract import load_contract
from hpcai500.results.acceptance.evidence import Requirement, Trust
from hpcai500.results.acceptance.measured import Judged
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.verdict import Acceptance, Request, accept, acceptance_lines, junit_xml
from hpcai500.results.scaling import read_scaling
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.verify import verify_submission
from hpcai500.system.software import package_code_hash

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
    assert [said.split(" ")[1] for said in document["not_checked"]] == ["registration", "heads", "checkpoint", "Slurm"]
    page = html.unescape(acceptance_page(made))
    for said in ("us@site.example", *made.evidence.submissions[0].not_checked, document["manifest_sha256"]):
        assert said in page
    everything = page + json.dumps(made.document()) + "\n".join(acceptance_lines(made)) + junit_xml(made).decode()
    assert f"{folder}/mine.zip/trial-01" in everything
    assert "submission-1" not in everything, "the scratch folder is gone when anybody reads of it"


def test_what_no_honest_run_has_shown_stands_in_every_output(folder: Path, tmp_path: Path) -> None:
    """Each trial was begun twice, once its speed was known."""
    campaign = write_campaign(
        tmp_path / "campaign", *SHORT, trials=3, quality=0.77, failing=[1, 2, 3], package_code=package_code_hash()
    )
    pack(SubmitRequest(campaign, tmp_path / "again.zip", "System", "Organisation", key=folder / "key"))
    made = judge(folder, tmp_path / "again.zip")
    assert made.sentence.startswith("Accepted, BUT IMPLAUSIBLE: ")
    (document,) = made.document()["submissions"]
    (told,) = document["implausible"]
    assert told.startswith("short-starts: 3 of 6 attempts ended in their first epochs")
    for output in ("\n".join(acceptance_lines(made)), html.unescape(acceptance_page(made)), junit_xml(made).decode()):
        assert told in output


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
    with pytest.raises(UsageError, match="--signers: says whose files are trusted, and none is given"):
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


def test_where_verified_runs_are_demanded_a_scaling_file_of_other_runs_is_no_source(
    folder: Path, tmp_path: Path
) -> None:
    many = write_campaign(tmp_path / "many", *SHORT, trials=1, quality=0.77, start_s=1_710_000_000.0)
    slow = write_campaign(
        tmp_path / "slow", *SHORT, "hardware.nodes=1", trials=1, images_per_second=19_100.0, start_s=1_700_000_000.0
    )
    pack(SubmitRequest(slow, tmp_path / "slow.zip", "System", "Organisation", key=folder / "key"))
    criterion = (
        '[[criteria]]\nmetric = "parallel_efficiency"\nreference = 0.9\nunit = "fraction"\nlower = 0.0\nnodes = 2\n'
    )
    path = tmp_path / "contract.toml"
    path.write_text(f'title = "t"\n[require]\nrankable = false\nverified = true\n{criterion}', encoding="utf-8")

    def told(*records: Path, of: Path) -> Judged:
        file = tmp_path / "scale.json"
        scaling = read_scaling([slow / "trial-01", of / "trial-01"])
        file.write_text(json.dumps(scaling.document()))
        (one,) = accept(Request(load_contract(path), records, scaling=file)).criteria
        return one

    mine, base = folder / "mine.zip", tmp_path / "slow.zip"
    invented = told(mine, base, of=many)
    assert invented.verdict == "missing"
    assert "none of the runs that are judged, and the contract demands verified runs" in invented.note
    assert told(mine, slow, of=folder / "campaign").verdict == "missing", "a folder is verified by nobody"
    assert told(mine, base, of=folder / "campaign").note == "against 8 processes"
    shutil.rmtree(many)
    absent = accept(Request(load_contract(path), [mine, base], scaling=_without_records(tmp_path)))
    assert (absent.criteria[0].verdict, absent.exit_code) == ("missing", 5)


def _without_records(folder: Path) -> Path:
    points = [{"nodes": number, "processes": 8 * number, "parallel_efficiency": 1.0} for number in (1, 2)]
    (folder / "scale.json").write_text(json.dumps({"points": points}))
    return folder / "scale.json"


STRICT = 'rankable = true\nlevel = "hardware"\nruns = 10\n'


@pytest.fixture(scope="module")
def rankable(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An honest submission of ten reference runs, unpacked for forgers."""
    here = tmp_path_factory.mktemp("rankable")
    campaign = write_campaign(here / "campaign", trials=10, package_code=package_code_hash())
    pack(SubmitRequest(campaign, here / "honest.zip", "System", "Organisation", key=folder / "key"))
    return unpack(here / "honest.zip", here / "unpacked", folder / "key")


def strictly(path: Path) -> Acceptance:
    """Judged by a contract that demands all that is of rank and level."""
    contract = path.parent / "strict.toml"
    contract.write_text(f'title = "t"\n[require]\n{STRICT}{CRITERION}', encoding="utf-8")
    return accept(Request(load_contract(contract), [path]))


def of(made: Acceptance, name: str) -> Requirement:
    return next(one for one in made.requirements if one.name == name)


def change_optimizer(bundle: Bundle) -> Bundle:
    bundle.rewrite_code("optim/optimizers.py", "import torch\n", "import torch\n\n_FASTER = True\n")
    return bundle


def test_an_honest_submission_is_of_the_level_that_verification_finds(rankable: Bundle, tmp_path: Path) -> None:
    made = strictly(copy_of(rankable, tmp_path / "honest").pack(tmp_path / "honest.zip"))
    assert (made.exit_code, made.not_rankable) == (0, ())
    assert {record["level"] for record in made.document()["records"]} == {"hardware"}


def test_changed_code_counts_for_the_level_as_it_does_for_verification(rankable: Bundle, tmp_path: Path) -> None:
    bundle = change_optimizer(copy_of(rankable, tmp_path / "changed"))
    bundle.claims = lambda claim: claim.update(level="free")
    file = bundle.pack(tmp_path / "changed.zip")
    found = verify_submission(file)
    assert (found.verdict, found.level) == ("verified", "free")
    made = strictly(file)
    assert (of(made, "level").verdict, made.exit_code) == ("fail", 2)
    assert of(made, "level").detail == f"{file}/trial-01: free (hpcai500 verify {file} says why)"
    assert {record["level"] for record in made.document()["records"]} == {"free"}


def test_a_level_that_its_code_does_not_keep_is_refused(rankable: Bundle, tmp_path: Path) -> None:
    file = change_optimizer(copy_of(rankable, tmp_path / "strict")).pack(tmp_path / "strict.zip")
    with pytest.raises(WrongAnswerError, match=r"strict.zip: refused: level: claimed is hardware; needed is free"):
        strictly(file)


def test_a_folder_whose_code_is_another_has_no_level_and_no_rank(rankable: Bundle, tmp_path: Path) -> None:
    bundle = change_optimizer(copy_of(rankable, tmp_path / "changed"))
    said = (
        "its code is not that of this installation: level hardware by its recipe alone; give the submission "
        "(`hpcai500 submit`) and let verification compare the sources"
    )
    for given, name in ((bundle.campaign, bundle.record(1)), (bundle.record(1), bundle.record(1))):
        made = strictly(given)
        assert {one.name for one in made.requirements if one.verdict == "fail"} == {"level", "rankable"}
        assert of(made, "level").detail == of(made, "rankable").detail == f"{name}: {said}"
        assert made.not_rankable[-1] == f"{given}: {said}"
        assert {record["level"] for record in made.document()["records"]} == {None}
        free = judge(tmp_path, given, demands='level = "free"\n')
        assert of(free, "level").verdict == "fail", "no level allows another stopwatch"


def test_code_that_a_run_only_began_with_counts_as_well(rankable: Bundle, tmp_path: Path) -> None:
    """It went on with the code that is here, which is what its last process tells."""
    bundle = copy_of(rankable, tmp_path / "begun")

    def begin_with_other_code(events: list[dict[str, Any]]) -> None:
        place = next(number for number, event in enumerate(events) if event["key"] == "system")
        events.insert(place, json.loads(json.dumps(events[place])))
        events[place]["value"]["installation"]["package"]["code_sha256"] = "ab" * 32

    edit_record(bundle.record(1), begin_with_other_code)
    made = strictly(bundle.record(1))
    assert of(made, "level").verdict == "fail"
    assert "its code is not that of this installation" in of(made, "level").detail


def test_code_that_nobody_could_compare_has_neither_level_nor_rank(rankable: Bundle, tmp_path: Path) -> None:
    forgery = next(one for one in forgeries_of_evidence.FORGERIES if one.name == "version-of-nobody")
    bundle = copy_of(rankable, tmp_path / "nobody")
    forgery.forge(bundle)
    file = bundle.pack(tmp_path / "nobody.zip")
    found = verify_submission(file)
    said = "its code is of version 0.0.9, which could not be compared here: install that version and verify with it"
    assert (found.verdict, found.rankable, found.reasons, found.level) == ("verified", False, (said,), None)
    made = strictly(file)
    assert {one.name for one in made.requirements if one.verdict == "fail"} == {"level", "rankable"}
    assert of(made, "rankable").detail == f"{file}/trial-01: {said}"
    assert made.not_rankable == (f"{file}: {said}",)
    ranked = CliRunner().invoke(app, ["rank", str(file), "--json"])
    document = json.loads(ranked.stdout)
    assert document["entries"] == []
    assert [(one["status"], one["reason"]) for one in document["unverified"]] == [("not-rankable", said)]
