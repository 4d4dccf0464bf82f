"""A data mount whose server is gone: every command says so and ends; none hangs past its limit or a signal.

The mount is a real FUSE file system, whose process is stopped: whoever touches it waits in the kernel.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders.commands import HPCAI500

# Four times what a loaded machine needs; whoever hangs, hangs for ever.
PATIENCE_SECONDS = 240

Ended = subprocess.CompletedProcess[str]


class Mount:
    """`folder`, served by a process of ours."""

    def __init__(self, content: Path, folder: Path) -> None:
        packed = folder.with_suffix(".sqsh")
        subprocess.run(["mksquashfs", content, packed, "-quiet"], check=True, stdout=subprocess.DEVNULL)
        folder.mkdir()
        self.folder = folder
        # Nothing may be kept of what was seen: a name that the kernel remembers still answers.
        no_cache = ["-o", "entry_timeout=0,attr_timeout=0,negative_timeout=0"]
        self.server = subprocess.Popen(["squashfuse", "-f", *no_cache, packed, folder], start_new_session=True)
        limit = time.monotonic() + PATIENCE_SECONDS
        while not os.path.ismount(folder):
            if self.server.poll() is not None:
                pytest.skip("a FUSE file system cannot be mounted here: run as root, with /dev/fuse")
            assert time.monotonic() < limit
            time.sleep(0.05)

    def die(self) -> None:
        """Answer nobody any more."""
        self.server.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self.server.kill()
        self.server.wait()
        subprocess.run(["umount", "-l", self.folder], check=True)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    if not shutil.which("squashfuse") or not shutil.which("mksquashfs"):
        pytest.skip("squashfuse and squashfs-tools are not installed")
    content = tmp_path / "content"
    subprocess.run(
        [*HPCAI500, "data", "make", "ic", content, "--classes", "2", "--train-per-class", "40"],
        check=True,
        capture_output=True,
    )
    (content / "file").write_text("x")
    mount = Mount(content, tmp_path / "dead")
    yield mount
    mount.close()


def hpcai500(*arguments: str, cwd: Path, **environment: str) -> Ended:
    return subprocess.run(
        [*HPCAI500, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


COMMANDS = [
    ("ic", "--data", "dead"),
    ("ic", "--recipe", "dead/recipe.toml"),
    ("ewa", "--out=dead/record", "--json"),
    ("ic", "--power", "csv:dead/file,offset=1"),
    ("scale", "ic", "--data", "link"),
    ("data", "check", "ic", "dead"),
    ("score", "dead/record"),
    ("accept", "dead/spec.toml", "record"),
    ("report", "dead/record", "-o", "x.html"),
    ("verify", "dead/file"),
    ("campaign", "status", "dead/campaign"),
    ("ensemble", "status", "dead/ensemble"),
    ("doctor", "--quick", "--recipe", "dead/recipe.toml"),
]


def test_every_command_names_the_dead_mount_and_ends(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("dead/train")
    mount.die()
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda arguments: hpcai500(*arguments, cwd=tmp_path), COMMANDS))
    for arguments, one in zip(COMMANDS, ended, strict=True):
        assert one.returncode == 69, (arguments, one.stderr)
        assert f"does not respond (waited 15 s): {mount.folder} (fuse" in one.stderr, (arguments, one.stderr)
        assert f"umount -l {mount.folder}" in one.stderr
        if arguments[0] in ("ic", "scale", "score"):
            assert one.stdout.splitlines()[-1] == "HPCAI500 RESULT INVALID", arguments
    assert '"verdict": "INVALID"' in ended[2].stdout


@pytest.mark.parametrize("quick", [["--quick"], []])
def test_doctor_goes_on_with_its_other_checks(mount: Mount, tmp_path: Path, quick: list[str]) -> None:
    mount.die()
    ended = hpcai500("doctor", "ic", *quick, "--recipe", "ic/smoke", "--data", "dead", cwd=tmp_path)
    assert ended.returncode == 69, ended.stderr
    found = {line.split()[1]: line for line in ended.stdout.splitlines() if line.startswith(("pass", "fail", "skip"))}
    assert found["data"].startswith(f"fail  data           dead: does not respond (waited 15 s): {mount.folder} (fuse")
    assert found["out"].startswith("pass")
    assert found["memory"].startswith("pass")
    if not quick:
        assert found["GEMM"].startswith("pass")
        assert "first fix `data`" in found["reading"]


def test_doctor_finds_a_dead_folder_for_temporary_files(mount: Mount, tmp_path: Path) -> None:
    mount.die()
    ended = hpcai500("doctor", cwd=tmp_path, TMPDIR=str(mount.folder))
    assert ended.returncode == 69, ended.stderr
    assert f"fail  temporary      {mount.folder}: does not respond" in ended.stdout


def test_a_signal_ends_the_wait(mount: Mount, tmp_path: Path) -> None:
    mount.die()
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen([*HPCAI500, "score", "dead"], cwd=tmp_path, stderr=subprocess.PIPE) as command:
            time.sleep(5)
            command.send_signal(number)
            assert command.wait(10) != 69


def test_a_server_that_has_ended_is_told_at_once(mount: Mount, tmp_path: Path) -> None:
    mount.server.kill()
    mount.server.wait()
    ended = hpcai500("ic", "--data", "dead", cwd=tmp_path)
    assert ended.returncode == 69
    assert f"dead: Transport endpoint is not connected: {mount.folder} (fuse" in ended.stderr
    looked = hpcai500("doctor", "--quick", "--data", "dead", cwd=tmp_path)
    assert "fail  data           dead: Transport endpoint is not connected" in looked.stdout
    assert "pass  memory" in looked.stdout


# What a run says when it ends by itself.
ENDED = (
    r"rank \d on host \S+: no progress for \d+ s in its phase `\w.*`, "
    r"and dead(/\w+)?: does not respond \(waited 15 s\): "
)


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("asked", [[], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]])
def test_a_run_whose_data_die_under_it_ends(
    mount: Mount, tmp_path: Path, ranks: str, asked: list[signal.Signals]
) -> None:
    command = [*HPCAI500, "ic", "--recipe", "ic/smoke", "--data", "dead", "--procs", ranks, "--out", "record"]
    # No page of the files may be kept: what is in memory is read without the server.
    keep = Path("/proc/sys/vm/drop_caches")
    with subprocess.Popen(
        [*command, "--set", "problem.epochs=20000"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as run:
        events = tmp_path / "record" / "events.jsonl"
        limit = time.monotonic() + PATIENCE_SECONDS
        while not events.exists() or '"key":"eval_accuracy"' not in events.read_text():
            assert time.monotonic() < limit
            assert run.poll() is None
            time.sleep(0.1)
        mount.die()
        keep.write_text("3")
        for number in asked:
            time.sleep(3)
            assert run.poll() is None
            run.send_signal(number)
        assert run.wait(PATIENCE_SECONDS) == 1
    if signal.SIGINT not in asked:
        assert re.search(rf"{ENDED}{mount.folder} \(fuse", (tmp_path / "record" / "ERROR").read_text())
