"""An ensemble under Slurm: what its programs tell of members, what is submitted, and what is cancelled.

squeue, sacct, scancel and sbatch are stand-ins here; tests/site has the real ones.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.runs import TINY
from fakes.slurm import planned
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.cli import main
from hpcai500.ensemble.journal import FAILURES, Ensemble, append, create_ensemble, read_ensemble
from hpcai500.ensemble.mapping import Shape, member_places
from hpcai500.ensemble.slurm import (
    SlurmScheduler,
    SubmitRequest,
    again_after,
    failures,
    last_site,
    plan_submission,
    submissions,
    warnings_of,
    write_submission,
)
from hpcai500.ensemble.slurm_scripts import ELEMENTS, Submission
from hpcai500.errors import DataError, EnvironmentLacksError, RecordError, RunError, UsageError
from hpcai500.launch.slurm.queue import Element, read_accounts, read_queue
from hpcai500.launch.slurm.site import Site
from hpcai500.recipe import load_recipe

# --- what squeue and sacct print of arrays, recorded from Slurm 22.05.8: pending elements in one line, and oddities


# Three elements run, one has come back and waits, the rest waits; another job waits behind them.
QUEUE = """\
1|49,64,81,100,121-123%7|PENDING||0|JobArrayTaskLimit|
1|4|PENDING||1|BeginTime|
1|36|RUNNING|n2|0|JobArrayTaskLimit|
1|0|COMPLETING|n[1-2]|1|None|
2|N/A|PENDING||0|Dependency|
"""
# A cancelled array: what ran has lines of its own, what waited one without a host.
ACCOUNTS = """\
1_0|REQUEUED|n1|0:0
1_1|COMPLETED|n1|0:0
1_0|COMPLETED|n2|0:0
1_2|FAILED|n2|1:0
1_49|CANCELLED by 0|n1|0:15
1_[49,64,81%7]|CANCELLED by 0|None assigned|0:0
2|COMPLETED|n1|0:0
"""


def test_a_compressed_line_stands_for_each_of_its_elements() -> None:
    queue = read_queue(QUEUE)
    tasks = sorted(task for job, task in queue if job == "1" and task is not None)
    assert tasks == [0, 4, 36, 49, 64, 81, 100, 121, 122, 123]
    assert queue["1", 122] == Element("1", 122, "waiting", "PENDING", (), 0, "JobArrayTaskLimit")
    assert queue["1", 4].restarts == 1
    assert queue["1", 0] == Element("1", 0, "running", "COMPLETING", ("n1", "n2"), 1, "")
    assert queue["2", None].state == "waiting"
    # Numbers with a step are counted by it.
    (low, *_, high) = read_queue("8|0-400:2|PENDING||0|JobHeldUser|").values()
    assert (low.task, high.task) == (0, 400)
    assert len(read_queue("8|0-400:2%3|PENDING||0|None|")) == 201


def test_runs_of_one_element_are_one_with_its_restarts_and_a_cancelled_rest_hides_none_that_ran() -> None:
    accounts = read_accounts(ACCOUNTS)
    assert accounts["1", 0] == Element("1", 0, "ended", "COMPLETED", ("n2",), 1)
    assert (accounts["1", 2].state, accounts["1", 2].reason) == ("failed", "exit code 1")
    assert accounts["2", None].state == "ended"
    assert (accounts["1", 49].state, accounts["1", 49].hosts) == ("cancelled", ("n1",))
    assert (accounts["1", 64].state, accounts["1", 64].hosts) == ("cancelled", ())


def test_a_state_that_we_do_not_know_is_unknown() -> None:
    (element,) = read_queue("1|0|DREAMING|n1|0|None|").values()
    assert element.state == "unknown"


@pytest.mark.parametrize(
    "line",
    ["slurm_load_jobs error: Unable to contact slurm controller", "1|0|RUNNING|n1|0", "x|0|RUNNING|n1|0|None|",
     "1|0-x|RUNNING|n1|0|None|", "1|3-1|PENDING||0|None|", "1|0-999999999|PENDING||0|None|",
     "1|0|\x1b[31m|n1|0|None|", "1|0|RUNNING|n1;rm -rf|0|None|", "1|0|RUNNING|n[1-|0|None|"],
)  # fmt: skip
def test_what_is_not_of_squeue_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(RunError, match=r"^squeue: "):
        read_queue(line)


@pytest.mark.parametrize(
    "line", ["", "1_0|COMPLETED|n1", "1_0.batch|COMPLETED|n1|0:0", "1_[0-|PENDING||0:0", "a|B|c|d"]
)
def test_what_is_not_of_sacct_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(RunError, match=r"^sacct: "):
        read_accounts(f"{line}\n")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    said = []
    for read in (read_queue, read_accounts):
        try:
            said += [element.job for element in read(text).values()]
        except RunError as error:
            said.append(str(error))
    assert all("\n" not in line for line in said)


# --- what they answer becomes how members stand


Programs = Callable[..., SlurmScheduler]


def submitted(ensemble: Ensemble, jobs: list[str], members: list[int], after: str | None = None) -> Ensemble:
    told = {"scheduler": "slurm", "jobs": jobs, "members": members, "at_once": None, "exclude": [], "after": after}
    return append(ensemble, "submit", told)


def of_array(folder: Path, members: int) -> Ensemble:
    """An ensemble whose members are the elements of job 1; job 2 collects them."""
    return submitted(planned(folder / "e", members), ["1", "2"], list(range(members)))


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
    ensemble = of_array(tmp_path, 5)
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


def test_nothing_is_asked_for_what_is_known_or_was_never_submitted(programs: Programs, tmp_path: Path) -> None:
    ensemble = of_array(tmp_path, 2)
    assert len(programs(squeue='echo "1|0-1|PENDING||0|None|"', sacct="exit 1").jobs(ensemble)) == 2
    assert len(calls(tmp_path)) == 1
    assert SlurmScheduler(Site(), {"PATH": "/nowhere"}).jobs(planned(tmp_path / "other")) == {}


@pytest.mark.parametrize("sacct", [None, 'echo "sacct: error: Slurm accounting storage is disabled" >&2; exit 1'])
def test_missing_accounting_is_said_once(programs: Programs, tmp_path: Path, sacct: str | None) -> None:
    ensemble = of_array(tmp_path, 2)
    said: list[str] = []
    scheduler = programs(said, squeue='echo "1|1|RUNNING|n1|0|None|"', **({"sacct": sacct} if sacct else {}))
    for _ in range(2):
        assert [job.state for job in scheduler.jobs(ensemble).values()] == ["unknown", "running"]
    (line,) = said
    assert line.startswith("accounting does not answer, so the state comes from squeue and the records only: ")
    assert line.endswith("Slurm accounting storage is disabled" if sacct else "on a login node, not in the image")


def test_a_queue_that_has_forgotten_all_jobs_is_no_error(programs: Programs, tmp_path: Path) -> None:
    ensemble = of_array(tmp_path, 1)
    scheduler = programs(
        squeue='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1',
        sacct='echo "1_0|NODE_FAIL|n1|0:0"; echo "1_0|TIMEOUT|n2|0:0"',
    )
    (job,) = scheduler.jobs(ensemble).values()
    assert (job.state, job.hosts, job.restarts, job.reason) == ("failed", ("n2",), 1, "TIMEOUT")


def test_a_controller_that_does_not_answer_or_is_not_there_is_told(programs: Programs, tmp_path: Path) -> None:
    ensemble = of_array(tmp_path, 1)
    error = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(RunError, match=r"^squeue: slurm_load_jobs error: Unable to contact"):
        programs(squeue=f'echo "{error}" >&2; exit 1').jobs(ensemble)
    with pytest.raises(EnvironmentLacksError, match="no squeue here: run this where Slurm's commands are"):
        SlurmScheduler(Site(), {"PATH": "/nowhere"}).jobs(ensemble)


def test_a_member_is_where_it_was_submitted_last(programs: Programs, tmp_path: Path) -> None:
    ensemble = submitted(of_array(tmp_path, 3), ["3", "4"], [1], after="2")
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
    ensemble = of_array(tmp_path, 2)
    ensemble = append(ensemble, "cancel", {"jobs": ["1", "2"]})
    scheduler = programs(squeue='echo "1|0|FAILED|n1|0|NonZeroExitCode|"; echo "1|N/A|CANCELLED||0|None|"', sacct="")
    assert [job.state for job in scheduler.jobs(ensemble).values()] == ["cancelled", "cancelled"]
    assert submissions(ensemble)[-1].is_cancelled


def test_a_journal_with_other_numbers_of_jobs_is_refused(tmp_path: Path) -> None:
    ensemble = submitted(planned(tmp_path / "e", 2), ["1", "2", "3"], [0, 1])
    with pytest.raises(RecordError, match="an event submit is malformed"):
        submissions(ensemble)


# A cluster of its own: a file holds what is in the queue, and scancel changes it.
IN_QUEUE = 'cat "$HERE/queue" 2>/dev/null'
CANCEL = """
case "$*" in
    *--state=PENDING*) sed -i '/PENDING/d' "$HERE/queue" ;;
    *--signal=TERM*) [[ $HOLD ]] || sed -i '/RUNNING/d' "$HERE/queue" ;;
    2) sed -i '/^2|/d' "$HERE/queue" ;;
    *) : >"$HERE/queue" ;;
esac
"""


def test_cancelling_lets_what_runs_stop_with_a_checkpoint(programs: Programs, tmp_path: Path) -> None:
    ensemble = of_array(tmp_path, 4)
    rows = ["1|2-3|PENDING||0|None|", "1|0|RUNNING|n1|0|None|", "1|1|COMPLETING|n1|0|None|"]
    (tmp_path / "queue").write_text("\n".join([*rows, "2|N/A|PENDING||0|Dependency|", ""]))
    said: list[str] = []
    # The completing one ends by itself.
    scheduler = programs(said, squeue=f"{IN_QUEUE}; sed -i /COMPLETING/d $HERE/queue", scancel=CANCEL)
    assert sorted(scheduler.cancel(ensemble)) == ["1_0", "1_1", "1_2", "1_3", "2"]
    cancels = [call for call in calls(tmp_path) if call.startswith("scancel")]
    assert cancels == ["scancel 2", "scancel --state=PENDING 1", "scancel --signal=TERM --batch 1_0"]
    assert said == ["1 members are asked to stop with a checkpoint: 1_0"]


def test_nothing_is_cancelled_where_nothing_is_left(programs: Programs, tmp_path: Path) -> None:
    ensemble = of_array(tmp_path, 1)
    assert programs(squeue="", scancel="").cancel(ensemble) == []
    assert programs(squeue="", scancel="").cancel(planned(tmp_path / "other", 1)) == []
    assert [call.partition(" ")[0] for call in calls(tmp_path)] == ["squeue"]


def test_a_job_of_somebody_else_with_one_of_our_numbers_is_not_ours(programs: Programs, tmp_path: Path) -> None:
    ensemble = of_array(tmp_path, 1)
    scheduler = programs(squeue='echo "1|0|RUNNING|n1|0|None|"', sacct="")
    scheduler.jobs(ensemble)
    mark = ensemble.identity[:12]
    assert f"--name=hpcai500-ic-member-{mark},hpcai500-ic-collect-{mark}" in calls(tmp_path)[0].split()


# --- from a request to scripts: what is refused before anything queues, who is submitted, who may be run again


def ready(folder: Path, members: int = 3) -> Ensemble:
    (folder / "data").mkdir()
    return planned(folder / "e", members)


def site_file(folder: Path, text: str = "") -> str:
    file = folder / "site.toml"
    file.write_text(text or '[container]\ncommand = "none"\n')
    return str(file)


def request(folder: Path, text: str = "", **changes: str | int | None) -> SubmitRequest:
    return SubmitRequest({"PATH": "/nowhere"}, site_file(folder, text), **changes)  # type: ignore[arg-type]


def submission_of(ensemble: Ensemble, request: SubmitRequest) -> Submission:
    found = plan_submission(ensemble, request)
    assert found is not None
    return found


def failed(ensemble: Ensemble, member: int, *told: tuple[str, int, str]) -> None:
    """Write failures of a member, (hosts, exit code, array), as its script does."""
    folder = ensemble.folder(member)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"time_ms": 1, "host": host, "exit_code": code, "restart": number, "job": job}
        for number, (host, code, job) in enumerate(told)
    ]
    (folder / FAILURES).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_all_members_that_are_not_done_are_submitted(tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    submission = submission_of(ensemble, request(tmp_path, exclude="n[1-2]", at_once=2))
    assert (submission.members, submission.exclude, submission.at_once) == ([0, 1, 2], ["n1", "n2"], 2)
    assert submission.folder.is_absolute()
    some = submission_of(ensemble, request(tmp_path, members="2"))
    assert some.members == [2]


def test_scripts_and_site_are_written_and_the_site_is_used_again(tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    text = '[slurm]\npartition = "debug"\n[container]\ncommand = "none"\n'
    submission = submission_of(ensemble, request(tmp_path, text))
    (ensemble.path / "slurm").mkdir()
    (ensemble.path / "slurm" / "member-1000.sh").write_text("of an earlier submission")
    script = write_submission(submission)
    assert sorted(path.name for path in script.parent.iterdir()) == [
        *("collect.sh", "member.sh", "site.toml", "submit.sh")
    ]
    assert tomllib.loads((script.parent / "site.toml").read_text())["slurm"]["partition"] == "debug"
    again = submission_of(ensemble, SubmitRequest({"PATH": "/nowhere"}))
    assert again.site == submission.site == last_site(ensemble)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[node]\ntasks = 4\n[container]\ncommand = "none"', r"nodes of 1 accelerators, the site nodes of 4"),
        ('[container]\nimage = "/nowhere/h.sif"', r"/nowhere/h.sif: no such image"),
        ("[slurm]\n", r"which image\?"),
    ],
)
def test_a_site_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_submission(ready(tmp_path), request(tmp_path, text))


def test_members_that_share_a_node_must_ask_for_their_gpus(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shape = Shape(4, 1, 4)
    recipe = load_recipe("ic/smoke", [*TINY, "ensemble.members=4", "accelerator.device=cuda"], edition="v3.0")
    ensemble = create_ensemble(tmp_path / "e", recipe, shape, member_places(shape, 1), tmp_path / "data", None)
    text = '[node]\ntasks = 4\ngpus = {}\ngpu_request = "{}"\n[container]\ncommand = "none"'
    with pytest.raises(UsageError, match="members that share a node must request their GPUs"):
        plan_submission(ensemble, request(tmp_path, text.format(4, "none")))
    with pytest.raises(UsageError, match="give each task equally many"):
        plan_submission(ensemble, request(tmp_path, text.format(6, "gres")))
    with pytest.raises(UsageError, match=r"accelerator\.device is cuda"):
        plan_submission(ensemble, request(tmp_path, text.format(0, "gres")))
    assert plan_submission(ensemble, request(tmp_path, text.format(4, "gres"))) is not None


def test_data_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the plan's data is not there"):
        plan_submission(planned(tmp_path / "e"), request(tmp_path))


def test_arrays_that_had_some_of_the_members_are_looked_for(tmp_path: Path) -> None:
    ensemble = submitted(submitted(ready(tmp_path), ["1", "2"], [0, 1]), ["3", "4"], [2])
    assert submission_of(ensemble, request(tmp_path, members="2")).in_queue == ["3"]


def test_the_collecting_job_has_missing_members_run_again_once(tmp_path: Path) -> None:
    ensemble = submitted(ready(tmp_path), ["1", "2"], [0, 1, 2])
    assert again_after(ensemble, "2").members == [0, 1, 2]
    submission = submission_of(ensemble, request(tmp_path, after="2"))
    assert (submission.members, submission.after, submission.in_queue) == ([0, 1, 2], "2", [])
    # A job that came back from the queue after it had submitted.
    ensemble = submitted(ensemble, ["3", "4"], [0, 1, 2], after="2")
    assert again_after(ensemble, "2").members == ()
    assert again_after(ensemble, "4").members == ()
    assert plan_submission(ensemble, request(tmp_path, after="4")) is None
    # Nor is what was cancelled.
    assert again_after(append(ensemble, "cancel", {"jobs": ["3", "4"]}), "4").members == ()


def test_what_was_given_up_is_not_run_again(tmp_path: Path) -> None:
    ensemble = submitted(ready(tmp_path, 6), ["7", "8"], [0, 1, 2, 3, 4, 5])
    failed(ensemble, 0, *[("n1", 1, "7")] * 3)
    failed(ensemble, 1, ("n1", 2, "7"))
    failed(ensemble, 2, ("n1", 69, "7"), ("n2", 64, "7"))
    failed(ensemble, 3, ("n1", 1, "7"), ("n2", 1, "7"))
    # Of an earlier submission.
    failed(ensemble, 4, *[("n1", 1, "5")] * 3)
    assert again_after(ensemble, "8").members == [3, 4, 5]


def test_hosts_where_members_have_failed_are_left_out_while_others_are_known(tmp_path: Path) -> None:
    ensemble = submitted(ready(tmp_path), ["7", "8"], [0, 1, 2])
    failed(ensemble, 0, ("n1", 1, "7"))
    failed(ensemble, 1, ("n1", 1, "7"))
    # Nobody knows of a host that would do.
    assert again_after(ensemble, "8").exclude == []
    failed(ensemble, 1, ("n1", 1, "7"), ("n2", 1, "7"))
    assert again_after(ensemble, "8").exclude == ["n1"]


def test_a_line_of_failures_that_a_crash_cut_off_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / FAILURES
    assert failures(tmp_path, ["7"]) == []
    file.write_text('{"host":"n1,n2","exit_code":1,"job":"7"}\n{"host":"n1","exi')
    (one,) = failures(tmp_path, ["7"])
    assert one.host == "n1,n2"
    file.write_text("rubbish\n")
    with pytest.raises(RecordError, match="a line is malformed"):
        failures(tmp_path, ["7"])


def test_whole_nodes_that_slurm_may_share_are_warned_of(tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    shared = '[container]\ncommand = "none"\n[slurm]\nexclusive = false\n'
    submission = submission_of(ensemble, request(tmp_path, shared))
    (warning,) = warnings_of(submission)
    assert warning.startswith("exclusive = false under [slurm] of the site: a member takes whole nodes, but ")
    other = plan_submission(ensemble, request(tmp_path))
    alone = plan_submission(ensemble, request(tmp_path, shared, at_once=1))
    single = plan_submission(ensemble, request(tmp_path, shared, members="1"))
    assert [warnings_of(one) for one in (other, alone, single) if one is not None] == [[], [], []]


# --- `hpcai500 ensemble submit` and `cancel` as people and scripts use them


Command = Callable[..., tuple[int, str, str]]
HPCAI500 = Path(sys.executable).with_name("hpcai500")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `hpcai500 ensemble …` in this process: (exit code, stdout, stderr); `programs` are scripts on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def run(*arguments: str | Path, **programs: str) -> tuple[int, str, str]:
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/bash\nPATH={folder}:/usr/bin:/bin\n{text}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setattr(sys, "argv", ["hpcai500", "ensemble", *map(str, arguments)])
        code = main()
        streams = capfd.readouterr()
        return int(code), streams.out, streams.err

    return run


SBATCH = "[[ $1 == --test-only ]] || { if [[ $* == *--dependency* ]]; then echo 8; else echo 7; fi; }"


def test_inside_a_container_the_line_to_type_on_the_host_is_all_that_is_printed(
    ended: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/hpcai500.sif")
    ensemble = ready(tmp_path)
    code, out, err = ended("submit", ensemble.path, "--site", site_file(tmp_path))
    assert (code, out) == (0, f"bash {ensemble.path}/slurm/submit.sh\n")
    assert err == "hpcai500: submit it on the host:\n"


def test_where_there_is_no_slurm_or_it_is_a_dry_run_nothing_is_submitted(ended: Command, tmp_path: Path) -> None:
    ensemble, site = ready(tmp_path), site_file(tmp_path)
    script = f"{ensemble.path}/slurm/submit.sh"
    code, out, err = ended("submit", ensemble.path, "--site", site)
    assert (code, out) == (69, "")
    assert f"on a host of the cluster, type: bash {script};" in err
    assert err.endswith(f"on this machine: hpcai500 ensemble run {ensemble.path}\n")
    code, out, _ = ended("submit", ensemble.path, "--site", site, "--dry-run", sbatch=f"touch {tmp_path}/called")
    assert (code, out) == (0, f"bash {script}\n")
    assert not (tmp_path / "called").exists()


def test_what_was_submitted_is_in_the_journal(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    words = ["--site", site_file(tmp_path), "--at-once", "2", "--exclude", "n[8-9]", "--member", "0,2"]
    code, out, _ = ended("submit", ensemble.path, *words, sbatch=SBATCH, hpcai500=f'exec {HPCAI500} "$@"')
    assert (code, out) == (0, "submitted  2 members as job 7; job 8 collects\n")
    event = read_ensemble(ensemble.path).events[-1]
    told = {"scheduler": "slurm", "jobs": ["7", "8"], "members": [0, 2], "at_once": 2, "exclude": ["n8", "n9"]}
    assert (event["key"], event["value"]) == ("submit", {**told, "after": None})


def test_what_slurm_refuses_is_told_in_its_words(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    refusing = 'echo "allocation failure: Requested node configuration is not available" >&2; exit 1'
    code, out, err = ended("submit", ensemble.path, "--site", site_file(tmp_path), sbatch=refusing, hpcai500="exit 1")
    assert (code, out) == (64, "")
    assert "slurm/member.sh: allocation failure: Requested node configuration is not available\n" in err
    assert err.endswith("submit.sh: nothing was submitted (see above)\n")


def test_a_cancellation_is_in_the_journal_where_there_was_something_to_cancel(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    assert ended("cancel", ensemble.path)[:2] == (0, "cancelled  nothing: no job of this ensemble is in the queue\n")
    assert len(read_ensemble(ensemble.path).events) == 1
    ended("submit", ensemble.path, "--queued", "7,8")
    queue = tmp_path / "queue"
    queue.write_text("7|0-2|PENDING||0|None|\n8|N/A|PENDING||0|Dependency|\n")
    code, out, _ = ended("cancel", ensemble.path, squeue=f"cat {queue}", scancel=f": >{queue}")
    assert (code, out) == (0, "cancelled  4 jobs: 7_0, 7_1, 7_2, 8\n")
    event = read_ensemble(ensemble.path).events[-1]
    assert (event["key"], event["value"]) == ("cancel", {"jobs": ["7", "8"]})
