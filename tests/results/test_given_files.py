"""Files of figures that carry no chain: whatever is computed from one says who stands for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from reported import write_profile, write_reported
from typer.testing import CliRunner
from written_record import ranks, write_record

from hpcai500.cli.commands import app
from hpcai500.errors import HpcAi500Error, UsageError
from hpcai500.machine import load_machine
from hpcai500.results import given_files
from hpcai500.results.acceptance import measured as measured_module
from hpcai500.results.given_files import GivenFile

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
WORD = "is not signed: nobody vouches for its figures"


def measured(rate: float) -> str:
    """A file of `hpcai500 micro`."""
    entry = {"value": rate, "unit": "FLOPS", "interval": [rate, rate], "verified": True, "accelerators": 1, "nodes": 1}
    return json.dumps({"conv fp32": entry})


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys") / "key")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("record") / "run")


@pytest.fixture
def micro(tmp_path: Path) -> Path:
    path = tmp_path / "micro.json"
    path.write_text(measured(80e9))
    return path


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


def test_a_criterion_that_rests_on_an_unsigned_file_says_so_wherever_it_is_told(
    record: Path, micro: Path, tmp_path: Path
) -> None:
    arguments = (contract(tmp_path), record, "--micro", micro)
    document = accepted(*arguments, "--html", tmp_path / "a.html", "--junit", tmp_path / "a.xml")
    assert document["sources"] == [{"path": str(micro), "signer": None, "vouched_for": False}]
    assert document["criteria"][0]["note"] == f"{micro} {WORD}"
    assert told("accept", *arguments).count(WORD) == 2, "once in the head, once below the row"
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count(WORD) == 2
    assert WORD in (tmp_path / "a.xml").read_text()


def test_a_signer_that_is_vouched_for_is_named_and_the_row_needs_no_remark(
    record: Path, micro: Path, key: Path, tmp_path: Path
) -> None:
    sign_it(micro, key)
    arguments = (contract(tmp_path), record, "--micro", micro)
    anybody = accepted(*arguments)
    assert anybody["sources"] == [{"path": str(micro), "signer": fingerprint(key), "vouched_for": False}]
    assert "a key that nobody here vouches for" in anybody["criteria"][0]["note"]
    signers = vouch(tmp_path / "signers", key)
    document = accepted(*arguments, "--signers", signers)
    assert document["sources"] == [{"path": str(micro), "signer": "us@site.example", "vouched_for": True}]
    assert document["criteria"][0]["note"] is None
    assert f"figures     {micro} is signed by us@site.example" in told("accept", *arguments, "--signers", signers)


@pytest.mark.parametrize("forgery", ["edited", "another file's", "no signature", "a stranger's"])
def test_a_signature_that_does_not_fit_is_refused(
    record: Path, micro: Path, key: Path, tmp_path: Path, forgery: str
) -> None:
    beside, known = sign_it(micro, key), key
    if forgery == "edited":
        micro.write_text(measured(81e9))
    elif forgery == "another file's":
        other = tmp_path / "scale.json"
        other.write_text("{}")
        sign_it(other, key).replace(beside)
    elif forgery == "no signature":
        beside.write_bytes(b"trust me" * 10_000)
    else:
        known = make_key(tmp_path / "known")
    signers = vouch(tmp_path / "signers", known)
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
    assert document["error"].startswith(f"{pipe}: no regular file, but a pipe or a device")
    with pytest.raises(UsageError, match=r"pipe\.json: no regular file, which a machine file is"):
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
    one = write_record(tmp_path / "procs-1", "os.threads=1", *ranks(1), seconds=10.0)
    two = write_record(tmp_path / "procs-2", "os.threads=1", *ranks(2, nodes=2), seconds=6.25, costs=None)
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
    run = write_reported(tmp_path / "run")
    folder = write_profile(tmp_path / "profile")
    told("report", run, "--profile", folder, "-o", tmp_path / "report.html")
    assert f"profile.json {WORD}" in (tmp_path / "report.html").read_text(encoding="utf-8")
    sign_it(folder / "profile.json", key)
    told("report", run, "--profile", folder, "-o", tmp_path / "report.html")
    assert f"is signed with {fingerprint(key)}" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (folder / "profile.json").write_text((folder / "profile.json").read_text() + " ")
    told("report", run, "--profile", folder, "-o", tmp_path / "report.html", code=2)
