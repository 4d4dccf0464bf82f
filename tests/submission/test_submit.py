"""`hpcai500 submit`: from a campaign's folder to one file that whoever receives it can open and check."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.campaigns import SHORT, copy_campaign, edit_record, write_campaign

from hpcai500.campaign.journal import read_campaign
from hpcai500.cli import main
from hpcai500.errors import EnvironmentLacksError, ExitCode, RecordError, RunError, UsageError, WrongAnswerError
from hpcai500.results.submission import pack as module
from hpcai500.results.submission.archive import Submission, open_submission
from hpcai500.results.submission.claim import claim_of, with_level
from hpcai500.results.submission.format_page import format_page
from hpcai500.results.submission.gather import ask_accounting, parse_accounting
from hpcai500.results.submission.manifest import KINDS, Manifest, kind_of
from hpcai500.results.submission.pack import Packed, SubmitRequest, pack
from hpcai500.results.submission.signature import check_signature
from hpcai500.results.verification.verify import verify_submission
from hpcai500.system.software import code_hash

CREATED = "2026-11-22T03:00:00Z"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "submission-format.md"


@pytest.fixture(scope="module", autouse=True)
def few_sources(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A few of this package's sources instead of all: hashing hundreds of files for each test shows nothing more.

    They do not change while others work on them, either.
    """
    folder = tmp_path_factory.mktemp("installed") / "hpcai500"
    folder.mkdir()
    shutil.copy(Path(module.__file__).parents[2] / "__init__.py", folder)
    shutil.copytree(Path(module.__file__).parents[2] / "optim", folder / "optim")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PACKAGE", folder)
        yield folder


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, few_sources: Path) -> Path:
    """Three trials, of which the second needed two attempts."""
    folder = tmp_path_factory.mktemp("campaigns") / "campaign"
    write_campaign(
        folder, *SHORT, trials=3, failing={2}, watts=500.0, images_per_second=4e6, package_code=code_hash(few_sources)
    )
    (folder / "trial-01" / "notes.txt").write_text("what a user left here\n")
    (folder / "od\nd\udcff").write_text("a name that no manifest can show")
    (folder / ".hidden").write_text("x")
    (folder / "trial-03" / "pictures").mkdir()
    (folder / "trial-03" / "pictures" / "detections.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def request(campaign: Path, where: Path, **changes: object) -> SubmitRequest:
    return replace(SubmitRequest(campaign, where, "A system", "A site", created=CREATED), **changes)


@pytest.fixture(scope="module")
def packed(campaign: Path, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The campaign, signed."""
    return pack(request(campaign, tmp_path_factory.mktemp("packed") / "s.zip", key=key))


@pytest.fixture
def opened(packed: Packed, tmp_path: Path) -> Submission:
    """The same, as its reader opens it."""
    return open_submission(packed.path, tmp_path / "out")


def test_all_attempts_are_in_it_byte_by_byte(opened: Submission, campaign: Path) -> None:
    for record in ("trial-01", "trial-02", "trial-02-attempt-2", "trial-03"):
        for file in ("recipe.toml", "system.json", "events.jsonl"):
            assert (opened.campaign / record / file).read_bytes() == (campaign / record / file).read_bytes()
    assert (opened.campaign / "trial-02" / "ERROR").is_file()
    assert (opened.campaign / "trial-03" / "pictures" / "detections.png").read_bytes() == b"\x89PNG"
    assert (opened.campaign / "trial-01" / "power" / "node-2.csv").is_file()
    assert read_campaign(opened.campaign).head == read_campaign(campaign).head


def test_of_checkpoints_the_last_of_each_done_run_is_in_it_stored(packed: Packed, campaign: Path) -> None:
    with zipfile.ZipFile(packed.path) as found:
        weights = [one for one in found.infolist() if "/checkpoints/" in one.filename]
        assert [one.filename.split("/")[1] for one in weights] == ["trial-01", "trial-02-attempt-2", "trial-03"]
        assert {one.filename.rpartition("/")[2] for one in weights} == {"epoch-0004-step-0000000.pt"}
        assert {one.compress_type for one in weights} == {zipfile.ZIP_STORED}


def test_what_is_left_out_is_told_with_the_reason(packed: Packed) -> None:
    reasons = {one.path: one.reason for one in packed.manifest.left_out}
    assert "not a file of a record" in reasons["campaign/trial-01/notes.txt"]
    assert "only the last" in reasons["campaign/trial-01/checkpoints/epoch-0003-step-0000000.pt"]
    assert "accounting/1001.json" in reasons
    assert "campaign/od d" in reasons
    assert not any("hidden" in path for path in reasons)


def test_the_code_hash_of_the_records_is_that_of_the_extracted_sources(opened: Submission, packed: Packed) -> None:
    system = json.loads((opened.campaign / "trial-01" / "system.json").read_text())
    ran = system["installation"]["package"]["code_sha256"]
    assert code_hash(opened.code) == ran == packed.manifest.code.code_sha256


def test_facts_of_the_manifest_come_from_the_records(packed: Packed, campaign: Path) -> None:
    manifest = packed.manifest
    assert manifest.accelerators == "16 x NVIDIA H100 80GB HBM3"
    assert manifest.framework == "PyTorch 2.13.0, NCCL 2.29.2"
    assert manifest.campaign == read_campaign(campaign).identity
    assert (manifest.trials, manifest.attempts, manifest.benchmark, manifest.edition) == (3, 4, "ic", "v2.0")
    assert manifest.claim.metrics["vflops"].runs == 3
    assert not manifest.claim.rankable
    assert any("3 finished runs" in reason for reason in manifest.claim.reasons)


def test_it_is_signed_by_the_key(opened: Submission, packed: Packed) -> None:
    assert opened.signature is not None
    assert check_signature(opened.manifest_bytes, opened.signature) == packed.signer


def test_the_same_campaign_gives_the_same_bytes(packed: Packed, campaign: Path, key: Path, tmp_path: Path) -> None:
    again = pack(request(campaign, tmp_path / "again.zip", key=key))
    assert again.path.read_bytes() == packed.path.read_bytes()
    later = pack(request(campaign, tmp_path / "later.zip", key=key, created="2026-11-23T00:00:00Z"))
    assert later.manifest.model_copy(update={"created": CREATED}) == packed.manifest


def test_checkpoints_can_stay_out_and_logs_come_in(campaign: Path, tmp_path: Path) -> None:
    (tmp_path / "slurm 1.out").write_bytes(b"caf\xe9\0\n")
    made = pack(request(campaign, tmp_path / "s.zip", checkpoints=False, logs=[tmp_path / "slurm 1.out"]))
    paths = [file.path for file in made.manifest.files]
    assert not any("checkpoints" in path for path in paths)
    assert "--no-checkpoints" in {one.reason for one in made.manifest.left_out}
    submission = open_submission(made.path, tmp_path / "out")
    assert (submission.folder / "logs" / "slurm_1.out").read_text() == "caf\ufffd\ufffd\n"


def test_other_code_than_the_records_have_is_told_with_the_way_out(
    campaign: Path, few_sources: Path, tmp_path: Path
) -> None:
    (few_sources / "later.py").write_text("# a change\n")
    try:
        with pytest.raises(UsageError, match=r"apptainer exec IMAGE hpcai500 submit"):
            pack(request(campaign, tmp_path / "s.zip"))
    finally:
        (few_sources / "later.py").unlink()
    assert not list(tmp_path.iterdir())


def test_a_campaign_without_a_finished_run_is_refused(few_sources: Path, tmp_path: Path) -> None:
    empty = write_campaign(tmp_path / "campaign", *SHORT, trials=2, done=0, package_code=code_hash(few_sources))
    with pytest.raises(UsageError, match="no run is finished"):
        pack(request(empty, tmp_path / "s.zip"))


def unfinished_chain(campaign: Path) -> None:
    edit_record(campaign / "trial-01", lambda events: events[3].update(value=None), rechain=False)


def no_json(campaign: Path) -> None:
    (campaign / "trial-02" / "result.json").write_text("[NaN]")


def lost_folder(campaign: Path) -> None:
    shutil.rmtree(campaign / "trial-03")


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (unfinished_chain, RecordError, "chain is broken"),
        (no_json, WrongAnswerError, r"^(?!.*tmp).*would be refused: campaign/trial-02/result.json"),
        (lost_folder, UsageError, "trial-03: its folder is missing: restore it; without it .* cannot be ranked"),
    ],
)
def test_what_its_reader_would_refuse_is_not_written(
    campaign: Path, tmp_path: Path, damage: Callable[[Path], None], error: type[Exception], said: str
) -> None:
    damaged = shutil.copytree(campaign, tmp_path / "campaign")
    damage(damaged)
    with pytest.raises(error, match=said):
        pack(request(damaged, tmp_path / "s.zip"))
    assert [one.name for one in tmp_path.iterdir()] == ["campaign"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": " "}, "--system"), ({"system": "a\nb"}, "--system"),
        ({"organisation": "a\x1b[1m"}, "--organisation"),
        ({"contact": "x" * 1001}, "--contact"), ({"key": Path("no-key")}, "ssh-keygen -t ed25519"),
        ({"logs": [Path("no-log")]}, "--log no-log"), ({"output": Path("no/folder/s.zip")}, "mkdir -p"),
        ({"output": Path("/tmp")}, "a folder"), ({"output": Path("x" * 300)}, "cannot be written: File name too long"),
        ({"key": Path(__file__)}, "not an OpenSSH key; make one with `ssh-keygen -t ed25519 -f KEY`"),
        # Nobody can make a file there, root neither.
        ({"output": Path("/proc/s.zip")}, r"^(?!.*\.tmp).*/proc/s\.zip: .*give another -o FILE"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_before_anything_is_packed(
    campaign: Path, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        pack(request(campaign, tmp_path / "s.zip", **changes))
    assert not list(tmp_path.iterdir())


def test_the_file_may_not_lie_in_the_campaign(campaign: Path) -> None:
    with pytest.raises(UsageError, match="is in the campaign's folder"):
        pack(request(campaign, campaign / "s.zip"))


def test_a_file_is_replaced_only_by_a_whole_one(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.zip").write_bytes(b"an older one")
    with monkeypatch.context() as patch:
        patch.setattr(
            module, "open_submission", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(Exception, match="free some space, or add --no-checkpoints") as caught:
            pack(request(campaign, tmp_path / "s.zip"))
    assert "\n" not in str(caught.value)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("s.zip", b"an older one")]


def test_what_lies_where_the_file_is_written_first_is_not_followed(campaign: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("whole")
    (tmp_path / f".s.zip.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    pack(request(campaign, tmp_path / "s.zip"))
    assert (tmp_path / "victim").read_text() == "whole"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.zip", "victim"]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "device"])
def test_what_is_no_file_is_never_replaced(campaign: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "s.zip"
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "device":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(target))
    else:
        target.symlink_to("/dev/null" if kind == "link" else tmp_path / "nothing")
    before = target.lstat()
    with pytest.raises(UsageError, match=r"s\.zip: .*, which would be replaced; give the name of a file") as caught:
        pack(request(campaign, target))
    assert "\n" not in str(caught.value)
    assert (target.lstat().st_mode, target.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("most_bytes", "said"),
    [
        pytest.param(30_000, "File too large", id="the disk"),
        # Less than a source file.
        pytest.param(50, "TMPDIR=FOLDER", id="the scratch"),
    ],
)
def test_a_disk_that_is_full_is_told_in_one_line_and_leaves_nothing(
    campaign: Path, tmp_path: Path, most_bytes: int, said: str
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The nearest to a full disk that needs no root: no file may grow beyond this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        with pytest.raises(RunError, match=said) as caught:
            pack(request(campaign, tmp_path / "s.zip"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Submit = Callable[..., Ended]


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Submit:
    """The command, in this process, which has few sources."""

    def called(campaign: Path, target: Path, *arguments: str | Path) -> Ended:
        names = ("--system", "A system", "--organisation", "A site")
        monkeypatch.setattr(
            sys, "argv", ["hpcai500", "submit", *map(str, (campaign, "-o", target, *names, *arguments))]
        )
        return Ended(main(), *capsys.readouterr())

    return called


def test_without_a_choice_both_lines_are_told(campaign: Path, tmp_path: Path, submit: Submit) -> None:
    ended = submit(campaign, tmp_path / "s.zip")
    assert (ended.code, ended.out, ended.err.count("\n")) == (ExitCode.USAGE, "", 1)
    for line in ("ssh-keygen -t ed25519", "--key ~/.ssh/hpcai500", "--unsigned"):
        assert line in ended.err


def test_a_level_may_be_looser_than_the_recipe_needs_and_not_stricter(campaign: Path) -> None:
    computed = claim_of(read_campaign(campaign)).model_copy(update={"level": "system"})
    assert with_level(computed, None, "x") == computed == with_level(computed, "system", "x")
    assert with_level(computed, "free", "x") == computed.model_copy(update={"level": "free"})
    with pytest.raises(UsageError, match="stricter than system, which its recipe needs"):
        with_level(computed, "hardware", "runs/c")
    with pytest.raises(UsageError, match="no level allows"):
        with_level(computed.model_copy(update={"level": None}), "hardware", "runs/c")


def test_the_command_tells_what_it_cannot_submit(campaign: Path, tmp_path: Path, submit: Submit) -> None:
    ended = submit(campaign, tmp_path / "s.zip", "--unsigned", "--level", "free")
    assert (ended.code, f"hpcai500 rules {campaign}" in ended.err) == (ExitCode.USAGE, True)
    ended = submit(tmp_path, tmp_path / "s.zip", "--unsigned")
    assert (ended.code, "hpcai500 campaign init" in ended.err) == (ExitCode.USAGE, True)
    assert not list(tmp_path.iterdir())


# The file gets its name only once the whole of verification holds.


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of six, the second at its second attempt, by all sources of this package; nobody ran them."""
    folder = tmp_path_factory.mktemp("honest") / "c"
    return write_campaign(folder, recipe="ewa/reference", trials=6, done=3, failing={2})


@pytest.fixture
def submit_all(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """The command with all sources, as they are installed."""
    monkeypatch.setattr(module, "_PACKAGE", Path(module.__file__).parents[2])
    return submit


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Path:
    """The honest campaign with another number in the result of one run."""
    folder = copy_campaign(honest, tmp_path / "c")
    path = folder / "trial-03" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vflops": 1e18}))
    return folder


def test_what_verification_accepts_is_kept(honest: Path, key: Path, tmp_path: Path, submit_all: Submit) -> None:
    file = tmp_path / "s.zip"
    file.write_bytes(b"an older one")
    ended = submit_all(honest, file, "--key", key, "--json")
    assert ended.code == ExitCode.PASS
    document = json.loads(ended.out)
    assert document["signer"].startswith("SHA256:")
    assert (document["claim"]["rankable"], document["bytes"]) == (False, file.stat().st_size)
    assert document["verification"]["verdict"] == verify_submission(file).verdict == "verified"
    assert "not rankable" in ended.err
    assert f"{file}: existing file replaced" in ended.err


def test_what_is_signed_by_nobody_may_lack_nothing_else(honest: Path, tmp_path: Path, submit_all: Submit) -> None:
    untidy = copy_campaign(honest, tmp_path / "c")
    for name in ("notes.txt", "todo.txt"):
        (untidy / "trial-01" / name).write_text("what a user left here\n")
    ended = submit_all(untidy, tmp_path / "s.zip", "--unsigned", "--no-checkpoints")
    assert ended.code == ExitCode.PASS
    for words in (
        "rankable    no",
        "3 finished runs",
        "3 of 6 planned, 4 attempts",
        " TFLOPS",
        "signed      no",
        "verified    yes, except for the missing signature",
        "and 1 more: not a file of a record",
    ):
        assert words in ended.out
    assert "is replaced" not in ended.err


@pytest.mark.parametrize("older", [None, b"an older one"])
def test_what_verification_refuses_is_not_kept(
    forged: Path, key: Path, submit_all: Submit, older: bytes | None
) -> None:
    file = forged.parent / "s.zip"
    if older:
        file.write_bytes(older)
    ended = submit_all(forged, file, "--key", key)
    assert ended.code == ExitCode.WRONG_ANSWER
    assert "result: trial-03: result.json says vflops is 1e+18" in ended.out
    assert f"{file}: refused by verification" in ended.err
    assert ("the existing file was kept" in ended.err) == bool(older)
    assert (file.read_bytes() if file.exists() else None) == older
    assert {one.name for one in forged.parent.iterdir()} == {"c"} | ({"s.zip"} if older else set())


def test_a_refusal_is_one_document_with_json(forged: Path, submit_all: Submit) -> None:
    ended = submit_all(forged, forged.parent / "s.zip", "--unsigned", "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["file"]) == (ExitCode.WRONG_ANSWER, None)
    found = [one["name"] for one in document["verification"]["findings"] if one["severity"] == "fail"]
    assert found == ["result"]


# What Slurm's accounting says, as it says it, in plain JSON.


# As sacct 22.05 prints it (--parsable2 --noheader --duplicates), of a job that went back to the queue once.
PRINTED = """\
4711|2026-11-20T10:00:00|2026-11-20T10:01:00|2026-11-20T12:01:00|7200|2|n[01-02]|PREEMPTED|0:0
4711.batch|2026-11-20T10:01:00|2026-11-20T10:01:00|2026-11-20T12:01:00|7200|1|n01|CANCELLED|0:15
4711|2026-11-20T12:01:00|2026-11-20T12:05:00|2026-11-20T13:05:00|3600|2|n[03-04]|COMPLETED|0:0
4711.batch|2026-11-20T12:05:00|2026-11-20T12:05:00|2026-11-20T13:05:00|3600|1|n03|COMPLETED|0:0
4711.0|2026-11-20T12:05:01|2026-11-20T12:05:01|2026-11-20T13:05:00|3599|2|n[03-04]|COMPLETED|0:0
"""


def test_a_job_is_told_with_its_steps_and_earlier_runs() -> None:
    told = parse_accounting(PRINTED, "4711")
    facts = {key: told[key] for key in ("start", "end", "elapsed_seconds", "nodes", "node_list", "state")}
    assert facts == {
        "start": "2026-11-20T12:05:00Z", "end": "2026-11-20T13:05:00Z", "elapsed_seconds": 3600, "nodes": 2,
        "node_list": "n[03-04]", "state": "COMPLETED",
    }  # fmt: skip
    assert [step["job_id"] for step in told["steps"]] == ["4711.batch", "4711.batch", "4711.0"]
    assert [run["state"] for run in told["earlier"]] == ["PREEMPTED"]
    assert json.loads(json.dumps(told)) == told
    pending = parse_accounting("12|2026-11-20T10:00:00|Unknown|Unknown|0|1|None assigned|PENDING|0:0\n", "12")
    assert (pending["start"], pending["end"], pending["node_list"]) == (None, None, None)
    with pytest.raises(EnvironmentLacksError, match="does not know this job"):
        parse_accounting("", "12")


def stand_in(folder: Path, body: str) -> dict[str, str]:
    """Stands for a site's sacct: there is no accounting daemon here."""
    (folder / "sacct").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sacct").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_sacct_is_asked_for_this_job_in_utc(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(PRINTED)
    environment = stand_in(tmp_path, f'echo "$TZ $*" > {tmp_path}/asked; cat {tmp_path}/out')
    assert ask_accounting("4711", environment)["state"] == "COMPLETED"
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("UTC -j 4711 --duplicates --parsable2 --noheader --format=JobIDRaw,")
    assert "User" not in asked


def test_why_there_is_no_accounting_is_told_in_one_line(tmp_path: Path) -> None:
    environment = stand_in(tmp_path, "echo 'sacct: error: Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(EnvironmentLacksError, match="accounting storage is disabled"):
        ask_accounting("1", environment)
    with pytest.raises(EnvironmentLacksError, match="sacct is missing"):
        ask_accounting("1", {"PATH": str(tmp_path / "none")})


@pytest.mark.parametrize("job", ["", "--help", "1; rm", "1 2", "../../1"])
def test_what_is_no_job_is_not_asked_for(tmp_path: Path, job: str) -> None:
    with pytest.raises(EnvironmentLacksError, match="not the ID of a Slurm job"):
        ask_accounting(job, stand_in(tmp_path, "exit 0"))


# docs/submission-format.md says what the code does, because the code says it.


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == format_page(), (
        "run: python -m hpcai500.results.submission.format_page > docs/submission-format.md"
    )


def test_every_field_of_the_manifest_has_a_row() -> None:
    page = format_page()
    for name, field in Manifest.model_fields.items():
        assert f"| `{field.alias or name}` |" in page
        assert field.description
        assert field.description in page


def test_shown_paths_are_paths_of_their_kind() -> None:
    for kind in KINDS:
        path = kind.shown.replace("RECORD", "trial-01").replace("MODULE", "a/b").replace("JOB", "17")
        assert kind_of(path.replace("NAME", "x.csv")) is kind
