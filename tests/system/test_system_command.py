"""`hpcai500 system` as people and programs use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import train_arguments

from hpcai500 import train
from hpcai500.record import iterate, read_record

KEYS = {"cpu", "processor", "caches", "numa", "memory", "machine", "devices", "accelerators", "device_links", "driver",
        "network", "infiniband", "file_systems", "disks", "kernel_settings", "limits", "container", "software", "host",
        "operating_system", "kernel", "environment", "command", "absent", "slow_seconds", "raw"}  # fmt: skip


def hpcai500(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from hpcai500.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, check=False, env=os.environ
    )


def test_one_node_is_described_in_one_document_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from hpcai500.cli import main; code = main(); "
        "sys.exit(99 if {'torch', 'numpy', 'mpi4py'} & sys.modules.keys() else code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "system", "--json", "--data", "nowhere"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found.keys() == {"nodes", "installation", "differences"}
    (node,) = found["nodes"]
    assert node.keys() >= KEYS
    assert node["cores_available"] == len(os.sched_getaffinity(0))
    assert node["file_systems"]["out"]["path"] == str(tmp_path)
    assert node["file_systems"]["data"]["total_bytes"] > 0
    assert found["installation"]["package"]["version"]


def test_the_text_has_six_parts_and_the_other_format_mlperfs_names(tmp_path: Path) -> None:
    ended = hpcai500("system", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [line[:2] for line in ended.stdout.splitlines() if line[:1].isdigit()][1:] == [f"{n}." for n in range(1, 7)]
    ended = hpcai500("system", "--format", "mlperf", cwd=tmp_path)
    assert json.loads(ended.stdout)["number_of_nodes"] == "1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "xml"), "expected text or mlperf, got xml"),
        (("nowhere",), "not a record"),
        (("nowhere", "--procs", "2"), "leave out --procs"),
    ],
)
def test_what_cannot_be_described_is_64(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    ended = hpcai500("system", *arguments, cwd=tmp_path)
    assert ended.returncode == 64
    assert words in ended.stderr
    assert ended.stdout == ""


def test_ranks_of_one_host_are_one_node_that_torch_knows_more_of(tmp_path: Path) -> None:
    ended = hpcai500("system", "--procs", "2", "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    (node,) = found["nodes"]
    assert node.keys() >= KEYS
    assert node["software"]["torch_build"]
    assert node["file_systems"]["out"]["path"] == str(tmp_path)
    assert found["differences"] == []


def test_a_tiny_run_keeps_it_and_the_command_shows_it(images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    assert train.main(train_arguments(images, record, "problem.epochs=1")) == 0
    system = json.loads((record / "system.json").read_text())
    (node,) = system["nodes"]
    assert node.keys() >= KEYS
    assert node["raw"].keys() >= {"lscpu"}
    assert node["file_systems"]["out"]["path"] == str(record)
    assert not list(iterate(read_record(record).events, "system_differences"))
    shown = json.loads(hpcai500("system", str(record), "--json", cwd=tmp_path).stdout)
    assert shown == {**system, "differences": []}
    text = hpcai500("system", str(record), cwd=tmp_path).stdout
    assert text.startswith(f"1 node; this is {node['host']}\n")
