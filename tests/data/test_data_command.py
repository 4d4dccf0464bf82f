"""`python -m hpcai500.data`: results on stdout, everything else on stderr, exit codes that a harness can read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from image_tree import write_tree
from PIL import Image

from hpcai500.data.command import main
from hpcai500.data.derived import MANIFEST

SMALL = ["--classes", "2", "--train-per-class", "3", "--val-per-class", "2", "--workers", "1"]


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_make_then_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["make", "ic", str(tmp_path), *SMALL]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}: 6 training and 4 validation images of 2 classes (10 written now)\n"
    assert err == ""
    assert main(["check", "ic", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "images               6 train, 4 val" in out
    assert "01-cross-plain  3 train, 2 val" in out
    assert out.endswith("PASS: every file can be trained on\n")
    assert err == ""


def test_json_is_exactly_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["make", "ic", str(tmp_path), *SMALL, "--json"])
    made = json.loads(capsys.readouterr().out)
    assert made == {
        "fingerprint": made["fingerprint"],
        "samples": {"train": 6, "val": 4},
        "classes": 2,
        "written": 10,
    }
    main(["check", "ic", str(tmp_path), "--json"])
    checked = json.loads(capsys.readouterr().out)
    assert checked["fingerprint"] == made["fingerprint"]
    assert checked["broken"] == []


def test_a_broken_file_is_listed_and_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_tree(tmp_path / "set")
    (root / "train/cat/cat_1.JPEG").write_bytes(b"")
    (root / "val/dog/photo.png").write_bytes((root / "val/dog/dog_0.JPEG").read_bytes())
    (root / "val/dog/notes.txt").write_text("ignored")
    assert main(["check", "ic", str(root)]) == 64
    out = capsys.readouterr().out
    assert "broken\n  train/cat/cat_1.JPEG  truncated: the file is empty\n" in out
    assert "note: 1 files in class folders are no images by their name and are ignored\n" in out
    assert out.endswith("FAIL: broken files: 1\n")
    assert main(["check", "ic", str(root), "--json"]) == 64
    assert json.loads(capsys.readouterr().out)["broken"] == [
        {"path": "train/cat/cat_1.JPEG", "reason": "truncated: the file is empty"}
    ]


def test_many_findings_are_shortened_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_tree(tmp_path / "set")
    for number in range(30):
        (root / f"train/cat/empty_{number}.jpg").write_bytes(b"")
    assert main(["check", "ic", str(root)]) == 64
    assert "and 10 more" in capsys.readouterr().out
    main(["check", "ic", str(root), "--json"])
    assert len(json.loads(capsys.readouterr().out)["broken"]) == 30


def test_a_name_that_is_not_utf8_can_be_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_tree(tmp_path / "set")
    (root / "train/cat" / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"")
    assert main(["check", "ic", str(root)]) == 64
    assert "train/cat/caf\\udce9.jpg  truncated" in capsys.readouterr().out
    main(["check", "ic", str(root), "--json"])
    path = json.loads(capsys.readouterr().out)["broken"][0]["path"]
    assert os.fsencode(path) == b"train/cat/caf\xe9.jpg"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: make|check"),
        (["mkae", "ic", "d"], "invalid choice: 'mkae'"),
        (["make", "ewq", "d"], "invalid choice: 'ewq'"),
        (["make", "ic"], "the following arguments are required: DIR"),
        (["make", "ic", "d", "--clases", "3"], "did you mean --classes?"),
        (["make", "ic", "d", "--classes", "many"], "invalid int value: 'many'"),
        (["make", "ic", "d", "--classes", "99"], "choose 2 to 36"),
        (["make", "ic", "d", "--workers", "0"], "--workers must be at least 1"),
        (["check", "ic", "d", "--jsn"], "did you mean --json?"),
        (["check", "ic", "nowhere"], "no data set at nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_64(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hpcai500: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("arguments", [[], ["make"], ["make", "ic"], ["check", "ic"]])
def test_help_explains_and_succeeds(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: hpcai500 data {' '.join(arguments)}".rstrip())


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_leaves_whole_files_only(tmp_path: Path, sent: signal.Signals, code: int, workers: str) -> None:
    root = tmp_path / "set"
    command = [sys.executable, "-m", "hpcai500.data", "make", "ic", str(root)]
    options = ["--train-per-class", "5000", "--workers", workers]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while sum(1 for _ in root.glob("*/*/*.JPEG")) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    # As a terminal does: the whole group gets the signal, the parent as well as its processes.
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    if sent is signal.SIGINT:
        assert err == "hpcai500: interrupted: finished files are kept, none is half written; the same command goes on\n"
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [MANIFEST]
    files = list(root.glob("*/*/*.JPEG"))
    assert len(files) >= 20
    for path in files:
        Image.open(path).load()


def test_a_reader_that_leaves_early_is_no_crash(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    command = f"{sys.executable} -m hpcai500.data check ic {root} --json | head -c 1"
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

class Thing:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))

def run(chosen):
    Thing()
    time.sleep(60)

def add_check(parser):
    parser.set_defaults(run=run)

command.WORKLOADS = (type("Workload", (), {"NAME": "ic", "HELP": "", "add_check": staticmethod(add_check)}),)
sys.exit(command.main(["check", "ic"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(int(number))], check=False, capture_output=True, text=True, timeout=50
    )
    assert result.returncode == 128 + number
    assert ("interrupted: " in result.stderr) == (number == signal.SIGINT)
