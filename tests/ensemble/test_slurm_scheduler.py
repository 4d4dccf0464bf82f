"""Slurm as a scheduler: what its programs answer (recorded, as in test_slurm_queue) becomes how members stand.

squeue, sacct, scancel are stand-ins here; tests/site has the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_ensemble_folder import planned

from hpcai500.ensemble.journal import Ensemble, append
from hpcai500.ensemble.slurm import SlurmScheduler, submissions
from hpcai500.ensemble.slurm_scripts import ELEMENTS
from hpcai500.errors import EnvironmentLacksError, RecordError, RunError
from hpcai500.launch.slurm.site import Site

Programs = Callable[..., SlurmScheduler]


def submitted(ensemble: Ensemble, jobs: list[str], members: list[int], after: str | None = None) -> Ensemble:
    told = {"scheduler": "slurm", "jobs": jobs, "members": members, "at_once": None, "exclude": [], "after": after}
    return append(ensemble, "submit", told)


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """A scheduler whose programs are these scripts; each call is written to the file `calls`."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def made(said: list[str] | None = None, **scripts: str) -> SlurmScheduler:
        for name, text in scripts.items():
            (folder / name).write_text(
                f'#!/bin/bash\nPATH=/usr/bin:/bin\necho "{name} $*" >>{tmp_path}/calls\n{text}\n'
            )
            (folder / name).chmod(0o755)
        environment = {"PATH": str(folder), "SQUEUE_USERS": "nobody", "HERE": str(tmp_path)}
        return SlurmScheduler(Site(), environment, (said if said is not None else []).append)

    return made


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_how_members_stand_is_asked_with_one_call_each(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 5), ["1", "2"], [0, 1, 2, 3, 4])
    scheduler = programs(
        squeue='[[ $SLURM_BITSTR_LEN == 0 && ! ${SQUEUE_USERS-} ]] && echo "1|3-4%2|PENDING||0|JobArrayTaskLimit|" '
        '&& echo "1|2|RUNNING|n2|1|None|"',
        sacct='[[ $TZ == UTC ]] && echo "1_0|COMPLETED|n1|0:0" && echo "1_1|FAILED|n1|1:0"',
    )
    jobs = scheduler.jobs(ensemble)
    assert [(job.state, job.hosts, job.restarts, job.reason) for job in jobs.values()] == [
        ("ended", ("n1",), 0, ""),
        ("failed", ("n1",), 0, "FAILED exit code 1"),
        ("running", ("n2",), 1, ""),
        ("waiting", (), 0, "JobArrayTaskLimit"),
        ("waiting", (), 0, "JobArrayTaskLimit"),
    ]
    assert [job.job for job in jobs.values()] == [f"1_{member}" for member in range(5)]
    assert [call.partition(" ")[0] for call in calls(tmp_path)] == ["squeue", "sacct"]
    assert ["--jobs=1 " in call for call in calls(tmp_path)] == [True, True]


def test_accounting_is_not_asked_for_what_the_queue_has_told(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 2), ["1", "2"], [0, 1])
    assert len(programs(squeue='echo "1|0-1|PENDING||0|None|"', sacct="exit 1").jobs(ensemble)) == 2
    assert len(calls(tmp_path)) == 1


@pytest.mark.parametrize("sacct", [None, 'echo "sacct: error: Slurm accounting storage is disabled" >&2; exit 1'])
def test_missing_accounting_is_said_once(programs: Programs, tmp_path: Path, sacct: str | None) -> None:
    ensemble = submitted(planned(tmp_path / "e", 2), ["1", "2"], [0, 1])
    said: list[str] = []
    scheduler = programs(said, squeue='echo "1|1|RUNNING|n1|0|None|"', **({"sacct": sacct} if sacct else {}))
    for _ in range(2):
        assert [job.state for job in scheduler.jobs(ensemble).values()] == ["unknown", "running"]
    (line,) = said
    assert line.startswith("accounting does not answer, so that squeue and the records alone tell: ")
    assert line.endswith("Slurm accounting storage is disabled" if sacct else "on a login node, not in the image")


def test_a_queue_that_has_forgotten_all_jobs_is_no_error(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 1), ["1", "2"], [0])
    scheduler = programs(
        squeue='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1',
        sacct='echo "1_0|NODE_FAIL|n1|0:0"; echo "1_0|TIMEOUT|n2|0:0"',
    )
    (job,) = scheduler.jobs(ensemble).values()
    assert (job.state, job.hosts, job.restarts, job.reason) == ("failed", ("n2",), 1, "TIMEOUT")


def test_a_controller_that_does_not_answer_is_told_in_its_words(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 1), ["1", "2"], [0])
    error = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(RunError, match=r"^squeue: slurm_load_jobs error: Unable to contact"):
        programs(squeue=f'echo "{error}" >&2; exit 1').jobs(ensemble)


def test_without_slurm_it_is_said_where_to_call_this(tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 1), ["1", "2"], [0])
    with pytest.raises(EnvironmentLacksError, match="no squeue here: call this where Slurm's commands are"):
        SlurmScheduler(Site(), {"PATH": "/nowhere"}).jobs(ensemble)


def test_nothing_is_asked_for_what_was_never_submitted(tmp_path: Path) -> None:
    assert SlurmScheduler(Site(), {"PATH": "/nowhere"}).jobs(planned(tmp_path / "e")) == {}


def test_a_member_is_where_it_was_submitted_last(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(submitted(planned(tmp_path / "e", 3), ["1", "2"], [0, 1, 2]), ["3", "4"], [1], after="2")
    scheduler = programs(squeue='echo "1|0-2|COMPLETED|n1|0|None|"; echo "3|1|RUNNING|n2|0|None|"')
    assert [job.job for job in scheduler.jobs(ensemble).values()] == ["1_0", "3_1", "1_2"]
    last = submissions(ensemble)[-1]
    assert (last.collector, last.after) == ("4", "2")


def test_members_of_many_arrays_are_found(programs: Programs, tmp_path: Path) -> None:
    many = 2 * ELEMENTS + 1
    ensemble = submitted(planned(tmp_path / "e", many), ["1", "2", "3", "4"], list(range(many)))
    scheduler = programs(squeue=f'for job in 1 2 3; do echo "$job|0-{ELEMENTS - 1}|PENDING||0|None|"; done')
    jobs = scheduler.jobs(ensemble)
    assert (len(jobs), jobs[2 * ELEMENTS].job, jobs[ELEMENTS - 1].job) == (many, "3_0", f"1_{ELEMENTS - 1}")


def test_what_was_cancelled_has_not_failed(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 2), ["1", "2"], [0, 1])
    ensemble = append(ensemble, "cancel", {"jobs": ["1", "2"]})
    scheduler = programs(squeue='echo "1|0|FAILED|n1|0|NonZeroExitCode|"; echo "1|N/A|CANCELLED||0|None|"', sacct="")
    assert [job.state for job in scheduler.jobs(ensemble).values()] == ["cancelled", "cancelled"]
    assert submissions(ensemble)[-1].is_cancelled


def test_a_journal_with_other_numbers_of_jobs_is_refused(tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 2), ["1", "2", "3"], [0, 1])
    with pytest.raises(RecordError, match="an event submit lacks something"):
        submissions(ensemble)


# A cluster of its own: a file holds what is in the queue, and scancel changes it.
QUEUE = 'cat "$HERE/queue" 2>/dev/null'
CANCEL = """
case "$*" in
    *--state=PENDING*) sed -i '/PENDING/d' "$HERE/queue" ;;
    *--signal=TERM*) [[ $HOLD ]] || sed -i '/RUNNING/d' "$HERE/queue" ;;
    2) sed -i '/^2|/d' "$HERE/queue" ;;
    *) : >"$HERE/queue" ;;
esac
"""


def test_cancelling_lets_what_runs_stop_with_a_checkpoint(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 4), ["1", "2"], [0, 1, 2, 3])
    rows = ["1|2-3|PENDING||0|None|", "1|0|RUNNING|n1|0|None|", "1|1|COMPLETING|n1|0|None|"]
    (tmp_path / "queue").write_text("\n".join([*rows, "2|N/A|PENDING||0|Dependency|", ""]))
    said: list[str] = []
    # The completing one ends by itself.
    scheduler = programs(said, squeue=f"{QUEUE}; sed -i /COMPLETING/d $HERE/queue", scancel=CANCEL)
    assert sorted(scheduler.cancel(ensemble)) == ["1_0", "1_1", "1_2", "1_3", "2"]
    cancels = [call for call in calls(tmp_path) if call.startswith("scancel")]
    assert cancels == ["scancel 2", "scancel --state=PENDING 1", "scancel --signal=TERM --batch 1_0"]
    assert said == ["1 members are asked to stop with a checkpoint: 1_0"]


def test_nothing_is_cancelled_where_nothing_is_left(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 1), ["1", "2"], [0])
    assert programs(squeue="", scancel="").cancel(ensemble) == []
    assert programs(squeue="", scancel="").cancel(planned(tmp_path / "other", 1)) == []
    assert [call.partition(" ")[0] for call in calls(tmp_path)] == ["squeue"]


def test_a_job_of_somebody_else_with_one_of_our_numbers_is_not_ours(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 1), ["1", "2"], [0])
    scheduler = programs(squeue='echo "1|0|RUNNING|n1|0|None|"', sacct="")
    scheduler.jobs(ensemble)
    mark = ensemble.identity[:12]
    assert f"--name=hpcai500-ic-member-{mark},hpcai500-ic-collect-{mark}" in calls(tmp_path)[0].split()
