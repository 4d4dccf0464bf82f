"""`hpcai500 storage` on file systems that fail: a full one, one that returns wrong bytes, and one that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import HPCAI500, INVALID
from builders.ranks import clean_environment

from hpcai500.measure import file_system

LYING = Path(__file__).with_name("lying_mount.py")
PATIENCE_SECONDS = 240


class Mount:
    """`folder`, which shows the files in `content`, with one wrong byte in files with `word` in their path."""

    def __init__(self, tmp_path: Path, word: str) -> None:
        pytest.importorskip("mfusepy")
        self.folder, self.content = tmp_path / "mount", tmp_path / "content"
        self.folder.mkdir()
        self.content.mkdir()
        self.server = subprocess.Popen([sys.executable, LYING, self.content, self.folder, word])
        limit = time.monotonic() + PATIENCE_SECONDS
        while not os.path.ismount(self.folder):
            if self.server.poll() is not None:
                pytest.skip("a FUSE file system cannot be mounted here: run as root, with /dev/fuse")
            assert time.monotonic() < limit
            time.sleep(0.05)

    def close(self) -> None:
        self.server.send_signal(signal.SIGCONT)
        self.server.kill()
        self.server.wait()
        subprocess.run(["umount", "-l", self.folder], check=False)


@pytest.fixture
def mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mount]:
    mount = Mount(tmp_path, request.param)
    yield mount
    mount.close()


def storage_of(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*HPCAI500, "storage", str(folder), *words, "--space", "100M", "--seconds", "4"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean_environment(), timeout=PATIENCE_SECONDS
    )


@pytest.mark.parametrize("mount", ["checkpoint-1"], indirect=True)
def test_a_wrong_byte_of_a_checkpoint_ends_with_2_and_names_rank_and_place(mount: Mount) -> None:
    ended = storage_of(mount.folder, "checkpoint", "--model", "resnet50", "--procs", "2", "--oversubscribe")
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout.splitlines()[-1] == "HPCAI500 RESULT FAIL"
    assert "rank 1 on host" in ended.stderr
    assert "read other bytes than were written" in ended.stderr
    assert "checkpoint-1/pilot: 1 wrong bytes, the first at 5000000" in ended.stderr
    assert list(mount.content.iterdir()) == []


@pytest.mark.parametrize("mount", ["small-0"], indirect=True)
def test_a_wrong_byte_of_a_small_file_ends_with_2(mount: Mount) -> None:
    ended = storage_of(mount.folder, "small")
    assert ended.returncode == 2, ended.stderr
    assert "has other bytes than written" in ended.stderr
    assert list(mount.content.iterdir()) == []


@pytest.mark.parametrize("mount", ["nothing"], indirect=True)
def test_the_same_file_system_without_wrong_bytes_passes(mount: Mount) -> None:
    ended = storage_of(mount.folder, "ic", "small", "checkpoint", "--model", "resnet50")
    assert ended.returncode == 0, ended.stderr
    assert list(mount.content.iterdir()) == []


@pytest.mark.parametrize("mount", ["nothing"], indirect=True)
def test_a_mount_that_dies_meanwhile_is_named_and_its_files_are_removed_once_it_is_back(mount: Mount) -> None:
    command = [*HPCAI500, "storage", str(mount.folder), "ic", "--space", "2G", "--seconds", "600"]
    out, err = mount.folder.with_suffix(".out"), mount.folder.with_suffix(".err")
    # Not pipes: a rank that waits in the kernel keeps them open.
    with out.open("w") as to, err.open("w") as errors:
        run = subprocess.Popen(command, stdout=to, stderr=errors, env=clean_environment())
    while not any(mount.content.rglob("ic-0/*/*")):
        assert run.poll() is None
        time.sleep(0.05)
    mount.server.send_signal(signal.SIGSTOP)
    assert run.wait(PATIENCE_SECONDS) == 1
    stdout, stderr = out.read_text(), err.read_text()
    assert stdout.splitlines()[-1] == INVALID
    assert f"does not respond (waited 15 s): {mount.folder} (fuse" in stderr
    assert f"umount -l {mount.folder}" in stderr
    assert "goes on to remove it" in stderr
    mount.server.send_signal(signal.SIGCONT)
    while any(mount.content.iterdir()):
        time.sleep(0.1)


# A file system of 300 MB, nearly all of which another program takes while the command writes.
FULL = """
disk=$1; shift
mount -t tmpfs -o size=300m none "$disk"
"$@" > "$disk.out" 2> "$disk.err" & command=$!
until ls "$disk"/hpcai500-*/ic-0/*/000 > /dev/null 2>&1; do sleep 0.01; done
dd if=/dev/zero of="$disk/filler" bs=1M 2> /dev/null
wait $command; echo $? > "$disk.code"
ls -A "$disk" > "$disk.left"
"""


def test_a_full_disk_ends_with_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    allowed = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    if allowed.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {allowed.stderr.strip()}; run as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    # Slow enough to be overtaken: one thread, and most of the space.
    words = ["storage", str(disk), "ic", "--space", "280M", "--seconds", "60", "--threads", "1"]
    command = ["unshare", "--mount", "bash", "-c", FULL, "full", str(disk), *HPCAI500, *words]
    subprocess.run(command, check=True, env=clean_environment(), timeout=PATIENCE_SECONDS)
    stderr = disk.with_suffix(".err").read_text()
    assert disk.with_suffix(".code").read_text().strip() == "1", stderr
    assert f"{disk}: No space left on device, while writing samples of ic: free some space" in stderr
    assert disk.with_suffix(".left").read_text().split() == ["filler"]


def test_a_loop_device_whose_bytes_are_changed_below_the_file_system_is_found_out(tmp_path: Path) -> None:
    """Wrong bytes on a block device: the file system's own blocks are overwritten in the file behind the device."""
    image, folder = tmp_path / "image", tmp_path / "ext4"
    folder.mkdir()
    with image.open("wb") as stream:
        stream.truncate(96 * 2**20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True, text=True, check=False)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if made.returncode or mounted.returncode:
        pytest.skip(f"a loop device cannot be mounted here: {mounted.stderr.strip()}; run as root")
    try:
        content, path, size = file_system.Content(3), folder / "c.pt", 5 * file_system.CHUNK
        file_system.save(path, size, 1, content)
        assert file_system.restore(path, size, 1, content).wrong == []
        page = bytes(content.at(1, 2 * file_system.CHUNK)[: file_system.PAGE])
        at = image.read_bytes().index(page)
        with image.open("r+b") as stream:
            stream.seek(at + 100)
            stream.write(bytes([page[100] ^ 255]))
            os.fsync(stream.fileno())
        # The block device has a cache of its own below the file system's.
        wrong = file_system.restore(path, size, 1, content).wrong
        assert wrong == [f"{path}: 1 wrong bytes, the first at {2 * file_system.CHUNK + 100}"]
    finally:
        subprocess.run(["umount", folder], check=True)
