"""`hpcai500 data check ewa` and `data repack ewa`: results on stdout, one line for what is wrong, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sample_years import SHIPPED, boxes_of, damage_chunk, images_of, swapped, write_year

from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.command import main


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for year in (1979, 1980):
        write_year(tmp_path / "source", year, **SHIPPED)
    return tmp_path / "source"


def test_check_then_repack_then_check(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "target"
    assert main(["check", "ewa", str(source), "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "images               24 of 24 x 36, 16 channels" in out
    assert "1979      12" in out
    assert "chunks of 5 x 1 x 6 x 9, deflate; 256 an image" in out
    assert "channels, years 1979 to 1980" in out
    assert out.endswith("PASS: the set can be trained on\n")
    assert err == ""
    fingerprint = load_climate_index(source).fingerprint
    assert main(["repack", "ewa", str(source), str(target), "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == (
        f"{target}: 24 images of 1979 to 1980, 1.4 MB; 1979 to 1980 written, read back and equal; "
        f"fingerprint {fingerprint}\n"
    )
    assert err.startswith(f"hpcai500: {target}: 24 images, 5.52 MB to write (5.52 MB needed, ")
    assert err.count("\n") == 1
    assert main(["repack", "ewa", str(source), str(target), "--workers", "1"]) == 0
    out, _ = capsys.readouterr()
    assert (
        out == f"{target}: 24 images of 1979 to 1980, 1.4 MB; 1979 to 1980 kept as found; fingerprint {fingerprint}\n"
    )
    assert main(["check", "ewa", str(target), "--workers", "1"]) == 0
    assert "an image is one uncompressed piece of its file, as it should be" in capsys.readouterr().out


def test_json_is_exactly_one_document(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["repack", "ewa", str(source), str(tmp_path / "target"), "--workers", "1", "--json"]
    assert main([*arguments, "--estimate"]) == 0
    estimate = json.loads(capsys.readouterr().out)["estimate"]
    assert estimate["images"] == 24
    assert not (tmp_path / "target").exists()
    assert main([*arguments, "--filter", "lzf", "--years", "1980"]) == 0
    repacked = json.loads(capsys.readouterr().out)
    assert (repacked["written"], repacked["samples"]) == ([1980], 12)
    assert main(["check", "ewa", str(tmp_path / "target"), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["fingerprint"] == repacked["fingerprint"]
    assert checked["content_fingerprint"] == repacked["content_fingerprint"]
    assert checked["years"][0]["storage"]["filters"] == ["shuffle", "lzf"]
    assert checked["broken"] == []


def test_what_is_wrong_is_listed_and_the_exit_code_says_so(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage_chunk(source / "climo_1980.h5", 5)
    write_year(source, 1981, boxes=swapped(boxes_of(12)))
    assert main(["check", "ewa", str(source), "--years", "1979-1982", "--workers", "1"]) == 64
    out = capsys.readouterr().out
    assert "broken\n  climo_1980.h5  dataset images, images 0 to 4, channel PRECT, chunk (0, 0, 1, 1): " in out
    assert "  climo_1981.h5  dataset boxes: the variant with x and y swapped" in out
    assert "  climo_1982.h5  missing: no such file" in out
    assert out.endswith("FAIL: 3 findings under broken\n")


def test_many_findings_are_shortened_for_people(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for chunk in range(30):
        damage_chunk(source / "climo_1980.h5", chunk)
    assert main(["check", "ewa", str(source), "--workers", "1"]) == 64
    assert "and 10 more    --json lists all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "ewa", "nowhere"], "no data set at nowhere: No such file or directory"),
        (
            ["check", "ewa", "source", "--years", "1979-x"],
            "argument --years: '1979-x' are no years: write 1979 or 1979-1981; see",
        ),
        (["check", "ewa", "source", "--workers", "0"], "--workers must be at least 1"),
        (["repack", "ewa", "source"], "the following arguments are required: DST"),
        (["repack", "ic", "a", "b"], "invalid choice: 'ic'"),
        (["repack", "ewa", "source", "t", "--filter", "gzip"], "invalid choice: 'gzip'"),
        (["repack", "ewa", "source", "t", "--convert"], "did you mean --convert-boxes?"),
        (["repack", "ewa", "source", "source"], "the set is there already"),
        (["repack", "ewa", "source", "source/in"], "inside the set source"),
        (["repack", "ewa", "source", "t", "--years", "1985-1987"], "no file for 1985 to 1987; there are 1979 to 1980"),
        (["repack", "ewa", "source", "source/climo_1979.h5/t"], "inside the set source"),
        (["repack", "ewa", "source", "file"], "file: not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_64(
    arguments: list[str],
    message: str,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(source.parent)
    (source.parent / "file").touch()
    assert main(arguments) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hpcai500: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("arguments", [["repack"], ["check", "ewa"], ["repack", "ewa"]])
def test_help_explains_and_succeeds(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: hpcai500 data {' '.join(arguments)}")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_is_one_line_and_the_next_call_goes_on(tmp_path: Path, workers: str) -> None:
    for year in (1979, 1980):
        write_year(tmp_path / "source", year, images_of(60, 48, 72, seed=year), **SHIPPED)
    target = tmp_path / "target"
    script = "import sys, time; from hpcai500.data.climate import repack, values; values.BLOCK_BYTES = 1; "
    # However late the signal comes, the second year is not done: its disk takes a minute.
    slow = "sync = repack.sync; repack.sync = lambda path: (time.sleep(60 * ('1980' in path.name)), sync(path)); "
    main_ = "from hpcai500.data.command import main; sys.exit(main(sys.argv[1:]))"
    words = ["repack", "ewa", str(tmp_path / "source"), str(target), "--workers", workers]
    command, slowed = ([sys.executable, "-c", script + how + main_, *words] for how in ("", slow))
    process = subprocess.Popen(slowed, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (target / ".climo_1980.h5.part").exists():
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line.partition(",")[0] for line in err.splitlines()[1:]] == [
        "hpcai500: interrupted: finished files are kept"
    ]
    assert [path.name for path in target.glob("*climo*")] == ["climo_1979.h5"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{target}: 120 images of 1979 to 1980" in result.stdout
    assert "1980 written, read back and equal; 1979 kept as found" in result.stdout
    assert f"{target}: 60 images, " in result.stderr


def test_the_command_does_not_load_torch() -> None:
    script = "import sys, hpcai500.data.ewa_command; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
