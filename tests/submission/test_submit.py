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
from typing import Literal

import pytest
from written_campaign import SHORT, edit_record, write_campaign

from hpcai500.campaign.journal import read_campaign
from hpcai500.cli import main
from hpcai500.errors import ExitCode, RecordError, RunError, UsageError
from hpcai500.results.submission import pack as module
from hpcai500.results.submission.archive import open_submission
from hpcai500.results.submission.claim import claim_of, with_level
from hpcai500.results.submission.pack import Packed, SubmitRequest, pack
from hpcai500.results.submission.signature import check_signature
from hpcai500.system.software import code_hash

CREATED = "2026-11-22T03:00:00Z"


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


def test_all_attempts_are_in_it_byte_by_byte(packed: Packed, campaign: Path, tmp_path: Path) -> None:
    submission = open_submission(packed.path, tmp_path / "out")
    for record in ("trial-01", "trial-02", "trial-02-attempt-2", "trial-03"):
        for file in ("recipe.toml", "system.json", "events.jsonl"):
            assert (submission.campaign / record / file).read_bytes() == (campaign / record / file).read_bytes()
    assert (submission.campaign / "trial-02" / "ERROR").is_file()
    assert (submission.campaign / "trial-03" / "pictures" / "detections.png").read_bytes() == b"\x89PNG"
    assert (submission.campaign / "trial-01" / "power" / "node-2.csv").is_file()
    assert read_campaign(submission.campaign).head == read_campaign(campaign).head


def test_of_checkpoints_the_last_of_each_done_run_is_in_it_stored(packed: Packed, campaign: Path) -> None:
    with zipfile.ZipFile(packed.path) as found:
        weights = [one for one in found.infolist() if "/checkpoints/" in one.filename]
        assert [one.filename.split("/")[1] for one in weights] == ["trial-01", "trial-02-attempt-2", "trial-03"]
        assert {one.filename.rpartition("/")[2] for one in weights} == {"epoch-0004-step-0000000.pt"}
        assert {one.compress_type for one in weights} == {zipfile.ZIP_STORED}


def test_what_is_left_out_is_told_with_the_reason(packed: Packed) -> None:
    reasons = {one.path: one.reason for one in packed.manifest.left_out}
    assert "no file of a record" in reasons["campaign/trial-01/notes.txt"]
    assert "only the last" in reasons["campaign/trial-01/checkpoints/epoch-0003-step-0000000.pt"]
    assert "accounting/1001.json" in reasons
    assert "campaign/od d" in reasons
    assert not any("hidden" in path for path in reasons)


def test_the_code_hash_of_the_records_is_that_of_the_extracted_sources(packed: Packed, tmp_path: Path) -> None:
    submission = open_submission(packed.path, tmp_path / "out")
    system = json.loads((submission.campaign / "trial-01" / "system.json").read_text())
    ran = system["installation"]["package"]["code_sha256"]
    assert code_hash(submission.code) == ran == packed.manifest.code.code_sha256


def test_facts_of_the_manifest_come_from_the_records(packed: Packed, campaign: Path) -> None:
    manifest = packed.manifest
    assert manifest.accelerators == "16 x NVIDIA H100 80GB HBM3"
    assert manifest.framework == "PyTorch 2.13.0, NCCL 2.29.2"
    assert manifest.campaign == read_campaign(campaign).identity
    assert (manifest.trials, manifest.attempts, manifest.benchmark, manifest.edition) == (3, 4, "ic", "v2.0")
    assert manifest.claim.metrics["vflops"].runs == 3
    assert not manifest.claim.rankable
    assert any("3 finished runs" in reason for reason in manifest.claim.reasons)


def test_it_is_signed_by_the_key(packed: Packed, tmp_path: Path) -> None:
    submission = open_submission(packed.path, tmp_path / "out")
    assert submission.signature is not None
    assert check_signature(submission.manifest_bytes, submission.signature) == packed.signer


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


def test_other_code_than_that_of_the_records_is_refused_with_the_way_out(
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
    with pytest.raises(UsageError, match="no run has come to its end"):
        pack(request(empty, tmp_path / "s.zip"))


def test_a_broken_chain_is_refused(campaign: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(campaign, tmp_path / "campaign")
    edit_record(broken / "trial-01", lambda events: events[3].update(value=None), rechain=False)
    with pytest.raises(RecordError, match="chain is broken"):
        pack(request(broken, tmp_path / "s.zip"))
    assert [one.name for one in tmp_path.iterdir()] == ["campaign"]


def test_what_would_be_refused_by_its_reader_is_not_written(campaign: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(campaign, tmp_path / "campaign")
    (odd / "trial-02" / "result.json").write_text("[NaN]")
    with pytest.raises(Exception, match=r"would be refused: campaign/trial-02/result.json") as caught:
        pack(request(odd, tmp_path / "s.zip"))
    assert "tmp" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["campaign"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": " "}, "--system"), ({"system": "a\nb"}, "--system"),
        ({"organisation": "a\x1b[1m"}, "--organisation"),
        ({"contact": "x" * 1001}, "--contact"), ({"key": Path("no-key")}, "ssh-keygen -t ed25519"),
        ({"logs": [Path("no-log")]}, "--log no-log"), ({"output": Path("no/folder/s.zip")}, "mkdir -p"),
        ({"output": Path("/tmp")}, "a folder"), ({"output": Path("x" * 300)}, "cannot be written: File name too long"),
        ({"key": Path(__file__)}, "is no OpenSSH key; `ssh-keygen -t ed25519 -f KEY` makes one"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_before_anything_is_packed(
    campaign: Path, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        pack(request(campaign, tmp_path / "s.zip", **changes))
    assert not list(tmp_path.iterdir())


def test_the_file_may_not_lie_in_the_campaign(campaign: Path) -> None:
    with pytest.raises(UsageError, match="lies in the campaign itself"):
        pack(request(campaign, campaign / "s.zip"))


def test_a_file_that_is_there_is_replaced_only_by_a_whole_one(
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


def test_what_lies_where_the_file_is_written_first_is_neither_followed_nor_in_the_way(
    campaign: Path, tmp_path: Path
) -> None:
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


def test_a_folder_that_cannot_be_written_is_told_by_the_name_that_was_given(campaign: Path) -> None:
    # Nobody can make a file there, root neither.
    with pytest.raises(UsageError) as caught:
        pack(request(campaign, Path("/proc/s.zip")))
    assert "/proc/s.zip: " in str(caught.value)
    assert "give another -o FILE" in str(caught.value)
    assert ".tmp" not in str(caught.value)


def test_a_finished_run_whose_folder_is_missing_is_told_with_what_to_do(campaign: Path, tmp_path: Path) -> None:
    less = shutil.copytree(campaign, tmp_path / "campaign")
    shutil.rmtree(less / "trial-03")
    with pytest.raises(
        UsageError, match=r"trial-03: its folder is missing: restore it; without it .* cannot be ranked"
    ):
        pack(request(less, tmp_path / "s.zip"))
    assert [one.name for one in tmp_path.iterdir()] == ["campaign"]


def test_a_disk_that_is_full_is_told_in_one_line_and_leaves_nothing(campaign: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The nearest to a full disk that needs no root: no file may grow beyond this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        with pytest.raises(RunError, match="File too large") as caught:
            pack(request(campaign, tmp_path / "s.zip"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_full_scratch_is_told_with_the_way_out(campaign: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Less than a source file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(RunError, match="TMPDIR=FOLDER"):
            pack(request(campaign, tmp_path / "s.zip"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command, in this process, which has few sources."""

    def called(*arguments: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "submit", *map(str, arguments)])
        return main()

    return called


NAMES = ("--system", "A system", "--organisation", "A site")


def test_without_a_choice_both_lines_are_told(
    campaign: Path, tmp_path: Path, submit: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(campaign, "-o", tmp_path / "s.zip", *NAMES) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    for line in ("ssh-keygen -t ed25519", "--key ~/.ssh/hpcai500", "--unsigned"):
        assert line in printed.err
    assert printed.out == ""


def test_a_looser_level_than_the_recipe_needs_may_be_claimed(campaign: Path) -> None:
    computed = claim_of(read_campaign(campaign)).model_copy(update={"level": "system"})
    assert with_level(computed, None, "x") == computed == with_level(computed, "system", "x")
    assert with_level(computed, "free", "x") == computed.model_copy(update={"level": "free"})


@pytest.mark.parametrize(
    ("needed", "told"), [("system", "stricter than system, which its recipe needs"), (None, "no level allows")]
)
def test_a_level_that_is_too_strict_cannot_be_claimed(
    campaign: Path, needed: Literal["system"] | None, told: str
) -> None:
    computed = claim_of(read_campaign(campaign)).model_copy(update={"level": needed})
    with pytest.raises(UsageError, match=told):
        with_level(computed, "hardware", "runs/c")


def test_the_command_refuses_a_level_for_what_none_allows(
    campaign: Path, tmp_path: Path, submit: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*NAMES, "--unsigned", "--level", "free")
    assert submit(campaign, "-o", tmp_path / "s.zip", *asked) == ExitCode.USAGE
    assert f"hpcai500 rules {campaign}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_no_campaign_is_told(
    tmp_path: Path, submit: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(tmp_path, "-o", tmp_path / "s.zip", *NAMES, "--unsigned") == ExitCode.USAGE
    assert "hpcai500 campaign init" in capsys.readouterr().err
