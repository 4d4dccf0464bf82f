"""A run where nothing can be written but one folder: read-only root and /tmp, no home, a user whom nobody knows.

This is what an image is without binds. Only /dev/shm is writable besides, as in every container.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.runs import TINY, TINY_WEATHER

from hpcai500.record import read_record

USER = "12345"
# Whether a tiny run has learnt anything is not what this is about.
LEARNT = (0, 2)
HPCAI500 = Path(sys.executable).with_name("hpcai500")

# Nobody but root may search root's home, where Python may be: it is shown in an empty one. Then all is made read-only.
SCENE = """
set -eu
work=$1 python=$2 start=$3 memory=$4; shift 4
case "$python" in /root/*)
    mount --bind "$python" /mnt && mount -t tmpfs -o mode=755 none /root && mkdir -p "$python"
    mount --bind /mnt "$python" && umount /mnt
esac
mount --bind "$work" "$work"
mount -t tmpfs -o "mode=1777,$memory" none /dev/shm
while read -r _ folder _; do
    case "$folder" in "$work"|/dev/shm) continue;; esac
    mount -o remount,bind,ro "$folder" 2> /dev/null || true
done < /proc/self/mounts
cd "$start"
status=0
setpriv --reuid USER --regid USER --clear-groups env -i PATH="$PATH" HOME=/nonexistent "$@" || status=$?
find /dev/shm -mindepth 1 > "$work/left-in-memory"
exit $status
""".replace("USER", USER)


@pytest.fixture
def work(images: Path, weather: Path) -> Iterator[Path]:
    """The one folder, with data of both kinds; not below pytest's own, which only root may search."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root: run as root")
    folder = Path(tempfile.mkdtemp(prefix="only-this-", dir="/tmp"))
    for name, source in (("images", images), ("weather", weather)):
        shutil.copytree(source, folder / name)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, int(USER), int(USER))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def within(
    work: Path, *command: str | Path, start: Path | str | None = None, memory: str = "rw"
) -> subprocess.CompletedProcess[str]:
    """Run `command` as that user, in `work` or where told; `memory` "ro" takes /dev/shm away too."""
    given = [work, sys.base_prefix, start or work, memory]
    scene = ["unshare", "--mount", "bash", "-c", SCENE, "scene", *given, *command]
    return subprocess.run(list(map(str, scene)), capture_output=True, text=True, check=False)


def tiny(work: Path, benchmark: str, *more: str) -> list[str | Path]:
    """The command of a tiny run."""
    settings = TINY if benchmark == "ic" else TINY_WEATHER
    data = work / ("images" if benchmark == "ic" else "weather")
    all_settings = (*settings, "problem.epochs=1", "problem.target_quality=1e-9", *more)
    return [
        *[HPCAI500, benchmark, "--recipe", f"{benchmark}/smoke", "--data", data],
        *[token for text in all_settings for token in ("--set", text)],
    ]


def require_only_the_record(work: Path, *records: str) -> None:
    assert {path.name for path in work.iterdir()} == {"images", "weather", "left-in-memory", *records}
    assert (work / "left-in-memory").read_text() == ""


def test_the_scene_is_what_it_says(work: Path) -> None:
    script = "id -u; id -un; [[ -d ~ ]] && echo a home; touch /tmp/x /var/tmp/x ~/x ./here; ls"
    ended = within(work, "bash", "-c", script)
    assert USER in ended.stdout
    assert "cannot find name for user ID" in ended.stderr
    assert ended.stderr.count("cannot touch") == 3
    # A home that is there cannot be written either; of one that is not, touch says so.
    assert ended.stderr.count("Read-only file system") == (3 if "a home" in ended.stdout else 2)
    assert "here" in ended.stdout


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
@pytest.mark.parametrize("ranks", ["alone", "torch", "horovod"])
def test_a_run_writes_its_record_and_nothing_else(work: Path, benchmark: str, ranks: str) -> None:
    more = [] if ranks == "alone" else ["--procs", "2", "--set", f"communication.backend={ranks}"]
    ended = within(work, *tiny(work, benchmark), *more, "--out", "record")
    assert ended.returncode in LEARNT, ended.stderr
    assert read_record(work / "record").status == "done"
    assert "Traceback" not in ended.stderr
    assert "atplotlib" not in ended.stderr
    require_only_the_record(work, "record")


def test_horovodrun_needs_no_home(work: Path) -> None:
    script = (
        "import sys; from hpcai500.launch.launcher import run_horovod_ranks as run;"
        "sys.exit(run('self_test.command', ['.', '60', 'ranks', 'horovod-gloo', '2'], 2, launcher='horovodrun'))"
    )
    ended = within(work, sys.executable, "-c", script)
    assert ended.returncode == 0, ended.stderr
    require_only_the_record(work, "findings.jsonl", "log")


def test_a_run_starts_in_a_folder_that_cannot_be_written(work: Path) -> None:
    ended = within(work, *tiny(work, "ewa"), "--out", work / "record", start="/")
    assert ended.returncode in LEARNT, ended.stderr
    require_only_the_record(work, "record")


def test_data_is_made_beside_the_record_where_it_cannot_be_made_here(work: Path) -> None:
    settings = [
        token for text in (*TINY[1:], "problem.epochs=1", "problem.target_quality=1e-9") for token in ("--set", text)
    ]
    out = work / "runs" / "first"
    ended = within(work, HPCAI500, "ic", *settings, "--out", out, start="/")
    assert ended.returncode == 0, ended.stderr
    assert f"the synthetic data goes to {work}/runs/data/ic-synthetic-shapes" in ended.stderr
    require_only_the_record(work, "runs")
    again = within(work, HPCAI500, "ic", *settings, "--out", work / "runs" / "second", start="/")
    assert again.returncode == 0, again.stderr
    assert "(0 written)" in again.stderr


def test_where_nothing_can_be_written_one_line_says_the_fix(work: Path) -> None:
    ended = within(work, HPCAI500, "ic", "--out", "/nowhere/record", start="/")
    assert ended.returncode == 69
    errors = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "give another folder with --out DIR" in errors[0]


def test_the_self_test_passes_and_leaves_nothing(work: Path) -> None:
    ended = within(work, HPCAI500, "self-test", "--json", start="/")
    document = json.loads(ended.stdout)
    assert [check for check in document["checks"] if check["status"] == "fail"] == [], ended.stderr
    assert ended.returncode == 0
    require_only_the_record(work)


def test_operations_are_counted_without_a_place_for_caches(work: Path) -> None:
    ended = within(work, HPCAI500, "flops", "ic", start="/")
    assert ended.returncode == 0, ended.stderr
    require_only_the_record(work)


def test_data_is_made_without_memory_that_processes_share(work: Path) -> None:
    size = ["--classes", "2", "--train-per-class", "60", "--val-per-class", "2", "--workers", "2"]
    ended = within(work, HPCAI500, "data", "make", "ic", "made", *size, memory="ro")
    assert ended.returncode == 0, ended.stderr
    assert "/dev/shm cannot be used (Read-only file system): working with one process instead of 2" in ended.stderr
    require_only_the_record(work, "made")
