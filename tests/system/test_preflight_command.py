"""`hpcai500 doctor` as it measures: a document whatever comes, and nothing started where nothing can run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcai500.system.checks import MEASURED

DOCTOR = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())", "doctor"]
ON_CPU = ["--set", "accelerator.device=cpu"]


def doctor(
    folder: Path, *arguments: str, python: Path = Path(sys.executable), **more: str
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, checks by name, stderr."""
    command = [python, *DOCTOR[1:], *arguments, "--json"]
    environment = os.environ | more
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, {check["name"]: check for check in json.loads(ended.stdout)["checks"]}, ended.stderr


def test_a_data_set_is_read_and_what_is_broken_in_it_fails_the_command(images: Path, tmp_path: Path) -> None:
    files = tmp_path / "set"
    for split in ("train", "val"):
        for folder in sorted((images / split).iterdir()):
            (files / split / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir()):
                (files / split / folder.name / file.name).write_bytes(file.read_bytes())
    broken = sorted(files.glob("train/*/*"))[0]
    broken.write_bytes(b"no image")
    code, checks, said = doctor(tmp_path, "ic", "--recipe", "ic/smoke", "--data", str(files), "--out", "record")
    assert code == 69
    assert {name for name, check in checks.items() if check["status"] == "fail"} == {"reading"}
    assert f"1 of 33 files broken: {broken.relative_to(files)}: " in checks["reading"]["detail"]
    assert checks["reading"]["fix"] == f"copy them again; `hpcai500 data check ic {files}` finds all of them"
    assert [name for name in checks if name in MEASURED] == list(MEASURED)
    assert checks["GEMM"]["detail"].startswith("right; ")
    assert checks["disk"]["detail"].startswith(f"{tmp_path} has ")
    assert "hpcai500: doctor: GEMM (6 of 11)" in said
    # Nothing is left behind: neither record nor cache.
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="this processor has no AVX2")
def test_convolutions_that_this_machine_gets_wrong_fail_the_command(tmp_path: Path) -> None:
    narrow = ["--recipe", "ic/smoke", "--set", "workload.width=4"]
    code, checks, _ = doctor(tmp_path, "ic", *narrow, *ON_CPU, ONEDNN_MAX_CPU_ISA="AVX2")
    assert code == 69
    assert checks["convolutions"]["status"] == "fail"
    assert "fp32, NHWC: the convolution of 4 to 8 channels, 1x1, stride 2" in checks["convolutions"]["detail"]
    assert "--set framework.channels_last=false" in checks["convolutions"]["fix"]


def test_ctrl_c_prints_what_was_found_so_far(tmp_path: Path) -> None:
    # A pipe that nobody writes to: reading it takes until the end of patience.
    (tmp_path / "set" / "train" / "a").mkdir(parents=True)
    os.mkfifo(tmp_path / "set" / "train" / "a" / "1.JPEG")
    command = [*DOCTOR, "ic", "--recipe", "ic/smoke", "--data", "set"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=tmp_path)
        limit = time.monotonic() + 600
        while "doctor: reading" not in (tmp_path / "said").read_text():
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "pass  GEMM" in shown
    assert "fail  reading        stopped by Ctrl-C before it ended" in shown
    assert shown.splitlines()[-1] == "verdict fail"
    assert (tmp_path / "said").read_text().endswith("hpcai500: error: stopped by Ctrl-C: not all was measured\n")
