"""The status of members that are really trained here: as they go on, killed, and done."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

from test_local_run import descendants, planned

from hpcai500.ensemble.journal import Ensemble
from hpcai500.ensemble.local import Jobs, RunOrder, run_ensemble
from hpcai500.ensemble.members import read_failures
from hpcai500.ensemble.status import Live, Status, Watch
from hpcai500.errors import ExitCode
from hpcai500.run_progress import PROGRESS, parse_progress


def test_a_real_member_is_seen_running_killed_and_done(images: Path, tmp_path: Path) -> None:
    ensemble, stream = planned(tmp_path / "e", images, 1, "problem.epochs=120"), io.StringIO()
    seen: list[Status] = []
    killed: list[int] = []
    with Live(ensemble, 1, stream) as live:

        def look(now: Ensemble, jobs: Jobs) -> None:
            live.update(jobs)
            seen.append(Watch(now.path, {}).look_at_all())
            row = seen[-1].rows[0]
            if row.epochs_done and not killed:
                killed.extend(descendants(int(jobs[0].job.removeprefix("process-"))))
                for process in killed:
                    os.kill(process, signal.SIGKILL)

        end = run_ensemble(RunOrder(tmp_path / "e"), look)
    assert not end.failed
    states = list(dict.fromkeys(status.rows[0].state for status in seen))
    assert killed
    assert states[:2] == ["waiting", "running"]
    # For a moment `failed`, or `stopped` with its checkpoint, until it is tried again.
    assert set(states) <= {"waiting", "running", "stopped", "failed", "lost", "done"}
    ((failure,), _) = read_failures(ensemble.folder(0))
    assert failure.job == end.ensemble.events[-1]["value"]["jobs"][0]
    last = Watch(tmp_path / "e", {}).look_at_all()
    row = last.rows[0]
    told = parse_progress((ensemble.folder(0) / "trial-01" / PROGRESS).read_bytes(), PROGRESS)
    assert (told.phase, told.epochs_done, told.quality) == ("ended", 120, row.quality)
    assert (row.state, row.epoch, row.epochs_done, row.steps) == ("done", 120, 120, 5)
    assert row.quality is not None
    assert row.images_per_second
    assert (last.exit_code, last.is_going_on, last.progress) == (ExitCode.PASS, False, 1.0)
    assert "1 of 1 done; 100 % of all epochs" in stream.getvalue()
