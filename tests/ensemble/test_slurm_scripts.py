"""Batch scripts of an ensemble: the text as a whole, and what each does with what its member ended by."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcai500 import __version__
from hpcai500.ensemble.journal import Ensemble
from hpcai500.ensemble.mapping import Shape, in_ranges
from hpcai500.ensemble.slurm_scripts import (
    Submission,
    collect_script,
    member_script,
    script_name,
    scripts,
    submit_script,
)
from hpcai500.errors import FAULTY_DEVICE, UsageError
from hpcai500.launch.slurm.script import sources_on_host
from hpcai500.launch.slurm.site import Site, load_site

GOLDEN = Path(__file__).with_name("slurm_member.golden.sh")
SHAPE = Shape(8, 8, 4)


def site(**tables: dict[str, object]) -> Site:
    return Site.model_validate({"container": {"command": "none"}, **tables})


def submission(
    folder: Path = Path("/runs/big ensemble"),
    shape: Shape = SHAPE,
    stage: str | None = None,
    **changes: object,
) -> Submission:
    start = {"benchmark": "ic", "data": "/data/imagenet", "stage": stage}
    given: dict[str, object] = {
        "ensemble": Ensemble(folder, "0123456789abcdef" * 4, "", {"benchmark": "ic"}, start, shape, ()),
        "site": load_site("example"),
        "members": range(8),
        "at_once": 4,
        "rendered_by": ["hpcai500", "ensemble", "submit", "/runs/big ensemble"],
    }
    return Submission(**{**given, **changes})  # type: ignore[arg-type]


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_the_whole_script_of_members_at_the_example_site() -> None:
    """After a change that is meant: write the new text to the golden file and read it."""
    assert member_script(submission()).replace(__version__, "VERSION") == GOLDEN.read_text()


def test_bash_reads_all_scripts() -> None:
    for one in (
        submission(stage="$TMPDIR/`x`", exclude=["n1"]),
        submission(site=site(slurm={"requeue": False}), in_queue=["7"]),
        submission(members=range(900, 3100), submits_inside=True, after="9"),
    ):
        for name, text in scripts(one).items():
            checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert (name, checked.returncode, checked.stderr) == (name, 0, "")


def test_members_of_less_than_a_node_share_it() -> None:
    lines = directives(member_script(submission(shape=Shape(8, 1, 4))))
    assert "--exclusive" not in lines
    assert {"--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=16", "--gres=gpu:a100:1"} <= set(lines)
    assert "--exclusive" in directives(member_script(submission(shape=Shape(8, 4, 4))))


def test_more_members_than_an_array_has_numbers_are_several_arrays() -> None:
    many = submission(members=[0, 999, 1000, 2005], at_once=None)
    texts = scripts(many)
    assert list(texts) == ["member.sh", "member-1000.sh", "member-2000.sh", "collect.sh", "submit.sh"]
    assert "--array=0,999" in directives(texts["member.sh"])
    assert "--array=5" in directives(texts["member-2000.sh"])
    assert "member=$((2000 + SLURM_ARRAY_TASK_ID))\n" in texts["member-2000.sh"]
    assert '--dependency=afterany:"${queued[-1]}"' not in texts["submit.sh"]
    # One after the other: each array counts for itself how many of it run.
    assert '--dependency=afterany:"${queued[-1]}"' in submit_script(replace(many, at_once=3))
    assert script_name(3000) == "member-3000.sh"


@pytest.mark.parametrize(
    ("numbers", "text"), [([0], "0"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0,2-3,7"), (range(5, 8), "5-7")]
)
def test_numbers_are_written_as_slurm_writes_them(numbers: Sequence[int], text: str) -> None:
    assert in_ranges(numbers) == text


def test_a_stage_folder_is_made_and_shown_to_the_container() -> None:
    script = member_script(submission(stage='$TMPDIR/a `b` "c" $(d)'))
    written = '"$TMPDIR/a \\`b\\` \\"c\\" \\$(d)"'
    assert f'"${{launcher[@]}}" mkdir -p -- {written} || fail 69' in script
    assert f"--bind {written}" in script


def test_data_that_is_a_link_is_bound_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "link").symlink_to("set")
    start = {"benchmark": "ic", "data": str(tmp_path / "link"), "stage": None}
    ensemble = Ensemble(tmp_path / "runs", "0123456789abcdef" * 4, "", {"benchmark": "ic"}, start, SHAPE, ())
    sources = sources_on_host(submission(ensemble=ensemble).container())
    assert sources[-3:] == [f"{tmp_path}/{name}" for name in ("link", "set", "runs")]


def test_a_folder_that_cannot_be_bound_is_refused() -> None:
    with pytest.raises(UsageError, match="a path with ',' cannot be bound"):
        member_script(submission(folder=Path("/a,b")))


FAKES = {
    # They stand for Slurm's programs (tests/site has the real ones), and write down how they were called.
    "srun": 'trap "${ON_USR1-}" USR1; echo "srun $*" >>"$CALLS"; echo "${SAYS-}"; '
    '[[ -z ${SIGNAL-} ]] || kill -"$SIGNAL" $PPID; '
    'while [[ ${UNTIL-} ]] && ! grep -q -e "$UNTIL" "$CALLS"; do sleep 0.05; done; sleep 0.2; exit ${CODE:-0}',
    "scontrol": 'if [[ $1 == show ]]; then echo "${3}"; else echo "scontrol $*" >>"$CALLS"; fi',
    "sbatch": 'echo "sbatch $*" >>"$CALLS"; if [[ $1 == --parsable ]]; then echo "$(wc -l <"$CALLS")0;cluster"; '
    "else exit ${TEST_CODE:-0}; fi",
    "squeue": 'echo "squeue $*" >>"$CALLS"; echo "${LEFT-}"',
    "scancel": 'echo "scancel $*" >>"$CALLS"; exit ${SCANCEL_CODE:-0}',
    "hpcai500": 'echo "hpcai500 $*" >>"$CALLS"; if [[ $* == *--after* && ${AGAIN-} ]]; then '
    'echo "echo again >>$CALLS; exit $AGAIN" >"$3/slurm/submit.sh"; fi; '
    "[[ $* == *--queued* && ${INTERRUPT-} ]] && kill -INT $PPID $$; "
    "[[ $* == *--queued* ]] && exit ${TOLD_CODE:-0}; [[ $2 == collect ]] && exit ${COLLECT_CODE:-0}; exit 0",
}


class Ran:
    """What a script did, and what it left."""

    def __init__(self, folder: Path, ended: subprocess.CompletedProcess[str]) -> None:
        self.code, self.said = ended.returncode, ended.stderr
        calls = folder / "calls"
        self.calls = calls.read_text().splitlines() if calls.exists() else []
        output, failures = folder / "members/00003/output.txt", folder / "members/00003/failures.jsonl"
        self.output = output.read_text() if output.exists() else ""
        self.failures = [json.loads(line) for line in failures.read_text().splitlines()] if failures.exists() else []

    def of(self, program: str) -> list[str]:
        """Calls of one program."""
        return [call.removeprefix(f"{program} ") for call in self.calls if call.startswith(f"{program} ")]


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script, with stand-ins for Slurm's programs, as element 3 of job 17 on n1 unless told."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "slurm").mkdir()
    for name, text in FAKES.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)

    def ran(script: str, **environment: str) -> Ran:
        (tmp_path / "calls").unlink(missing_ok=True)
        job = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
        place = {"SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
        variables = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "CALLS": str(tmp_path / "calls"),
            **job,
            **place,
            **environment,
        }
        file = tmp_path / "script"
        file.write_text(script)
        ended = subprocess.run(
            ["bash", str(file)], capture_output=True, text=True, check=False, env=variables, cwd=tmp_path
        )
        return Ran(tmp_path, ended)

    return ran


@pytest.fixture
def here(tmp_path: Path) -> Submission:
    """An ensemble in this test's folder, without containers."""
    return submission(folder=tmp_path, site=site(), shape=Shape(8, 1, 1))


REQUEUE = ["requeue 17_3"]


def test_an_element_runs_its_member(run: Run, here: Submission, tmp_path: Path) -> None:
    ran = run(member_script(here))
    assert (ran.code, ran.said, ran.failures) == (0, "", [])
    (command,) = ran.of("srun")
    assert command.endswith(f" hpcai500 ensemble member {tmp_path} --member 3")
    assert "member 3: job 17_3 on n1, restart 0" in ran.output


@pytest.mark.parametrize(
    ("environment", "asked", "failed", "said"),
    [
        pytest.param({}, [], False, "", id="it is done"),
        # Never by SLURM_JOB_ID, which of one element is that of the whole array.
        pytest.param({"CODE": "1"}, REQUEUE, True, "", id="a failure goes back to the queue"),
        pytest.param({"CODE": "2"}, [], True, "", id="divergence is final"),
        pytest.param(
            {"CODE": "69", "TEST_CODE": "1"}, [], True, "run on n1 (exit code 69), and there is no other node",
            id="what the only node lacks is final",
        ),
        pytest.param({"CODE": "1", "SIGNAL": "USR1"}, REQUEUE, False, "", id="who was warned comes back"),
        # Slurm signals the process of an image's file system too: what cannot be read then has many names.
        *(
            pytest.param({"CODE": code, "SIGNAL": "USR1"}, REQUEUE, False, "", id=f"whose image went, by {code}")
            for code in ("64", "135", "143")
        ),
        pytest.param({"CODE": "2", "SIGNAL": "USR1"}, [], True, "", id="who was warned and diverged has diverged"),
        pytest.param(
            {"CODE": "1", "SIGNAL": "USR1", "SLURM_RESTART_COUNT": "20"}, [], False,
            "was requeued 20 times already: not requeued again", id="who was warned twenty times stays away",
        ),
        pytest.param({"CODE": "1", "SIGNAL": "TERM"}, [], False, "", id="who was told to end ends"),
    ],
)  # fmt: skip
def test_what_its_member_ended_by_decides_what_becomes_of_an_element(
    run: Run, here: Submission, environment: dict[str, str], asked: list[str], failed: bool, said: str
) -> None:
    ran = run(member_script(here), **environment)
    code = int(environment.get("CODE", "0"))
    assert ran.code == (1 if code and not failed else code)
    assert ran.of("scontrol") == asked
    assert said in ran.output
    if failed:
        (failure,) = ran.failures
        assert failure.pop("time_ms") > 10**12
        assert failure == {"host": "n1", "exit_code": code, "restart": 0, "job": "17"}
    else:
        assert ran.failures == []


def test_the_second_failure_on_a_host_leaves_it_out_and_the_third_ends(run: Run, here: Submission) -> None:
    script = member_script(replace(here, exclude=["n9"]))
    run(script, CODE="1")
    ran = run(script, CODE="139", SLURM_RESTART_COUNT="1")
    assert ran.of("sbatch")[0].startswith("--test-only --exclude=n1,n9 ")
    assert ran.of("scontrol") == ["requeue 17_3", "update JobId=17_3 ExcNodeList=n1,n9"]
    assert [failure["restart"] for failure in ran.failures] == [0, 1]
    ran = run(script, CODE="1", SLURM_JOB_NODELIST="n2", SLURM_RESTART_COUNT="2")
    assert (ran.code, ran.of("scontrol")) == (1, [])
    assert "member 3: failed 3 times, last with exit code 1: given up" in ran.output


def test_the_last_node_that_could_run_it_is_not_left_out(run: Run, here: Submission) -> None:
    run(member_script(here), CODE="1")
    assert run(member_script(here), CODE="1", TEST_CODE="1").of("scontrol") == REQUEUE


def test_all_hosts_of_a_member_of_many_have_failed(run: Run, here: Submission) -> None:
    run(member_script(here), CODE="1", SLURM_JOB_NODELIST="n1\nn2")
    ran = run(member_script(here), CODE="1", SLURM_JOB_NODELIST="n2\nn3")
    assert [failure["host"] for failure in ran.failures] == ["n1,n2", "n2,n3"]
    assert ran.of("scontrol") == ["requeue 17_3", "update JobId=17_3 ExcNodeList=n2"]


@pytest.mark.parametrize("code", ["64", "69"])
def test_what_a_node_may_lack_is_tried_on_one_other(run: Run, here: Submission, code: str) -> None:
    ran = run(member_script(here), CODE=code)
    assert ran.of("scontrol") == ["requeue 17_3", "update JobId=17_3 ExcNodeList=n1"]
    ran = run(member_script(here), CODE=code, SLURM_JOB_NODELIST="n2")
    assert (ran.code, ran.of("scontrol"), len(ran.failures)) == (int(code), [], 2)


def test_failures_of_an_earlier_submission_do_not_count(run: Run, here: Submission) -> None:
    for _ in range(2):
        run(member_script(here), CODE="1", SLURM_ARRAY_JOB_ID="12")
    ran = run(member_script(here), CODE="1")
    assert ran.of("scontrol") == REQUEUE


def test_a_node_without_the_image_is_a_failure_too(run: Run, here: Submission) -> None:
    missing: dict[str, object] = {"command": "env", "image": "/nowhere/h.sif"}
    ran = run(member_script(replace(here, site=site(container=missing))))
    assert (ran.code, ran.of("srun"), ran.failures[0]["exit_code"]) == (69, [], 69)
    assert "/nowhere/h.sif: not on" in ran.output


def test_a_warning_is_said_to_all_processes_of_the_element_by_a_signal_that_ends_none(
    run: Run, here: Submission
) -> None:
    ran = run(member_script(here), CODE="1", SIGNAL="USR1", UNTIL="--full")
    assert ran.of("scancel") == ["--signal=URG 17_3", "--full --signal=URG 17_3"]


def test_a_warning_goes_on_to_the_launcher_where_slurm_does_not_answer(run: Run, here: Submission) -> None:
    warned = {"ON_USR1": 'echo "srun warned" >>"$CALLS"', "UNTIL": "warned"}
    ran = run(member_script(here), CODE="1", SIGNAL="USR1", SCANCEL_CODE="1", **warned)
    assert ran.of("srun")[1:] == ["warned"]


def test_where_jobs_may_not_come_back_a_member_ends(run: Run, here: Submission) -> None:
    script = member_script(replace(here, site=site(slurm={"requeue": False})))
    assert "--no-requeue" in directives(script)
    ran = run(script, CODE="1")
    assert (ran.code, ran.of("scontrol"), len(ran.failures)) == (1, [], 1)
    assert len(run(script, CODE="1", SIGNAL="USR1").failures) == 1


def test_submitting_queues_the_array_and_what_collects_and_tells_the_journal(
    run: Run, here: Submission, tmp_path: Path
) -> None:
    ran = run(submit_script(replace(here, at_once=2, exclude=["n8", "n9"], after="5")))
    assert ran.code == 0, ran.said
    assert ran.of("sbatch") == [
        "--test-only slurm/member.sh",
        "--test-only slurm/collect.sh",
        "--parsable slurm/member.sh",
        "--parsable --dependency=afterany:30 slurm/collect.sh",
    ]
    words = f"ensemble submit {tmp_path} --queued 30,40 --member 0-7 --at-once 2 --exclude n8,n9 --after 5"
    assert ran.of("hpcai500") == [words]
    assert "jobs 30,40" in ran.said


def test_a_host_that_does_not_reach_hpcai500_queues_nothing(run: Run, here: Submission, tmp_path: Path) -> None:
    (tmp_path / "programs" / "hpcai500").unlink()
    ran = run(submit_script(here))
    assert (ran.code, ran.calls) == (69, [])
    assert "hpcai500: no such command here: put it on PATH" in ran.said


def test_what_slurm_refuses_is_told_before_anything_queues(run: Run, here: Submission) -> None:
    ran = run(submit_script(here), TEST_CODE="1")
    assert (ran.code, ran.of("sbatch")) == (64, ["--test-only slurm/member.sh"])


def test_members_that_are_in_the_queue_are_not_submitted_twice(run: Run, here: Submission) -> None:
    ran = run(submit_script(replace(here, in_queue=["7", "9"])), LEFT="7_1\n7_2")
    assert (ran.code, ran.of("sbatch"), ran.of("squeue")) == (
        64,
        [],
        ["--noheader --format=%i --jobs=7,9 --name=hpcai500-ic-member-0123456789ab"],
    )
    assert "still in the queue: 7_1 7_2: wait for them, or: hpcai500 ensemble cancel" in ran.said
    assert run(submit_script(replace(here, in_queue=["7", "9"]))).code == 0


@pytest.mark.parametrize("environment", [{"TOLD_CODE": "64"}, {"INTERRUPT": "yes"}], ids=["told in vain", "Ctrl-C"])
def test_queued_jobs_of_which_the_journal_does_not_know_do_not_stay(
    run: Run, here: Submission, environment: dict[str, str]
) -> None:
    ran = run(submit_script(here), **environment)
    assert ran.code == 1 or ("INTERRUPT" in environment and ran.code != 0)
    assert ran.of("scancel") == ["30 40"]


def test_the_last_job_collects_when_no_member_may_be_run_again(run: Run, here: Submission, tmp_path: Path) -> None:
    (tmp_path / "slurm" / "submit.sh").write_text("exit 1")
    ran = run(collect_script(here), SLURM_JOB_ID="18", COLLECT_CODE="1")
    assert (ran.code, ran.said) == (1, "")
    assert ran.of("hpcai500") == [f"ensemble submit {tmp_path} --after 18 --dry-run", f"ensemble collect {tmp_path}"]


def test_the_last_job_submits_members_that_may_be_run_again_instead(run: Run, here: Submission) -> None:
    ran = run(collect_script(here), AGAIN="0")
    assert (ran.code, ran.calls[-1], len(ran.of("hpcai500"))) == (0, "again", 1)
    ran = run(collect_script(here), AGAIN="1")
    assert len(ran.of("hpcai500")) == 2
    assert "could not be submitted again" in ran.said


@pytest.mark.parametrize(
    ("said", "blamed", "excluded"),
    [
        (f"the loss is nan on rank 5 alone, host n2, cuda:1 (H100): all were, {FAULTY_DEVICE}: run …", "n2", "n2"),
        (f"… on rank 5 alone, host n2.site.org, cpu: all other ranks were finite then, {FAULTY_DEVICE}", "n2", "n2"),
        (f"… on rank 5 alone, host n7, cpu: all other ranks were finite then, {FAULTY_DEVICE}", "n1,n2", ""),
        (f"… alone, host n2, cpu: {FAULTY_DEVICE}\nhpcai500: member 3: job 7_3 on n1, restart 1\nlost", "n1,n2", ""),
    ],
)  # fmt: skip
def test_a_faulty_device_leaves_out_its_own_host_at_once(
    run: Run, here: Submission, said: str, blamed: str, excluded: str
) -> None:
    ran = run(member_script(here), CODE="1", SAYS=f"hpcai500: error: {said}", SLURM_JOB_NODELIST="n1\nn2")
    assert [failure["host"] for failure in ran.failures] == [blamed]
    assert ran.of("scontrol") == ["requeue 17_3", *([f"update JobId=17_3 ExcNodeList={excluded}"] if excluded else [])]
