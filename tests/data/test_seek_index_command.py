"""`hpcai500 data index ic`: what it prints and refuses; an index that is there stays until another is whole."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from image_tree import encoded, pixels, settle, write_tree
from PIL import Image

from hpcai500._core import SeekIndexWriter
from hpcai500.data.command import main
from hpcai500.data.imagenet import seek_index
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, make_seek_index

COMMAND = [sys.executable, "-m", "hpcai500.data", "index", "ic"]


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache"


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_tree(tmp_path / "set")
    for number, path in enumerate(sorted(root.rglob("*.JPEG"))):
        path.write_bytes(encoded(pixels(number, 200, 300), quality=95))
    return root


def test_the_real_size_is_printed_and_is_about_4_percent(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "ic", str(root), "--json", "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    made = json.loads(out)
    data = sum(path.stat().st_size for path in root.rglob("*.JPEG"))
    index = (root / SEEK_INDEX).stat().st_size
    assert {key: made[key] for key in ("index", "files", "with_points", "data_bytes", "index_bytes", "share")} == {
        "index": str(root / SEEK_INDEX),
        "files": 10,
        "with_points": 10,
        "data_bytes": data,
        "index_bytes": index,
        "share": index / data,
    }
    assert 0.02 < made["share"] <= 0.041
    assert (made["without_points"], made["unreadable"]) == ({}, [])
    assert err == ""


def test_people_get_a_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train/cat/cat_0.JPEG").write_bytes(encoded(pixels(0), progressive=True))
    (root / "train/cat/cat_1.JPEG").write_bytes(encoded(pixels(0).convert("CMYK")))
    (root / "train/cat/cat_2.JPEG").write_bytes(encoded(pixels(0), "PNG"))
    (root / "train/dog/dog_0.JPEG").write_bytes(encoded(pixels(0, 200, 300))[:-900])
    (root / "train/dog/dog_1.JPEG").write_bytes(encoded(pixels(0, 8, 8)))
    assert main(["index", "ic", str(root)]) == 0
    out = capsys.readouterr().out
    assert f"index              {root / SEEK_INDEX}\n" in out
    assert "images             10, 5 with seek points\n" in out
    assert "without            1 CMYK, 1 damaged, 1 no JPEG, 1 no point worth keeping, 1 progressive\n" in out
    assert "% of the data\n" in out


def test_files_that_are_not_there_are_listed_and_the_others_indexed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(root)
    load_index(root)
    folder = root / "val/dog"
    times = folder.stat()
    (folder / "dog_1.JPEG").unlink()
    # As in a staged folder, whose listing is that of the whole set.
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert main(["index", "ic", str(root), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    reason = "No such file or directory"
    assert made["unreadable"] == [{"path": "val/dog/dog_1.JPEG", "reason": reason}]
    assert made["files"] == made["with_points"] == 9
    assert main(["index", "ic", str(root)]) == 0
    assert f"not in the index\n  val/dog/dog_1.JPEG  {reason}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["index", "ic", "{root}", "--jsn"], "did you mean --json?"),
        (["index", "ic", "{root}", "--threads", "0"], "--threads must be at least 1"),
        (["index", "ic", "{root}/missing"], "there is no such folder; expected train/<class>/*.JPEG"),
        (["index", "ic", "{root}/train/cat/cat_0.JPEG"], "there is no such folder; expected train/<class>/*.JPEG"),
        (["index", "ic", "{root}/train"], "has no folder train/: expected train/<class>/*.JPEG"),
        (["index", "ewa", "{root}"], "invalid choice: 'ewa' (choose from 'ic')"),
    ],
)
def test_a_mistake_is_one_line_with_what_is_right(
    words: list[str], said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(root=root) for word in words]) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert not (root / SEEK_INDEX).exists()


def test_what_is_no_file_or_too_large_is_listed_and_never_waited_for(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(root / "val/dog/pipe.JPEG")
    os.truncate(root / "train/cat/cat_0.JPEG", 2**30 + 1)
    assert main(["index", "ic", str(root), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["unreadable"] == [
        {
            "path": "train/cat/cat_0.JPEG",
            "reason": "the file has 1073741825 bytes; the limit for an image is 1073741824",
        },
        {"path": "val/dog/pipe.JPEG", "reason": "not a regular file"},
    ]
    assert made["files"] == 9


def test_where_no_file_can_be_read_one_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in root.rglob("*.JPEG"):
        path.unlink()
        os.mkfifo(path)
    assert main(["index", "ic", str(root)]) == 64
    assert capsys.readouterr().err == (
        f"hpcai500: error: {root}: none of its files can be read, train/cat/cat_0.JPEG for one: not a regular file; "
        "check the permissions, links and mount\n"
    )
    assert not (root / SEEK_INDEX).exists()


def test_a_folder_in_its_place_is_told(root: Path, user_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / SEEK_INDEX).mkdir()
    assert main(["index", "ic", str(root)]) == 64
    assert capsys.readouterr().err == (
        f"hpcai500: error: cannot write the seek index {root / SEEK_INDEX}: Is a directory; remove the folder that is "
        "in its place, and run the same command again\n"
    )
    assert main(["index", "ic", str(root), "--cache", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["index"]).is_relative_to(user_cache)


def test_a_cache_below_a_file_is_told(root: Path, user_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_index(root)
    user_cache.write_text("a file")
    assert main(["index", "ic", str(root), "--cache"]) == 64
    said = capsys.readouterr().err
    assert said.endswith(": Not a directory; choose another cache folder by XDG_CACHE_HOME\n")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_each_reason_has_a_remedy_of_its_own(
    code: int, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: bytes) -> SeekIndexWriter:
        # As the core has it; and root, who may run this, is refused nothing.
        raise OSError(code, f"cannot make {os.fsdecode(path)}: {os.strerror(code)}")

    monkeypatch.setattr(seek_index, "SeekIndexWriter", refuse)
    assert main(["index", "ic", str(root)]) == 64
    remedies = {
        errno.ENOSPC: "it takes about 4 % of the set: make room",
        errno.EDQUOT: "it takes about 4 % of the set: make room",
        errno.EIO: "check the disk and the mount",
    }
    for_owners = f"have its owner run the same command, or `hpcai500 data index ic {root} --cache` for one of your own"
    remedy = f"{remedies[code]}, and run the same command again" if code in remedies else for_owners
    place = root / SEEK_INDEX
    assert capsys.readouterr().err == (
        f"hpcai500: error: cannot write the seek index {place}: {os.strerror(code)}; {remedy}\n"
    )


def _at_most_100_bytes_a_file() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def test_an_index_stays_where_a_new_one_has_no_room(root: Path) -> None:
    make_seek_index(root)
    before = (root / SEEK_INDEX).read_bytes()
    (root / "train/cat/cat_0.JPEG").write_bytes(encoded(pixels(77, 200, 300)))
    done = subprocess.run(
        [*COMMAND, str(root)], preexec_fn=_at_most_100_bytes_a_file, capture_output=True, text=True, check=False
    )
    assert done.returncode == 64
    assert done.stderr == (
        f"hpcai500: error: cannot write the seek index {root / SEEK_INDEX}: File too large; raise the limit of a "
        "file's size (ulimit -f), and run the same command again\n"
    )
    assert (root / SEEK_INDEX).read_bytes() == before
    assert not list(root.glob(".hpcai500-part-*"))


@pytest.mark.parametrize(
    ("number_of_signal", "code", "said"),
    [
        (
            signal.SIGINT,
            130,
            "hpcai500: interrupted: an index that was there is as it was; the same command begins anew\n",
        ),
        (signal.SIGTERM, 143, ""),
    ],
)
def test_an_index_stays_where_the_making_of_a_new_one_is_stopped(
    root: Path, number_of_signal: signal.Signals, code: int, said: str
) -> None:
    make_seek_index(root)
    before = (root / SEEK_INDEX).read_bytes()
    # Half a minute of work, of which the first moment is enough.
    large = root / "train/cat/cat_0.JPEG"
    noise = np.random.default_rng(1).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    large.write_bytes(encoded(Image.fromarray(noise), quality=95))
    for number in range(5000):
        os.link(large, large.with_name(f"link_{number}.JPEG"))
    command = [*COMMAND, str(root), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not list(root.glob(".hpcai500-part-*/index")) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(number_of_signal)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, ""), err
    assert err.endswith(said)
    assert "Traceback" not in err
    assert (root / SEEK_INDEX).read_bytes() == before
    assert not list(root.glob(".hpcai500-part-*"))


def test_what_a_killed_one_left_goes_with_the_next(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = root / f".hpcai500-part-{os.uname().nodename}-{int(done.stdout)}-abc"
    left.mkdir()
    (left / "index").write_bytes(b"half")
    make_seek_index(root)
    assert not left.exists()
