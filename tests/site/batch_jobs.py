"""Rendered scripts as jobs of a site's Slurm: submitted, watched, and what they left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.runs import TINY
from slurm import Job, Slurm

from hpcai500.launch.slurm.script import RenderRequest, plan_job, render
from hpcai500.record import Record, read_record


@dataclass(frozen=True)
class Batch:
    """A job that runs a tiny `ic`, and the folder that it runs in."""

    job: Job
    folder: Path

    @property
    def output(self) -> str:
        """What the job printed, every time it ran."""
        path = self.folder / f"hpcai500-ic-{self.job.number}.out"
        return path.read_text() if path.exists() else ""

    @property
    def path(self) -> Path:
        """Folder of its record."""
        return self.folder / "runs" / f"ic-{self.job.number}"

    @property
    def record(self) -> Record:
        """Its record."""
        return read_record(self.path)

    def history(self, *keys: str) -> list[str]:
        """Those of the record's events, in order."""
        return [event["key"] for event in self.record.events if event["key"] in keys]

    def wait_until_it_trains(self, timeout: float = 60) -> None:
        """Wait for the end of an epoch.

        Raises:
            AssertionError: none has ended after `timeout` seconds.
        """
        limit = time.monotonic() + timeout
        events = self.path / "events.jsonl"
        while not (events.exists() and '"epoch_stop"' in events.read_text()):
            assert time.monotonic() < limit, self.output
            time.sleep(0.1)


def submit(
    slurm: Slurm,
    folder: Path,
    site: str,
    data: Path,
    *settings: str,
    nodes: int = 2,
    words: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Batch:
    """Render a tiny run for the site file with the text `site`, and submit it in `folder`.

    Args:
        data: the images.
        settings: changes of the recipe.
        words: what follows the script on sbatch's command line.
        environment: more variables for sbatch; `hpcai500` of this environment is on PATH.
    """
    file, script = folder / "site.toml", folder / "job.sh"
    file.write_text(site)
    overrides = [*TINY, "accelerator.device=cpu", *settings]
    request = RenderRequest("ic", nodes, str(file), "ic/smoke", data, None, overrides, rendered_by=["test"])
    script.write_text(render(plan_job(request).job))
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(environment or {})}
    return Batch(slurm.sbatch(script, *words, environment=variables), folder)
