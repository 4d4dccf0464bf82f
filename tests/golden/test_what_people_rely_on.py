"""What people and programs rely on: documents, stable lines, exit codes and scripts, held against files that are kept.

`samples-0.2.0.tar.xz` is what version 0.2.0 wrote of real, tiny runs on two cores: a record of each benchmark, a
campaign, its submission, an ensemble, a scaling and a profile (without checkpoints, pictures and traces). Each case
below runs one command on them. `HPCAI500_WRITE_GOLDEN=1 pytest tests/golden` writes `expected/` anew, for a change that
is meant; its diff is then what users will see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from builders.commands import Typed, typed
from builders.snapshots import require_snapshot

from hpcai500 import __version__

__all__ = ["typed"]

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"

CASES = {
    "score": "score ic",
    "score-json": "score ic --json",
    "score-weather": "score ewa",
    "score-weather-json": "score ewa --json",
    "score-series": "score campaign/trial-01 campaign/trial-02 campaign/trial-03",
    "score-series-json": "score campaign/trial-01 campaign/trial-02 campaign/trial-03 --json",
    "score-later-edition": "score ic --edition v3.0 --json",
    "score-paper-count": "score ewa --convention paper --json",
    "score-nothing": "score nowhere",
    "score-damaged": "score damaged",
    "rules-recipe": "rules ic/reference",
    "rules-recipe-json": "rules ewa/reference --json",
    "rules-change": "rules ic/reference --set hyperparameters.momentum=0.8 --json",
    "rules-level": "rules ic/reference --set hyperparameters.momentum=0.8 --level hardware",
    "rules-record": "rules ic --json",
    "rules-campaign": "rules campaign",
    "rules-mistake": "rules ic/reference --set hyperparameters.momentun=0.8",
    "compare": "compare ic campaign/trial-01",
    "compare-json": "compare ic campaign/trial-01 --json",
    "timeline": "timeline ic",
    "timeline-json": "timeline ic --json",
    "mllog": "export ic --mllog",
    "mllog-weather": "export ewa --mllog",
    "system": "system ic",
    "system-json": "system ic --json",
    "system-mlperf": "system ic --format mlperf",
    "roofline": "roofline ic --machine machine.toml",
    "roofline-json": "roofline ic --machine machine.toml --json",
    "roofline-other-machine": "roofline ic --machine v100-64",
    "roofline-published": "roofline --machine v100-64 --json",
    "scale-records": "scale --records scale/procs-1 scale/procs-2",
    "scale-records-json": "scale --records scale/procs-1 scale/procs-2 --json",
    "predict": "scale ic --predict 64 --machine v100-64 --json",
    "estimate": "ic --estimate --machine v100-64",
    "estimate-json": "ewa --estimate --machine v100-64 --json",
    "flops": "flops ic --json",
    "flops-weather": "flops ewa",
    "verify": "verify submission.zip",
    "verify-json": "verify submission.zip --json",
    "verify-registered": "verify submission.zip --registered " + "0" * 64,
    "verify-torn": "verify torn.zip",
    "rank": "rank submission.zip",
    "rank-json": "rank submission.zip --json",
    "rank-published": "rank --published --json",
    "accept": "accept contract.toml campaign",
    "accept-json": "accept contract.toml ic campaign --json",
    "accept-baseline": "accept --baseline campaign/trial-01 campaign/trial-02 --json",
    "accept-example": "accept --example",
    "accept-mistake": "accept mistaken.toml campaign",
    "replicate": "replicate submission.zip --data /nowhere --json",
    "replicate-with": "replicate submission.zip --with campaign --json",
    "campaign-status": "campaign status campaign",
    "campaign-status-json": "campaign status campaign --json",
    "campaign-heads": "campaign heads campaign",
    "ensemble-status": "ensemble status ensemble",
    "ensemble-status-json": "ensemble status ensemble --json",
    "ensemble-collect": "ensemble collect ensemble",
    "ensemble-collect-json": "ensemble collect ensemble --json",
    "ensemble-submit": "ensemble submit ensemble --dry-run --site local",
    "slurm": "slurm render ic --recipe ic/reference --data /data/imagenet --nodes 4 --site site.toml",
    "slurm-campaign": "slurm render ewa --recipe ewa/reference --data /data/weather --nodes 2 --trials 7 --site local",
    "slurm-which-image": "slurm render ic --nodes 1",
    "slurm-example": "slurm example",
    "no-such-command": "scroe ic",
    "no-such-option": "score ic --jsno",
}
CONTRACT = """
title = "Golden"
[require]
rankable = false
[[criteria]]
metric = "images_per_second"
reference = 700
unit = "images/s"
lower = -0.05
[[criteria]]
metric = "time_to_quality_seconds"
reference = 1
unit = "h"
upper = 0.1
"""

MACHINE = """
name = "Golden"
source = "made up"
nodes = 1
accelerators_per_node = 2
[node]
accelerators = 2
peak_flops.fp32 = 100e9
ceilings."GEMM fp32" = 80e9
bandwidths.memory = 10e9
bandwidths.loopback = 1e9
bound = "loopback"
"""
SITE = """
[slurm]
partition = "gpu"
account = "project"
[node]
tasks = 4
gpus = 4
[launcher]
program = "mpirun"
modules = ["openmpi/4.1"]
[container]
image = "/apps/hpcai500.sif"
flags = ["--nv"]
"""
# What is of the moment: when a command was called, how long it took, which campaign was planned.
MOMENTS = re.compile(
    r'(?<=")(made|created|seconds|cpu_seconds|age_seconds|identity)(": )("[^"]*"|[0-9.e-]+)|[0-9.]+(?= s\)$)',
    re.MULTILINE,
)


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples, unpacked, with a damaged record, a torn submission and two contracts beside them."""
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(HERE / "samples-0.2.0.tar.xz") as archive:
        # Python before 3.11.4, such as that of Debian 12, has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    with zipfile.ZipFile(folder / "submission.zip", "w") as archive:
        for path in sorted((folder / "submission").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder / "submission").as_posix())
    shutil.copytree(folder / "ic", folder / "damaged")
    events = folder / "damaged" / "events.jsonl"
    events.write_text(events.read_text(encoding="utf-8").replace('"ic"', '"ewa"', 1), encoding="utf-8")
    (folder / "torn.zip").write_bytes((folder / "submission.zip").read_bytes()[:-100])
    texts = {"contract": CONTRACT, "mistaken": CONTRACT.replace("lower", "lowest"), "machine": MACHINE, "site": SITE}
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_command_answers_as_it_always_has(
    case: str, samples: Path, tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(samples, tmp_path / "folder"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "120", "LC_ALL": "C.UTF-8"}
    for name in os.environ.keys() - environment:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    words = CASES[case].split()
    # `flops` becomes another program, and a mistake may name the one that was called.
    if case.startswith(("flops", "no-such")):
        command = [sys.executable, "-m", "hpcai500.cli", *words]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        ended = typed(*words)
    said = f"--- said on the side\n{ended.stderr}--- exit code {ended.returncode}\n"
    found = f"$ hpcai500 {CASES[case]}\n{ended.stdout}{said}"
    found = re.sub(re.escape(str(folder)), "FOLDER", found).replace(__version__, "VERSION")
    found = MOMENTS.sub(lambda match: "NOW" if match[1] is None else f"{match[1]}{match[2]}NOW", found)
    require_snapshot(EXPECTED / f"{case}.txt", found)
