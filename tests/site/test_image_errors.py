"""What goes wrong when a container is started, and the line to type that the image answers with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from image import Image

Checks = dict[str, dict[str, str]]


def doctor(image: Image, *words: str | Path, environment: dict[str, str] | None = None) -> tuple[int, Checks]:
    """Exit code, and the checks of `doctor --json` by name; `words` come after `apptainer run`."""
    ended = image.run("run", *words, "--json", environment=environment)
    document = json.loads(ended.out)
    return ended.code, {check["name"]: check for check in document["checks"]}


def test_a_data_folder_that_is_not_bound_is_told_with_the_bind(image: Image) -> None:
    (image.folder / "scratch" / "imagenet").mkdir(parents=True, exist_ok=True)
    data = image.folder / "scratch" / "imagenet"
    on_cpus = ("--set", "accelerator.device=cpu")
    ended = image.run("run", "--containall", "IMAGE", "ic", "--data", data, "--out", "/tmp/run", *on_cpus)
    assert ended.code == 64, ended.said
    assert "--bind" in ended.err, ended.said
    assert str(data) in ended.err


def test_an_output_folder_that_cannot_be_written_is_told(image: Image) -> None:
    ended = image.run("run", "IMAGE", "ic", "--out", "/opt/hpcai500/run")
    assert ended.code in (64, 69), ended.said
    assert "read-only" in ended.err.lower(), ended.said
    assert "--bind" in ended.err or "--out" in ended.err


def test_a_working_folder_that_cannot_be_written_is_told(image: Image) -> None:
    ended = image.run("run", "--pwd", "/opt", "IMAGE", "ic")
    assert ended.code in (64, 69), ended.said
    assert "--pwd" in ended.err or "--out" in ended.err, ended.said


def test_no_gpu_and_a_cpu_image_never_become_a_silent_run_on_the_cpu(image: Image) -> None:
    ended = image.run("run", "IMAGE", "ic", "--set", "accelerator.device=cuda", "--out", "gpu")
    assert ended.code == 69, ended.said
    assert "HPCAI500 RESULT PASS" not in ended.out
    assert "hpcai500-cuda.sif" in ended.err, ended.said


def test_a_forgotten_nv_is_told_on_a_node_with_a_gpu(image: Image) -> None:
    """The device file is a mock: no machine of CI has a GPU."""
    device = Path("/dev/nvidia0")
    if device.exists():
        pytest.skip("this machine has a CUDA device")
    node = ["mount", "--bind", "/dev/null", device]
    device.touch()
    try:
        subprocess.run(node, check=True)
        code, checks = doctor(image, "IMAGE", "doctor", "ic", "--quick", "--set", "accelerator.device=cuda")
        subprocess.run(["umount", device], check=True)
    finally:
        device.unlink()
    assert code == 69
    told = " ".join(f"{check['detail']} {check['fix']}" for check in checks.values() if check["status"] == "fail")
    assert "--nv" in told, checks


def test_a_step_of_another_process_manager_is_told(image: Image) -> None:
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "PMI_RANK": "0",
        "PMI_SIZE": "2",
        "PMI_FD": "3",
    }
    horovod = ["--set", "communication.backend=horovod"]
    code, checks = doctor(image, "IMAGE", "doctor", "ic", "--quick", *horovod, environment=step)
    told = " ".join(f"{check['detail']} {check['fix']}" for check in checks.values() if check["status"] != "pass")
    assert "--mpi=pmix" in told, checks
    assert code == 69


def test_a_healthy_container_has_nothing_to_complain_of(image: Image) -> None:
    code, checks = doctor(image, "--bind", f"{image.path}:/image.sif:ro", "IMAGE", "doctor")
    assert code == 0, checks
    assert not [check for check in checks.values() if check["status"] == "fail"]


def test_doctor_is_an_app_too(image: Image) -> None:
    ended = image.run("run", "--app", "doctor", "IMAGE", "--quick")
    assert ended.code == 0, ended.said
    assert "verdict" in ended.out


def test_a_typo_is_one_line(image: Image) -> None:
    ended = image.run("run", "IMAGE", "ic", "--tirals", "2")
    assert ended.code == 64, ended.said
    assert "No such option: --tirals" in ended.err
    assert len(ended.err.strip().splitlines()) == 1
