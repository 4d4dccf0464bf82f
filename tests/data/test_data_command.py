"""`hpcai500 data`: results on stdout, everything else on stderr, exit codes that a harness can read."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from builders.commands import HPCAI500
from builders.data import SHIPPED, boxes_of, damage_chunk, images_of, swapped, write_tree, write_year
from PIL import Image

from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.climate.years import CLASSES
from hpcai500.data.derived import MANIFEST
from hpcai500.job_options import RepackOptions, as_argument

IC = ["--classes", "2", "--train-per-class", "3", "--val-per-class", "2", "--workers", "1"]
EWA = ["--years", "1979-1980", "--images-per-year", "3", "--height", "64", "--width", "96", "--workers", "1"]


def test_images_are_made_then_checked(tmp_path: Path, call: Any) -> None:
    root = tmp_path / "set"
    made = f"{root}: 6 training and 4 validation images of 2 classes (10 written)\n"
    assert call("make", "ic", root, *IC) == (made, "")
    out, err = call("check", "ic", root)
    assert "images               6 train, 4 val" in out
    assert "01-cross-plain  3 train, 2 val" in out
    assert out.endswith("PASS: every file can be trained on\n")
    assert err == ""
    checked = json.loads(call("check", "ic", root, "--json")[0])
    assert checked["broken"] == []
    for folder, written in ((root, 0), (tmp_path / "other", 10)):
        assert json.loads(call("make", "ic", folder, *IC, "--json")[0]) == {
            "fingerprint": checked["fingerprint"],
            "samples": {"train": 6, "val": 4},
            "classes": 2,
            "written": written,
        }


def test_years_are_made(tmp_path: Path, call: Any) -> None:
    out, err = call("make", "ewa", tmp_path, *EWA)
    labels = np.concatenate([h5py.File(tmp_path / f"climo_{year}.h5")["boxes"][..., 4] for year in (1979, 1980)])
    boxes = int((labels >= 0).sum())
    assert out == f"{tmp_path}: 6 images of 64 x 96 in 2 years, {boxes} boxes (2 years written)\n"
    assert err == ""
    assert "in 1 years" in call("make", "ewa", tmp_path / "one", *EWA, "--years", "2001")[0]
    assert (tmp_path / "one/climo_2001.h5").is_file()


def test_years_that_are_made_are_told_as_one_document(tmp_path: Path, call: Any) -> None:
    words = ("make", "ewa", tmp_path, *EWA, "--layout", "shipped", "--class-shares", "0,0,1,1", "--json")
    made = json.loads(call(*words)[0])
    assert set(made) == {"years", "images", "boxes", "written"}
    assert (made["years"], made["images"], made["written"]) == ([1979, 1980], 6, 2)
    assert tuple(made["boxes"]) == CLASSES
    counts = list(made["boxes"].values())
    assert counts[:2] == [0, 0]
    assert min(counts[2:]) > 0
    assert json.loads(call(*words)[0]) == made | {"written": 0}


@pytest.fixture
def years(tmp_path: Path) -> Path:
    """Two years as ExtremeWeather ships them."""
    for year in (1979, 1980):
        write_year(tmp_path / "source", year, **SHIPPED)
    return tmp_path / "source"


def test_years_are_checked_then_repacked_then_checked(years: Path, tmp_path: Path, call: Any) -> None:
    target = tmp_path / "target"
    out, err = call("check", "ewa", years, "--workers", "1")
    assert "images               24 of 24 x 36, 16 channels" in out
    assert "1979      12" in out
    assert "chunks of 5 x 1 x 6 x 9, deflate; 256 an image" in out
    assert "channels, years 1979 to 1980" in out
    assert out.endswith("PASS: the set can be trained on\n")
    assert err == ""
    fingerprint = load_climate_index(years).fingerprint
    repack = ("repack", "ewa", years, target, "--workers", "1")
    out, err = call(*repack)
    begin, end = f"{target}: 24 images of 1979 to 1980, 1.4 MB; 1979 to 1980", f"; fingerprint {fingerprint}\n"
    assert out == f"{begin} written and verified{end}"
    assert err.startswith(f"hpcai500: {target}: 24 images, 5.52 MB to write (5.52 MB needed, ")
    assert err.count("\n") == 1
    assert call(*repack)[0] == f"{begin} kept{end}"
    out, _ = call("check", "ewa", target, "--workers", "1")
    assert "each image is one uncompressed piece of its file, the fastest layout" in out


def test_years_that_are_repacked_are_told_as_one_document(years: Path, tmp_path: Path, call: Any) -> None:
    words = ("repack", "ewa", years, tmp_path / "target", "--workers", "1", "--json")
    assert json.loads(call(*words, "--estimate")[0])["estimate"]["images"] == 24
    assert not (tmp_path / "target").exists()
    repacked = json.loads(call(*words, "--filter", "lzf", "--years", "1980")[0])
    assert (repacked["written"], repacked["samples"]) == ([1980], 12)
    checked = json.loads(call("check", "ewa", tmp_path / "target", "--json")[0])
    for fingerprint in ("fingerprint", "content_fingerprint"):
        assert checked[fingerprint] == repacked[fingerprint]
    assert checked["years"][0]["storage"]["filters"] == ["shuffle", "lzf"]
    assert checked["broken"] == []


def test_broken_images_are_listed_and_the_exit_code_says_so(tmp_path: Path, call: Any) -> None:
    root = write_tree(tmp_path / "set")
    (root / "train/cat/cat_1.JPEG").write_bytes(b"")
    (root / "val/dog/photo.png").write_bytes((root / "val/dog/dog_0.JPEG").read_bytes())
    (root / "val/dog/notes.txt").write_text("ignored")
    out, _ = call("check", "ic", root, code=64)
    assert "broken\n  train/cat/cat_1.JPEG  truncated: the file is empty\n" in out
    assert "note: 1 entry is left out (1 .txt): images are files in class folders whose names end in .jpeg, " in out
    assert out.endswith("FAIL: broken files: 1\n")
    assert json.loads(call("check", "ic", root, "--json", code=64)[0])["broken"] == [
        {"path": "train/cat/cat_1.JPEG", "reason": "truncated: the file is empty"}
    ]


def test_broken_years_are_listed_and_the_exit_code_says_so(years: Path, call: Any) -> None:
    damage_chunk(years / "climo_1980.h5", 5)
    write_year(years, 1981, boxes=swapped(boxes_of(12)))
    out, _ = call("check", "ewa", years, "--years", "1979-1982", "--workers", "1", code=64)
    assert "broken\n  climo_1980.h5  dataset images, images 0 to 4, channel PRECT, chunk (0, 0, 1, 1): " in out
    assert "  climo_1981.h5  dataset boxes: the variant with x and y swapped" in out
    assert "  climo_1982.h5  missing: no such file" in out
    assert out.endswith("FAIL: 3 findings under broken\n")


def test_many_findings_are_shortened_for_people(years: Path, tmp_path: Path, call: Any) -> None:
    root = write_tree(tmp_path / "set")
    for number in range(30):
        (root / f"train/cat/empty_{number}.jpg").write_bytes(b"")
        damage_chunk(years / "climo_1980.h5", number)
    for words in (("ic", root), ("ewa", years)):
        out = " ".join(call("check", *words, code=64)[0].split())
        assert "and 10 more --json lists all" in out
    assert len(json.loads(call("check", "ic", root, "--json", code=64)[0])["broken"]) == 30


def test_a_name_that_is_not_utf8_can_be_reported(tmp_path: Path, call: Any) -> None:
    root = write_tree(tmp_path / "set")
    (root / "train/cat" / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"")
    assert "train/cat/caf\\udce9.jpg  truncated" in call("check", "ic", root, code=64)[0]
    path = json.loads(call("check", "ic", root, "--json", code=64)[0])["broken"][0]["path"]
    assert os.fsencode(path) == b"train/cat/caf\xe9.jpg"


MISTAKES = [
    ("mkae ic d", "No such command 'mkae'. Did you mean 'make'?"),
    ("make ewq d", "No such command 'ewq'. Did you mean 'ewa'?"),
    ("make ic", "Missing argument 'DIR'"),
    ("make ic d --clases 3", "Possible options: --classes"),
    ("make ic d --classes many", "'--classes': Input should be a valid integer"),
    ("make ic d --classes 99", "choose 2 to 36"),
    ("make ic d --workers 0", "--workers must be at least 1"),
    ("check ic d --jsn", "Possible options: --json"),
    ("check ic nowhere", "no data set at nowhere"),
    ("index ic d --jsn", "Possible options: --json"),
    ("index ic d --threads 0", "--threads must be at least 1"),
    ("index ic d", "no such folder; expected train/<class>/*.JPEG"),
    ("index ic file", "a file, not a folder; expected train/<class>/*.JPEG"),
    ("index ic source", "has no folder train/: expected train/<class>/*.JPEG"),
    ("index ewa source", "No such command 'ewa'"),
    ("make ewa d --years last", "--years: expected 1979 or 1979-1981, got 'last'"),
    ("make ewa d --years 1981-1979", "the earlier first"),
    ("make ewa d --height 32", "choose 64 to 16384"),
    ("make ewa d --class-shares a,b", "expected four numbers such as 0.1,0.4,0.4,0.1"),
    ("make ewa d --class-shares 1,1", "one number for each of tropical depression"),
    ("make ewa d --layout gzip", "'gzip' is not one of 'image', 'contiguous', 'shipped'"),
    ("make ewa d --image-per-year 3", "Possible options: --images-per-year"),
    ("make ewa d --workers 0", "--workers must be at least 1"),
    ("check ewa nowhere", "no data set at nowhere: no such folder"),
    ("check ewa source --years 1979-x", "--years: expected 1979 or 1979-1981, got '1979-x'"),
    ("check ewa source --workers 0", "--workers must be at least 1"),
    ("repack ewa source", "Missing argument 'DST'"),
    ("repack ic a b", "No such command 'ic'"),
    ("repack ewa source d --filter gzip", "'gzip' is not one of 'none', 'lzf'"),
    ("repack ewa source d --convert", "Possible options: --convert-boxes"),
    ("repack ewa source source", "this is the source folder"),
    ("repack ewa source source/in", "inside the set source"),
    ("repack ewa source d --years 1985-1987", "no file for 1985 to 1987; the set has 1979 to 1980"),
    ("repack ewa source source/climo_1979.h5/d", "inside the set source"),
    ("repack ewa source file", "file: not a folder"),
    ("anchors ewa source --years 1990", "1990"),
    ("anchors ewa source --levels 0", "at least 1"),
    ("anchors ewa source --per-level 9 --levels 90", "cannot fit 810 anchors"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_64(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for year in (1979, 1980) if "source" in words else ():
        write_year(tmp_path / "source", year)
    (tmp_path / "file").touch()
    assert message in mistake(*words.split())
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "words", ["check ic set", "index ic set", "check ewa set", "repack ewa set copy", "stage ic set copy"]
)
def test_a_set_that_the_container_does_not_show_is_named_with_the_bind(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APPTAINER_CONTAINER", "/apps/hpcai500.sif")
    (tmp_path / "set").symlink_to(tmp_path / "hidden")
    said = mistake(*words.split())
    assert (
        f"add --bind {tmp_path}/hidden: apptainer run --bind {tmp_path}/hidden /apps/hpcai500.sif data {words}" in said
    )


COMMANDS = ["", "make", "make ic", "check ic", "repack", "check ewa", "repack ewa", "make ewa", "anchors ewa"]


@pytest.mark.parametrize("words", COMMANDS)
def test_help_explains_and_succeeds(words: str, call: Any) -> None:
    out, err = call(*words.split(), "--help")
    assert (err, "Examples:" in out) == ("", True)
    if words == "make ewa":
        text = " ".join(out.split())
        assert "atmospheric river. [default: 0.06,0.43,0.46,0.05]" in text
        assert "shipped: as ExtremeWeather ships" in text


# A few files are there when the signal comes, and many are still to be made.
IMAGES = ["ic", "--train-per-class", "5000"]
YEARS = ["ewa", *EWA[2:-2], "--years", "1000-2999"]


INTERRUPTED = [
    (*made, sent, workers)
    for made in ((IMAGES, "*/*/*.JPEG", 20), (YEARS, "climo_*.h5", 3))
    for sent, workers in ((signal.SIGINT, "2"), (signal.SIGTERM, "1"))
]


@pytest.mark.parametrize(("wanted", "pattern", "least", "sent", "workers"), INTERRUPTED)
def test_an_interrupt_leaves_whole_files_only(
    tmp_path: Path,
    wanted: list[str],
    pattern: str,
    least: int,
    sent: signal.Signals,
    workers: str,
    without_progress: Callable[[str], str],
) -> None:
    root, (benchmark, *options) = tmp_path / "set", wanted
    command = [*HPCAI500, "data", "make", benchmark, str(root), *options, "--workers", workers]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: sum(1 for _ in root.glob(pattern)) >= least, process)
    # As a terminal does: the whole group gets the signal, the parent as well as its processes.
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + sent, err
    assert "Traceback" not in err
    told = (
        "hpcai500: interrupted: finished files are kept, none is half written; run the same command again to continue\n"
    )
    assert without_progress(err) == (told if sent is signal.SIGINT else "")
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [MANIFEST]
    files = list(root.glob(pattern))
    assert len(files) >= least
    assert {*files, root / MANIFEST} == {path for path in root.rglob("*") if path.is_file()}
    for path in files:
        if benchmark == "ic":
            Image.open(path).load()
            continue
        with h5py.File(path) as file:
            assert file["boxes"].shape == (3, 15, 5)
            assert np.isfinite(file["images"][:]).all()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until `condition` holds, or `process` has ended; the limit is for a process that hangs."""
    limit = time.monotonic() + 600
    while not condition() and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.005)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupted_repacking_is_told_in_one_line_and_the_next_call_goes_on(
    tmp_path: Path, workers: str, without_progress: Callable[[str], str]
) -> None:
    for year in (1979, 1980):
        write_year(tmp_path / "source", year, images_of(60, 48, 72, seed=year), **SHIPPED)
    target = tmp_path / "target"
    script = "import sys, time; from hpcai500.data.climate import repack, values; values.BLOCK_BYTES = 1; "
    # However late the signal comes, the second year is not done: its disk takes minutes.
    slow = "sync = repack.sync; repack.sync = lambda path: (time.sleep(600 * ('1980' in path.name)), sync(path)); "
    main_ = "from hpcai500.data.command import main; sys.exit(main(sys.argv[1:]))"
    words = ["repack", "ewa", as_argument(RepackOptions(tmp_path / "source", target, workers=int(workers)))]
    command, slowed = ([sys.executable, "-c", script + how + main_, *words] for how in ("", slow))
    process = subprocess.Popen(slowed, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for((target / ".climo_1980.h5.part").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert [line.partition(",")[0] for line in without_progress(err).splitlines()[1:]] == [
        "hpcai500: interrupted: finished files are kept"
    ]
    assert [path.name for path in target.glob("*climo*")] == ["climo_1979.h5"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{target}: 120 images of 1979 to 1980" in result.stdout
    assert "1980 written and verified; 1979 kept" in result.stdout
    assert f"{target}: 60 images, " in result.stderr


def test_a_reader_that_leaves_early_is_no_crash(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    command = f"{shlex.join(HPCAI500)} data check ic {root} --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout == "{"
    assert "Traceback" not in result.stderr


def test_the_command_does_not_load_torch() -> None:
    script = "import sys, hpcai500.data.command; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_in_a_destructor_ends_the_command_all_the_same(number: signal.Signals) -> None:
    script = """
import os, signal, sys, time
from hpcai500.data import command
from hpcai500.job_options import SetOptions

class Thing:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))

def run(chosen):
    Thing()
    time.sleep(600)

command.COMMANDS["check", "ic"] = SetOptions, run
sys.exit(command.main(["check", "ic", '{"dir": "x"}']))
"""
    command = [sys.executable, "-c", script, str(int(number))]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 128 + number
    assert ("interrupted: " in result.stderr) == (number == signal.SIGINT)
