"""A campaign as a job of a real Slurm, whose accounting is the second witness of when and where it ran."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from builders.runs import TINY
from hosts import ROUTER
from slurm import Slurm

from hpcai500.campaign.journal import read_campaign

HPCAI500 = str(Path(sys.executable).with_name("hpcai500"))
SETTINGS = (*TINY, "hardware.nodes=2", "communication.backend=torch", "hyperparameters.batch_size=4")
# sacct is told seconds after a job's end.
LAG_SECONDS = 30


def hpcai500(slurm: Slurm, *words: str | Path) -> tuple[str, int]:
    """Output and exit code of a command on the host where people log in."""
    environment = {"SLURM_CONF": str(slurm.site.folder / "slurm" / "slurm.conf")}
    return slurm.site.attempt(ROUTER, [HPCAI500, *words], environment=environment)


def planned(slurm: Slurm, images: Path, folder: Path) -> Path:
    """A campaign of two tiny trials on two nodes."""
    changes = [word for text in SETTINGS for word in ("--set", text)]
    words: Sequence[str | Path] = [
        "campaign",
        "init",
        folder,
        "--recipe",
        "ic/smoke",
        "--trials",
        "2",
        "--data",
        images,
    ]
    output, code = hpcai500(slurm, *words, *changes)
    assert code == 0, output
    return folder


def run_as_job(slurm: Slurm, campaign: Path) -> str:
    """Run it; returns the number of the job."""
    script = campaign.with_name("job.sh")
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nexport OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0\n"
        f"exec srun --ntasks=2 --mpi=none {HPCAI500} campaign run {campaign}\n"
    )
    job = slurm.sbatch(script, environment={"PATH": os.environ["PATH"]})
    output = script.with_name(f"slurm-{job.number}.out")
    assert job.wait() == "COMPLETED", output.read_text()
    limit = time.monotonic() + LAG_SECONDS
    while "COMPLETED" not in slurm.call("sacct", "-X", "-j", job.number, "--noheader", "--format=State"):
        assert time.monotonic() < limit
        time.sleep(0.5)
    return job.number


def submitted(slurm: Slurm, campaign: Path) -> Path:
    """The signed submission of a campaign."""
    key, file = campaign.with_name("key"), campaign.with_name("submission.zip")
    slurm.site.run(ROUTER, ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
    words = ["submit", campaign, "-o", file, "--system", "Lab", "--organisation", "Site", "--key", key]
    output, code = hpcai500(slurm, *words)
    assert code == 0, output
    return file


@pytest.fixture(scope="module")
def ran(slurm: Slurm, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A campaign that ran, and the number of its job."""
    campaign = planned(slurm, images, tmp_path_factory.mktemp("site") / "campaign")
    return campaign, run_as_job(slurm, campaign)


def accounting_of(file: Path, job: str) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        document: dict[str, Any] = json.loads(archive.read(f"accounting/{job}.json"))
    return document


def test_the_journal_names_the_job_of_every_attempt(ran: tuple[Path, str]) -> None:
    campaign, job = ran
    attempts = read_campaign(campaign).attempts
    assert [(attempt.trial, attempt.status, attempt.slurm_jobs) for attempt in attempts] == [
        (1, "done", (job,)),
        (2, "done", (job,)),
    ]


def test_a_submission_holds_what_accounting_says_and_verification_compares_it(
    slurm: Slurm, ran: tuple[Path, str]
) -> None:
    campaign, job = ran
    file = submitted(slurm, campaign)
    told = accounting_of(file, job)
    assert (told["job_id"], told["nodes"], told["node_list"], told["state"]) == (job, 2, "n[1-2]", "COMPLETED")
    begin, end = (datetime.fromisoformat(told[key]).timestamp() for key in ("start", "end"))
    for attempt in read_campaign(campaign).attempts:
        record = campaign / attempt.record / "events.jsonl"
        times = [json.loads(line)["time_ms"] / 1000 for line in record.read_text().splitlines()]
        assert begin - 1 <= times[0]
        assert times[-1] <= end + 1
    output, code = hpcai500(slurm, "verify", file, "--json")
    document = json.loads(output[output.index("{") :])
    assert (code, document["verdict"]) == (0, "verified"), output
    accounts = [finding for finding in document["findings"] if "accounting" in finding["name"]]
    assert [finding["severity"] for finding in accounts] == ["note"], accounts


def test_a_run_that_slurm_did_not_see_is_told(slurm: Slurm, ran: tuple[Path, str], tmp_path: Path) -> None:
    campaign, job = ran
    copy = tmp_path / "campaign"
    shutil.copytree(campaign, copy)
    journal = copy / "campaign.jsonl"
    assert f'"slurm_job_id":"{job}"' in journal.read_text()
    journal.write_text(journal.read_text().replace(f'"slurm_job_id":"{job}"', '"slurm_job_id":"4000000"'))
    output, code = hpcai500(slurm, "campaign", "status", copy)
    assert code == 64, output
    assert "the chain is broken here" in output
