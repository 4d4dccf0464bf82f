"""`python -m hpcai500.data make ewa`: a sentence or one JSON document on stdout, mistakes in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcai500.data.climate.years import CLASSES
from hpcai500.data.command import main
from hpcai500.data.derived import MANIFEST

SMALL = ["--years", "1979-1980", "--images-per-year", "3", "--height", "64", "--width", "96", "--workers", "1"]


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_result_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["make", "ewa", str(tmp_path), *SMALL]) == 0
    out, err = capsys.readouterr()
    labels = np.concatenate([h5py.File(tmp_path / f"climo_{year}.h5")["boxes"][..., 4] for year in (1979, 1980)])
    boxes = int((labels >= 0).sum())
    assert out == f"{tmp_path}: 6 images of 64 x 96 in 2 years, {boxes} boxes (2 years written now)\n"
    assert err == ""


def test_json_is_exactly_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--layout", "shipped", "--class-shares", "0,0,1,1", "--json"]
    assert main(["make", "ewa", str(tmp_path), *options]) == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made) == {"years", "images", "boxes", "written"}
    assert (made["years"], made["images"], made["written"]) == ([1979, 1980], 6, 2)
    assert tuple(made["boxes"]) == CLASSES
    counts = list(made["boxes"].values())
    assert counts[:2] == [0, 0]
    assert min(counts[2:]) > 0
    main(["make", "ewa", str(tmp_path), *options])
    assert json.loads(capsys.readouterr().out) == made | {"written": 0}


def test_one_year_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["make", "ewa", str(tmp_path), *SMALL, "--years", "2001"])
    assert "in 1 years" in capsys.readouterr().out
    assert (tmp_path / "climo_2001.h5").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--years", "last"], "'last' are no years: write 1979 or 1979-1981"),
        (["--years", "1981-1979"], "the earlier first"),
        (["--height", "32"], "choose 64 to 16384"),
        (["--class-shares", "a,b"], "write four numbers as in 0.1,0.4,0.4,0.1"),
        (["--class-shares", "1,1"], "one number for each of tropical depression"),
        (["--layout", "gzip"], "invalid choice: 'gzip'"),
        (["--image-per-year", "3"], "did you mean --images-per-year?"),
        (["--workers", "0"], "--workers must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_64(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make", "ewa", str(tmp_path / "set"), *options]) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hpcai500: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "set").exists()


def test_help_explains_layouts_and_classes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["make", "ewa", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: hpcai500 data make ewa" in text
    assert "atmospheric river (default: 0.06,0.43,0.46,0.05)" in text
    assert "shipped: as ExtremeWeather ships" in text


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_whole_years_only(tmp_path: Path, sent: signal.Signals, code: int, workers: str) -> None:
    root = tmp_path / "set"
    command = [sys.executable, "-m", "hpcai500.data", "make", "ewa", str(root), *SMALL]
    options = ["--years", "1000-2999", "--workers", workers]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while sum(1 for _ in root.glob("climo_*.h5")) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    # As a terminal does: the whole group gets the signal, the parent as well as its processes.
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    years = sorted(path.name for path in root.glob("climo_*.h5"))
    assert len(years) >= 3
    assert sorted(path.name for path in root.iterdir()) == [MANIFEST, *years]
    for name in years:
        with h5py.File(root / name) as file:
            assert file["boxes"].shape == (3, 15, 5)
            assert np.isfinite(file["images"][:]).all()
