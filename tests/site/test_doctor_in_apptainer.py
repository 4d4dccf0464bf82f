"""What doctor says in a real container, and that what it says to type helps.

The image is a folder with nothing in it: the system and our Python are bound into it from this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APPTAINER = ROOT / "scripts" / "apptainer"
HPCAI500 = Path(sys.executable).with_name("hpcai500")
Checks = dict[str, dict[str, str | None]]
Doctor = Callable[..., Checks]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below /tmp, of which a contained container sees nothing."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def doctor(folder: Path) -> Doctor:
    """`doctor(options of apptainer, arguments of doctor)`: the checks by name."""
    image = folder / "image"
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "var/tmp", "opt", "root", "home"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    needed = sorted({"/usr", sys.base_prefix, sys.prefix, str(ROOT)})

    def ask(options: list[str], *arguments: str) -> Checks:
        command = [str(APPTAINER), "--quiet", "exec", "--contain", "--no-home", "--cleanenv", "--pwd", "/opt"]
        command += [token for path in needed for token in ("--bind", path)]
        command += [*options, str(image), str(HPCAI500), "doctor", *arguments, "--quick", "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False)
        assert ended.returncode in (0, 69), ended.stderr
        found = json.loads(ended.stdout)
        assert (found["verdict"] == "fail") == (ended.returncode == 69)
        return {check["name"]: check for check in found["checks"]}

    return ask


def test_a_bind_that_is_missing_is_told_and_helps(doctor: Doctor, folder: Path) -> None:
    data = folder / "set"
    for part in ("train", "val"):
        (data / part).mkdir(parents=True)
    lacking = doctor([], "ic", "--data", str(data))["data"]
    assert (lacking["status"], lacking["detail"]) == ("fail", f"{data}: no such folder inside the container")
    told = re.match(r"add (--bind) (\S+): apptainer exec --bind \2 \S+/image hpcai500 ic --data", lacking["fix"] or "")
    assert told, lacking["fix"]
    assert doctor(list(told.groups()), "ic", "--data", str(data))["data"]["status"] == "pass"


def test_a_folder_that_no_container_shows_is_told_by_its_top(doctor: Doctor) -> None:
    lacking = doctor([], "ic", "--data", "/scratch-hpcai500/set", "--out", "/scratch-hpcai500/out")
    for name in ("data", "out"):
        assert "not visible inside the container" in (lacking[name]["detail"] or "")
        assert (lacking[name]["fix"] or "").startswith("add --bind /scratch-hpcai500: apptainer exec --bind /scratch-")


def test_an_image_is_no_place_for_a_record_and_a_bound_folder_is(doctor: Doctor, folder: Path) -> None:
    inside = doctor([], "ic")["out"]
    assert (inside["status"], inside["detail"]) == ("fail", "/opt: in the image, which is read-only")
    assert "--bind DIR --pwd DIR" in (inside["fix"] or "")
    (folder / "work").mkdir()
    bound = ["--bind", f"{folder / 'work'}:/work-hpcai500"]
    assert doctor([*bound, "--pwd", "/work-hpcai500"], "ic")["out"]["status"] == "pass"
    read_only = doctor([f"{bound[0]}", f"{bound[1]}:ro"], "ic", "--out", "/work-hpcai500/record")["out"]
    assert read_only["detail"] == "/work-hpcai500: read-only inside the container"


def test_a_record_in_the_containers_memory_is_warned_of(doctor: Doctor) -> None:
    found = doctor([], "ic", "--out", "/tmp/record")["out"]
    assert found["status"] == "warn"
    assert "the record is lost when the container or the node stops" in (found["detail"] or "")


def test_the_container_is_named_and_so_is_what_its_python_does_not_heed(doctor: Doctor) -> None:
    found = doctor(["--env", "PYTHONPATH=/from/the/host", "--env", "TMPDIR=/local/7"], "ic", "--out", "/tmp/record")
    assert found["container"]["detail"] == "apptainer, image, read-only; not an image of hpcai500"
    assert "PYTHONPATH is set but ignored" in (found["python"]["detail"] or "")
    assert "TMPDIR=/local/7: it does not exist" in (found["temporary"]["detail"] or "")
