"""`hpcai500 data index ic`: what it prints and refuses; an index that is there stays until another is whole."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from image_tree import encoded, pixels, settle, write_tree

from hpcai500.data.command import main
from hpcai500.data.imagenet.listing import load_index
from hpcai500.data.imagenet.seek_index import SEEK_INDEX
from hpcai500.data.imagenet.seek_index_making import make_seek_index

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
    assert main(["index", "ic", str(root)]) == 0
    out = capsys.readouterr().out
    assert f"index              {root / SEEK_INDEX}\n" in out
    assert "images             10, 6 with seek points\n" in out
    assert "without            1 CMYK, 1 damaged, 1 no JPEG, 1 progressive\n" in out
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
    reason = "unreadable: No such file or directory"
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


def test_a_place_that_cannot_be_written_is_told_with_the_line_to_type(
    root: Path, user_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Root may write anywhere: a folder in the index's place stops it, too.
    (root / SEEK_INDEX).mkdir()
    assert main(["index", "ic", str(root)]) == 64
    err = capsys.readouterr().err
    assert err.startswith(f"hpcai500: error: cannot write the seek index {root / SEEK_INDEX}: ")
    assert f"`hpcai500 data index ic {root} --cache`" in err
    assert main(["index", "ic", str(root), "--cache", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["index"]).is_relative_to(user_cache)


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
    assert "cannot write the seek index" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (root / SEEK_INDEX).read_bytes() == before
    assert not list(root.glob(".hpcai500-part-*"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_index_stays_where_the_making_of_a_new_one_is_stopped(root: Path, number: signal.Signals, code: int) -> None:
    make_seek_index(root)
    before = (root / SEEK_INDEX).read_bytes()
    # Whoever reads it waits for a writer.
    pipe = root / "val/dog/pipe.JPEG"
    os.mkfifo(pipe)
    process = subprocess.Popen([*COMMAND, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not list(root.glob(".hpcai500-part-*/index")) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(number)
    # It may have gone before it came to the pipe, or come to it after a writer has: neither waits here.
    while process.poll() is None and time.monotonic() < end + 60:
        os.close(os.open(pipe, os.O_RDWR))
        time.sleep(0.01)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
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
