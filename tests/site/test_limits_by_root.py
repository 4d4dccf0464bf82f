"""Limits that only root can set: each run ends well, or is refused in one line that names the limit.

Groups are made in whichever version of control groups this machine has mounted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from builders.limits import require_refused, require_sound, run_under

from hpcai500.record import iterate, read_record
from hpcai500.results.report.page import make_report

USER = "12345"
_MOUNTED = Path("/sys/fs/cgroup")
# How much: the file of the first version of control groups and what is written into it, and those of the second.
_FILES: dict[str, tuple[Callable[[float], dict[str, str]], Callable[[float], dict[str, str]]]] = {
    "cpu": (
        lambda cores: {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": f"{cores * 100_000:.0f}"},
        lambda cores: {"cpu.max": f"{cores * 100_000:.0f} 100000"},
    ),
    "pids": (lambda most: {"pids.max": f"{most:.0f}"}, lambda most: {"pids.max": f"{most:.0f}"}),
    "memory": (
        lambda most: {"memory.limit_in_bytes": f"{most:.0f}"},
        lambda most: {"memory.max": f"{most:.0f}", "memory.swap.max": "0"},
    ),
}
Group = Callable[[str, float], list[str]]


@pytest.fixture
def group() -> Iterator[Group]:
    """`group(controller, limit)` makes a control group, and gives the command that starts another one in it."""
    made: list[Path] = []

    def make(controller: str, limit: float) -> list[str]:
        is_first = (_MOUNTED / controller).is_dir()
        files = _FILES[controller][0 if is_first else 1](limit)
        folder = (_MOUNTED / controller if is_first else _MOUNTED) / f"hpcai500-test-{os.getpid()}-{len(made)}"
        try:
            folder.mkdir()
            made.append(folder)
            for name, text in files.items():
                if (folder / name).exists() or name != "memory.swap.max":
                    (folder / name).write_text(text)
        except OSError as error:
            pytest.skip(f"no control groups can be made here: {error}")
        return ["bash", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "limited"]

    yield make
    for folder in made:
        with suppress(OSError):
            folder.rmdir()


def test_a_cpu_quota_is_reported_wherever_it_is_asked_for(images: Path, tmp_path: Path, group: Group) -> None:
    ended = run_under(group("cpu", 0.2), images, tmp_path)
    require_sound(ended, tmp_path / "record")
    assert "warning: " in ended.stderr
    assert "a CPU quota allows the time of 0.2 cores" in ended.stderr
    record = read_record(tmp_path / "record")
    (node,) = record.system["nodes"]
    assert node["cpu_quota_cores"] == 0.2
    (steps,) = iterate(record.events, "steps")
    throttling = steps["value"]["ranks"][0]["throttling"]
    assert throttling["quota_cores"] == 0.2
    assert 0 < throttling["throttled_periods"] <= throttling["periods"]
    assert throttling["throttled_seconds"] > 0
    page = make_report([tmp_path / "record"]).html
    assert "A CPU quota stopped 1 rank of 1 while they trained: rank 0 on " in page
    assert "the time of 0.2 cores" in page


@pytest.mark.parametrize("most", [2, 4, 9])
def test_too_few_threads_in_a_control_group_are_named(images: Path, tmp_path: Path, group: Group, most: int) -> None:
    ended = run_under(group("pids", most), images, tmp_path)
    require_refused(ended, f"this job may have {most} (pids.max of its control group)")


def test_enough_threads_in_a_control_group_are_enough(images: Path, tmp_path: Path, group: Group) -> None:
    require_sound(run_under(group("pids", 100 * (os.cpu_count() or 1)), images, tmp_path), tmp_path / "record")


@pytest.mark.parametrize("most", [60_000_000, 150_000_000])
def test_a_run_that_the_kernel_kills_names_the_memory_of_its_group(
    images: Path, tmp_path: Path, group: Group, most: int
) -> None:
    ended = run_under(group("memory", most), images, tmp_path)
    require_refused(ended, "(memory limit of its control group)")


@pytest.fixture
def of_a_user(images: Path) -> Iterator[Path]:
    """A folder with the data, which another user may write; only root may search those of pytest."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root: run as root")
    folder = Path(tempfile.mkdtemp(prefix="of-a-user-", dir="/tmp"))
    shutil.copytree(images, folder / "images")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, int(USER), int(USER))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(most: int) -> list[str]:
    """A command that starts another one as the user, who may have so many threads."""
    become = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "bash", "-c"]
    return [*become, f'ulimit -u {most}; exec "$@"', "limited"]


@pytest.mark.parametrize("most", [1, 4, 8, 11])
def test_a_user_with_too_few_threads_is_told_the_limit(of_a_user: Path, most: int) -> None:
    variables = {"HOME": "/nonexistent", "TMPDIR": str(of_a_user)}
    ended = run_under(as_user(most), of_a_user / "images", of_a_user, environment=variables)
    require_refused(ended, f"this user may have {most} (ulimit -u)")


def test_a_user_with_enough_threads_trains(of_a_user: Path) -> None:
    variables = {"HOME": "/nonexistent", "TMPDIR": str(of_a_user)}
    limit = as_user(100 * (os.cpu_count() or 1))
    require_sound(run_under(limit, of_a_user / "images", of_a_user, environment=variables), of_a_user / "record")


@pytest.mark.parametrize("mount", ["-t tmpfs -o ro none", "-t tmpfs -o size=4k none", "--bind /proc/self"])
def test_ranks_sum_without_shared_memory(images: Path, tmp_path: Path, mount: str) -> None:
    hide = ["unshare", "--mount", "bash", "-c", f'mount {mount} /dev/shm && exec "$@"', "hidden"]
    ended = run_under(hide, images, tmp_path, "--procs", "2", "--oversubscribe")
    require_sound(ended, tmp_path / "record")
    assert ("/dev/shm is read-only" in ended.stderr) == ("ro" in mount.split())
