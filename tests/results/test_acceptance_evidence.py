"""What acceptance rests on: submission files, verified first, and files of figures that carry no chain.

Every output names who stands for what was judged, and what nobody checked.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_record, write_campaign
from builders.forgeries import Bundle, copy_of, unpack
from builders.forgeries import evidence as forgeries_of_evidence
from builders.records import settings_of_ranks, write_record, write_reported, write_reported_profile
from typer.testing import CliRunner

from hpcai500.campaign.journal import read_campaign
from hpcai500.cli.commands import app
from hpcai500.errors import HpcAi500Error, UsageError, WrongAnswerError
from hpcai500.machine import load_machine
from hpcai500.results import given_files
from hpcai500.results.acceptance import measured as measured_module
from hpcai500.results.acceptance.contract import load_contract
from hpcai500.results.acceptance.evidence import Requirement, Trust
from hpcai500.results.acceptance.measured import CriterionResult
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.verdict import Acceptance, Request, accept, acceptance_lines, junit_xml
from hpcai500.results.given_files import GivenFile
from hpcai500.results.scaling import read_scaling
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.verify import verify_submission
from hpcai500.system.software import package_code_hash

CRITERION = '[[criteria]]\nmetric = "flops"\nreference = 1\nunit = "TFLOPS"\nlower = 0.0\n'
CONTRACT = """
title = "a tiny run"
[require]
rankable = false
{demand}
[[criteria]]
metric = "{metric}"
reference = 75
unit = "{unit}"
lower = 0.0
"""
NOW_MS = time.time_ns() // 1_000_000
WORD = "is not signed: nobody vouches for its figures"

STRICT = 'rankable = true\nlevel = "hardware"\nruns = 10\n'


def ssh_keygen(*arguments: object) -> str:
    command = ["ssh-keygen", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def make_key(path: Path) -> Path:
    ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", "us", "-f", path)
    return path


def fingerprint(key: Path) -> str:
    return ssh_keygen("-l", "-f", key).split()[1]


def vouch(path: Path, key: Path) -> Path:
    path.write_text(f"us@site.example {key.with_suffix('.pub').read_text()}")
    return path


def sign_it(path: Path, key: Path) -> Path:
    """As docs/verification.md has it."""
    ssh_keygen("-Y", "sign", "-n", "hpcai500", "-f", key, path)
    return path.with_name(f"{path.name}.sig")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key, a file that vouches for it, and a signed submission of two short trials."""
    folder = tmp_path_factory.mktemp("submissions")
    vouch(folder / "allowed", make_key(folder / "key"))
    campaign = write_campaign(folder / "campaign", *SHORT, trials=2, quality=0.77, package_code=package_code_hash())
    packed(folder, campaign, folder / "mine.zip")
    return folder


def packed(folder: Path, campaign: Path, file: Path) -> Path:
    pack(SubmitRequest(campaign, file, "System", "Organisation", key=folder / "key"))
    return file


def find_level(folder: Path, *records: Path, demands: str = "", trust: Trust | None = None) -> Acceptance:
    path = folder / "contract.toml"
    path.write_text(f'title = "t"\n[require]\nrankable = false\n{demands}{CRITERION}', encoding="utf-8")
    return accept(Request(load_contract(path), records, trust=trust or Trust()))


def of(made: Acceptance, name: str) -> Requirement:
    return next(one for one in made.requirements if one.name == name)


def failed(made: Acceptance) -> set[str]:
    return {one.name for one in made.requirements if one.verdict == "fail"}


def test_a_submission_is_verified_and_every_output_names_signer_and_what_was_not_checked(folder: Path) -> None:
    made = find_level(folder, folder / "mine.zip", demands='verified = true\nsigners = "allowed"\n')
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
    story = {"trials": 3, "quality": 0.77, "failing": [1, 2, 3], "package_code": package_code_hash()}
    made = find_level(
        folder, packed(folder, write_campaign(tmp_path / "campaign", *SHORT, **story), tmp_path / "again.zip")
    )
    assert made.sentence.startswith("Accepted, BUT IMPLAUSIBLE: ")
    (document,) = made.document()["submissions"]
    (told,) = document["implausible"]
    assert told.startswith("short-starts: 3 of 6 attempts ended in their first epochs")
    for output in ("\n".join(acceptance_lines(made)), html.unescape(acceptance_page(made)), junit_xml(made).decode()):
        assert told in output


def test_what_was_registered_is_compared_with_submissions_and_campaigns(folder: Path) -> None:
    identity = read_campaign(folder / "campaign").identity
    for record in ("mine.zip", "campaign"):
        made = find_level(folder, folder / record, demands=f'registered = "{identity}"\n')
        assert made.exit_code == 0
        assert made.document()["judged"][0]["campaign"] == identity
    other = find_level(folder, folder / "campaign", trust=Trust(registered="0" * 64))
    assert (other.exit_code, of(other, "registered").verdict) == (2, "fail")
    with pytest.raises(WrongAnswerError, match=r"mine.zip: refused: registered: 0{64} was registered, and this"):
        find_level(folder, folder / "mine.zip", trust=Trust(registered="0" * 64))
    with pytest.raises(UsageError, match=r"--registered 0{64}: the contract says"):
        find_level(
            folder, folder / "mine.zip", demands=f'registered = "{identity}"\n', trust=Trust(registered="0" * 64)
        )


def test_a_folder_is_not_accepted_where_submission_files_are_demanded(folder: Path) -> None:
    made = find_level(folder, folder / "campaign", demands="verified = true\n")
    assert (of(made, "verified").verdict, made.exit_code) == ("fail", 2)
    assert "give the file that `hpcai500 submit` wrote" in of(made, "verified").detail
    with pytest.raises(UsageError, match="--signers: needs a file whose signer can be checked"):
        find_level(folder, folder / "campaign", trust=Trust(signers=folder / "allowed"))


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


def test_where_verified_runs_are_demanded_other_runs_are_no_source_of_scaling(folder: Path, tmp_path: Path) -> None:
    def written(name: str, *settings: str, **story: Any) -> Path:
        return write_campaign(tmp_path / name, *SHORT, *settings, trials=1, **story)

    many = written("many", quality=0.77, start_s=1_710_000_000.0)
    slow = written("slow", "hardware.nodes=1", images_per_second=19_100.0, start_s=1_700_000_000.0)
    mine, base, file = folder / "mine.zip", packed(folder, slow, tmp_path / "slow.zip"), tmp_path / "scale.json"
    path = contract(tmp_path, "parallel_efficiency", "%", "verified = true")
    path.write_text(path.read_text() + "nodes = 2\n")

    def made(*records: Path, points: dict[str, Any]) -> Acceptance:
        file.write_text(json.dumps(points))
        return accept(Request(load_contract(path), records, scaling=file))

    def told(*records: Path, points: dict[str, Any]) -> CriterionResult:
        return made(*records, points=points).criteria[0]

    def scaling(campaign: Path) -> dict[str, Any]:
        return read_scaling([slow / "trial-01", campaign / "trial-01"]).document()

    invented = told(mine, base, points=scaling(many))
    assert invented.verdict == "missing"
    assert "not among the given runs, but the contract requires verified runs" in invented.note
    assert told(mine, slow, points=scaling(folder / "campaign")).verdict == "missing", "nobody verifies a folder"
    assert told(mine, base, points=scaling(folder / "campaign")).note == "against 8 processes"
    nameless = [{"nodes": number, "processes": 8 * number, "parallel_efficiency": 1.0} for number in (1, 2)]
    absent = made(mine, base, points={"points": nameless})
    assert (absent.criteria[0].verdict, absent.exit_code) == ("missing", 5)


# Rank and level, by a contract that demands all of them.


@pytest.fixture(scope="module")
def rankable(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An honest submission of ten reference runs, unpacked for forgers."""
    here = tmp_path_factory.mktemp("rankable")
    campaign = write_campaign(here / "campaign", trials=10, package_code=package_code_hash())
    pack(SubmitRequest(campaign, here / "honest.zip", "System", "Organisation", key=folder / "key"))
    return unpack(here / "honest.zip", here / "unpacked", folder / "key")


def strictly(path: Path) -> Acceptance:
    contract = path.parent / "strict.toml"
    contract.write_text(f'title = "t"\n[require]\n{STRICT}{CRITERION}', encoding="utf-8")
    return accept(Request(load_contract(contract), [path]))


def levels(made: Acceptance) -> set[str | None]:
    return {record["level"] for record in made.document()["records"]}


def change_optimizer(bundle: Bundle) -> Bundle:
    bundle.rewrite_code("optim/optimizers.py", "import torch\n", "import torch\n\n_FASTER = True\n")
    return bundle


def test_an_honest_submission_is_of_the_level_that_verification_finds(rankable: Bundle, tmp_path: Path) -> None:
    made = strictly(copy_of(rankable, tmp_path / "honest").pack(tmp_path / "honest.zip"))
    assert (made.exit_code, made.not_rankable, levels(made)) == (0, (), {"hardware"})


def test_changed_code_counts_for_the_level_as_it_does_for_verification(rankable: Bundle, tmp_path: Path) -> None:
    bundle = change_optimizer(copy_of(rankable, tmp_path / "changed"))
    with pytest.raises(WrongAnswerError, match=r"strict.zip: refused: level: claims hardware, but needs free"):
        strictly(bundle.pack(tmp_path / "strict.zip"))
    bundle.claims = lambda claim: claim.update(level="free")
    file = bundle.pack(tmp_path / "changed.zip")
    found = verify_submission(file)
    assert (found.verdict, found.level) == ("verified", "free")
    made = strictly(file)
    assert (of(made, "level").verdict, made.exit_code, levels(made)) == ("fail", 2, {"free"})
    assert of(made, "level").detail == f"{file}/trial-01: free (hpcai500 verify {file} says why)"


def test_a_folder_whose_code_is_another_has_no_level_and_no_rank(rankable: Bundle, tmp_path: Path) -> None:
    bundle = change_optimizer(copy_of(rankable, tmp_path / "changed"))
    said = (
        "its code differs from this installation (by its recipe alone, the level would be hardware): give "
        "its submission instead (`hpcai500 submit`), so that the sources can be compared"
    )
    for given, name in ((bundle.campaign, bundle.record(1)), (bundle.record(1), bundle.record(1))):
        made = strictly(given)
        assert (failed(made), levels(made)) == ({"level", "rankable"}, {None})
        assert of(made, "level").detail == of(made, "rankable").detail == f"{name}: {said}"
        assert made.not_rankable[-1] == f"{given}: {said}"
        free = find_level(tmp_path, given, demands='level = "free"\n')
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
    assert "its code differs from this installation" in of(made, "level").detail


def test_code_that_nobody_could_compare_has_neither_level_nor_rank(rankable: Bundle, tmp_path: Path) -> None:
    forgery = next(one for one in forgeries_of_evidence.FORGERIES if one.name == "version-of-nobody")
    bundle = copy_of(rankable, tmp_path / "nobody")
    forgery.forge(bundle)
    file = bundle.pack(tmp_path / "nobody.zip")
    found = verify_submission(file)
    said = (
        "its code is of version 0.0.9, which this installation cannot compare: install that version and verify with it"
    )
    assert (found.verdict, found.rankable, found.reasons, found.level) == ("verified", False, (said,), None)
    made = strictly(file)
    assert (failed(made), made.not_rankable) == ({"level", "rankable"}, (f"{file}: {said}",))
    assert of(made, "rankable").detail == f"{file}/trial-01: {said}"
    document = json.loads(told("rank", file, "--json"))
    assert document["entries"] == []
    assert [(one["status"], one["reason"]) for one in document["unverified"]] == [("not-rankable", said)]


# Files of figures that carry no chain: whatever is computed from one says who stands for it.


def measured(rate: float) -> str:
    """A file of `hpcai500 micro`."""
    entry = {
        "value": rate, "unit": "FLOPS", "interval": [rate, rate], "verified": True, "accelerators": 1, "nodes": 1,
        "hosts": ["n0"], "time_ms": NOW_MS,
    }  # fmt: skip
    return json.dumps({"conv fp32": entry})


@pytest.fixture(scope="module")
def key(folder: Path) -> Path:
    return folder / "key"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("record") / "run")


@pytest.fixture
def micro(tmp_path: Path) -> Path:
    path = tmp_path / "micro.json"
    path.write_text(measured(80e9))
    return path


def told(*arguments: object, code: int = 0) -> str:
    ended = CliRunner().invoke(app, [str(one) for one in arguments])
    refused = ended.exception
    assert (refused.exit_code if isinstance(refused, HpcAi500Error) else ended.exit_code) == code, ended.output
    return ended.stdout


def accepted(contract: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(told("accept", contract, *arguments, "--json", code=code))
    return document


def contract(folder: Path, metric: str = "conv fp32", unit: str = "GFLOPS", demand: str = "") -> Path:
    path = folder / "contract.toml"
    path.write_text(CONTRACT.format(metric=metric, unit=unit, demand=demand))
    return path


def test_a_criterion_that_rests_on_an_unsigned_file_says_so_everywhere(
    record: Path, micro: Path, tmp_path: Path
) -> None:
    arguments = (contract(tmp_path), record, "--micro", micro)
    document = accepted(*arguments, "--html", tmp_path / "a.html", "--junit", tmp_path / "a.xml")
    assert document["sources"] == [{"path": str(micro), "signer": None, "vouched_for": False}]
    assert document["criteria"][0]["note"] == f"{micro} {WORD}"
    assert told("accept", *arguments).count(WORD) == 2, "once in the head, once below the row"
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count(WORD) == 2
    assert WORD in (tmp_path / "a.xml").read_text()


def test_a_signer_that_is_vouched_for_is_named_without_remark(
    record: Path, micro: Path, key: Path, tmp_path: Path
) -> None:
    sign_it(micro, key)
    arguments = (contract(tmp_path), record, "--micro", micro)
    anybody = accepted(*arguments)
    assert anybody["sources"] == [{"path": str(micro), "signer": fingerprint(key), "vouched_for": False}]
    assert "which is not a trusted key" in anybody["criteria"][0]["note"]
    signers = vouch(tmp_path / "signers", key)
    document = accepted(*arguments, "--signers", signers)
    assert document["sources"] == [{"path": str(micro), "signer": "us@site.example", "vouched_for": True}]
    assert document["criteria"][0]["note"] is None
    assert f"figures     {micro} is signed by us@site.example" in told("accept", *arguments, "--signers", signers)


@pytest.mark.parametrize("forgery", ["edited", "another file's", "no signature", "a stranger's"])
def test_a_signature_that_is_wrong_is_refused(
    record: Path, micro: Path, key: Path, tmp_path: Path, forgery: str
) -> None:
    beside = sign_it(micro, key)
    if forgery == "edited":
        micro.write_text(measured(81e9))
    elif forgery == "another file's":
        (tmp_path / "scale.json").write_text("{}")
        sign_it(tmp_path / "scale.json", key).replace(beside)
    elif forgery == "no signature":
        beside.write_bytes(b"trust me" * 10_000)
    signers = vouch(tmp_path / "signers", make_key(tmp_path / "known") if forgery == "a stranger's" else key)
    document = accepted(contract(tmp_path), record, "--micro", micro, "--signers", signers, code=2)
    assert document["verdict"] == "FAIL"
    assert document["error"].startswith(f"{beside}: ")
    if forgery != "a stranger's":
        told("roofline", record, "--micro", micro, code=2)
        told("doctor", "--machine", micro, code=2)


def test_the_bytes_that_were_checked_are_the_bytes_that_are_parsed(
    record: Path, micro: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forged figures lie there until the signature is looked at, and afterwards again."""
    signed, forged = measured(80e9), measured(80e12)
    sign_it(micro, key)
    look = given_files.given_file

    def swapped(path: Path, signers: Path | None = None) -> GivenFile:
        path.write_text(signed)
        found = look(path, signers)
        path.write_text(forged)
        return found

    monkeypatch.setattr(measured_module, "given_file", swapped)
    micro.write_text(forged)
    made = accepted(contract(tmp_path), record, "--micro", micro)
    assert made["criteria"][0]["measured"] == 80e9
    # Not before: what is imported meanwhile would keep it.
    monkeypatch.setattr(given_files, "given_file", swapped)
    machine, (file,) = given_files.given_machine(micro)
    assert file.signer is not None
    assert machine == load_machine(_with(tmp_path / "signed.json", signed)).model_copy(
        update={"source": machine.source}
    )


def _with(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("option", ["--micro", "--scaling"])
def test_a_pipe_in_place_of_a_file_of_figures_is_refused(record: Path, tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    document = accepted(contract(tmp_path), record, option, pipe, code=64)
    assert document["error"].startswith(f"{pipe}: not a regular file")
    with pytest.raises(UsageError, match=r"pipe\.json: not a regular file"):
        given_files.given_machine(pipe)


def test_a_contract_can_demand_that_files_are_signed(record: Path, micro: Path, key: Path, tmp_path: Path) -> None:
    demanding = contract(tmp_path, demand='signed = true\nsigners = "signers"')
    vouch(tmp_path / "signers", key)
    document = accepted(demanding, record, "--micro", micro, code=2)
    signed = next(one for one in document["requirements"] if one["name"] == "signed")
    assert (signed["verdict"], signed["found"], signed["detail"]) == ("fail", "0 of 1 file", f"{micro} {WORD}")
    sign_it(micro, key)
    assert accepted(demanding, record, "--micro", micro)["verdict"] == "PASS"


def test_a_scaling_file_needs_nobodys_word_where_its_records_are_judged(tmp_path: Path) -> None:
    one = write_record(tmp_path / "procs-1", "os.threads=1", *settings_of_ranks(1), seconds=10.0)
    two = write_record(tmp_path / "procs-2", "os.threads=1", *settings_of_ranks(2, nodes=2), seconds=6.25, costs=None)
    points = [
        {"record": name, "nodes": number, "processes": number, "parallel_efficiency": efficiency}
        for name, number, efficiency in (("procs-1", 1, 1.0), ("procs-2", 2, 0.8))
    ]
    file = tmp_path / "scale.json"
    file.write_text(json.dumps({"error": None, "points": points}))
    path = contract(tmp_path, "parallel_efficiency", "%")
    path.write_text(path.read_text() + "nodes = 2\n")
    assert WORD not in accepted(path, one, two, "--scaling", file)["criteria"][0]["note"]
    assert f"{file} {WORD}" in accepted(path, two, "--scaling", file)["criteria"][0]["note"]
    shutil.rmtree(one)
    document = accepted(path, two, "--scaling", file)
    assert f"{file} {WORD}" in document["criteria"][0]["note"]
    assert document["sources"] == [{"path": str(file), "signer": None, "vouched_for": False}]


def test_a_roofline_says_whose_word_its_ceilings_are(record: Path, micro: Path, key: Path, tmp_path: Path) -> None:
    arguments = ("roofline", record, "--micro", micro, "-o", tmp_path / "figures")
    assert f"signature   {micro} {WORD}" in told(*arguments)
    assert WORD in (tmp_path / "figures" / "roofline-node-1.svg").read_text(encoding="utf-8")
    sign_it(micro, key)
    found = json.loads(told(*arguments, "--json"))
    assert found["sources"] == [{"path": str(micro), "signer": fingerprint(key), "vouched_for": False}]
    assert json.loads(told("roofline", "--machine", "v100-64", "--json"))["sources"] == []


def test_a_report_and_a_drawing_say_whose_word_a_profile_is(tmp_path: Path, key: Path) -> None:
    page, profile = tmp_path / "report.html", write_reported_profile(tmp_path / "profile") / "profile.json"
    command = ("report", write_reported(tmp_path / "run"), "--profile", profile.parent, "-o", page)
    told(*command)
    assert f"profile.json {WORD}" in page.read_text(encoding="utf-8")
    sign_it(profile, key)
    told(*command)
    assert f"is signed with {fingerprint(key)}" in page.read_text(encoding="utf-8")
    profile.write_text(profile.read_text() + " ")
    told(*command, code=2)
