"""A disk that really fills up during a run: no finished epoch is lost, and the run goes on once there is space.

The disk is a small tmpfs in a mount namespace of its own, so nothing of the machine is touched.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders.runs import same_weights, train_arguments

from hpcai500.record import iterate, read_record

# Trains into the small disk, fills it when the first epoch is saved, frees it again, resumes, copies the record out.
SCENE = """
set -u
disk=$1 out=$2 python=$3; shift 3
mount -t tmpfs -o size=6m none "$disk"
"$python" -m hpcai500.train "$@" 2> "$out/first.err" & job=$!
until grep -qs '"key":"checkpoint"' "$disk/record/events.jsonl"; do sleep 0.005; done
dd if=/dev/zero of="$disk/filler" bs=4k 2> /dev/null
wait $job; echo $? > "$out/first.code"
cp -r "$disk/record" "$out/full"
rm "$disk/filler"
"$python" -m hpcai500.train --resume --out "$disk/record" 2> "$out/second.err"; echo $? > "$out/second.code"
cp -r "$disk/record" "$out/record"
"""


@pytest.fixture(scope="module")
def scene(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the scene left: messages, exit codes, the record when the disk was full and at the end."""
    allowed = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    if allowed.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {allowed.stderr.strip()}; run as root")
    out, disk = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("disk")
    arguments = train_arguments(images, disk / "record", "problem.epochs=60", "workload.width=8")
    command = ["unshare", "--mount", "bash", "-c", SCENE, "scene", str(disk), str(out), sys.executable, *arguments]
    subprocess.run(command, check=True)
    return out


def test_the_run_ends_with_the_fix_and_a_record_that_holds_together(scene: Path) -> None:
    assert (scene / "first.code").read_text().strip() == "1"
    error = (scene / "first.err").read_text().splitlines()[-1]
    assert "No space left on device" in error
    assert "free some space, then continue with --resume --out" in error
    assert read_record(scene / "full").status == "error"


def test_every_finished_epoch_is_in_a_checkpoint(scene: Path) -> None:
    events = read_record(scene / "full").events
    finished = [event["value"]["epoch"] for event in iterate(events, "eval_accuracy")]
    saved = [event["value"]["epoch"] for event in iterate(events, "checkpoint")]
    assert 1 <= len(finished) < 60
    assert saved[-1] == finished[-1] + 1


def test_the_resumed_run_ends_with_the_weights_of_a_run_that_was_never_stopped(
    scene: Path, images: Path, tmp_path: Path
) -> None:
    assert (scene / "second.code").read_text().strip() == "0"
    arguments = train_arguments(images, tmp_path / "whole", "problem.epochs=60", "workload.width=8")
    subprocess.run([sys.executable, "-m", "hpcai500.train", *arguments], check=True, capture_output=True)
    assert same_weights(scene / "record", tmp_path / "whole")


def test_a_file_system_that_cannot_allocate_ahead_is_written_to_all_the_same(images: Path, tmp_path: Path) -> None:
    arguments = train_arguments(images, tmp_path / "disk" / "record", "problem.epochs=1")
    (tmp_path / "disk").mkdir()
    # ramfs has no fallocate, as NFS before 4.2 and many parallel file systems.
    script = 'mount -t ramfs none "$0" && exec "$@"'
    command = [
        "unshare",
        "--mount",
        "bash",
        "-c",
        script,
        str(tmp_path / "disk"),
        sys.executable,
        "-m",
        "hpcai500.train",
    ]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
