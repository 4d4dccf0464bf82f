"""Members as processes of one machine: side by side, gone on with, tried again, given up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.runs import TINY

from hpcai500.campaign.journal import turn_at
from hpcai500.ensemble.journal import Ensemble, create_ensemble, read_ensemble
from hpcai500.ensemble.local import MOST_FAILURES, Jobs, RunOrder, is_done, may_be_tried_again, run_ensemble, slots
from hpcai500.ensemble.mapping import member_places, shape_of
from hpcai500.ensemble.members import Memory, last_error, read_failures
from hpcai500.ensemble.status import Source, Watch, read_status, trouble
from hpcai500.errors import EnvironmentLacksError, ExitCode
from hpcai500.recipe import load_recipe
from hpcai500.record import iterate, read_record

SMALL = (*TINY, "problem.epochs=2", "ensemble.out_of_bag_samples=0")


def planned(
    folder: Path, data: Path, members: int, *settings: str, degree: int = 1, stage: str | None = None
) -> Ensemble:
    shape = shape_of(degree, members=members, degree=degree)
    backend = "local" if degree == 1 else "torch"
    fixed = [f"hardware.accelerators_per_node={degree}", f"communication.backend={backend}"]
    changes = [*SMALL, f"ensemble.members={members}", *fixed, *settings]
    recipe = load_recipe("ic/smoke", changes, edition="v3.0")
    return create_ensemble(folder, recipe, shape, member_places(shape, 1), data, stage)


def descendants(process: int) -> list[int]:
    """All processes that a process has started, however indirectly."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def kill_training(member: int, after: Callable[[Ensemble], bool], number: signal.Signals) -> Callable[..., None]:
    """What kills the training process of a member once, as soon as `after` holds."""
    killed: list[int] = []

    def on_poll(ensemble: Ensemble, jobs: Jobs) -> None:
        job = jobs[member]
        if job.state == "running" and not killed and after(ensemble):
            for process in descendants(int(job.job.removeprefix("process-"))):
                if b"hpcai500.train" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, number)
                    killed.append(process)

    return on_poll


def has_checkpoint(ensemble: Ensemble, member: int) -> bool:
    return any((ensemble.folder(member) / "trial-01" / "checkpoints").glob("epoch-*.pt"))


def attempts(ensemble: Ensemble, member: int) -> list[str]:
    campaign = ensemble.campaign(member)
    assert campaign is not None
    return [event["key"].removeprefix("attempt_") for event in campaign.events[1:]]


def test_members_run_to_their_end_each_by_its_own_seed(tmp_path: Path, images: Path) -> None:
    ensemble = planned(tmp_path / "e", images, 2)
    seen: set[tuple[str, ...]] = set()
    end = run_ensemble(RunOrder(ensemble.path), lambda _, jobs: seen.add(tuple(jobs[n].state for n in (0, 1))))
    assert [end.jobs[member].state for member in (0, 1)] == ["ended", "ended"]
    assert not end.stopped
    assert all(is_done(end.ensemble, member) for member in (0, 1))
    if len(os.sched_getaffinity(0)) > 1:
        assert ("running", "running") in seen
    assert end.ensemble.events[-1]["value"]["members"] == [0, 1]
    assert "epoch 2/2" in (ensemble.folder(1) / "output.txt").read_text()
    # There is nothing left to do, and nothing is written.
    again = run_ensemble(RunOrder(ensemble.path))
    assert (again.jobs, again.ensemble.head) == ({}, end.ensemble.head)


def test_a_member_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path, images: Path) -> None:
    ensemble = planned(tmp_path / "e", images, 1, "problem.epochs=120")
    kill = kill_training(0, lambda ensemble: has_checkpoint(ensemble, 0), signal.SIGKILL)
    end = run_ensemble(RunOrder(ensemble.path), kill)
    assert (end.jobs[0].state, end.jobs[0].restarts) == ("ended", 1)
    assert attempts(ensemble, 0) == ["start", "stop", "resume", "stop"]
    assert "resuming trial 1, attempt 1" in (ensemble.folder(0) / "output.txt").read_text()


def test_a_member_that_diverges_is_final_and_the_others_run_on(tmp_path: Path, images: Path) -> None:
    settings = ("hyperparameters.base_learning_rate=1e30", "hyperparameters.warmup_epochs=0")
    ensemble = planned(tmp_path / "e", images, 1, *settings)
    end = run_ensemble(RunOrder(ensemble.path))
    assert (end.failed, end.jobs[0].restarts) == ([0], 0)
    assert end.jobs[0].reason == "exit code 2, after 1 failure: see members/00000/output.txt"


def test_a_stop_ends_all_members_with_a_checkpoint_and_the_same_order_goes_on(tmp_path: Path, images: Path) -> None:
    ensemble = planned(tmp_path / "e", images, 2, "problem.epochs=40")
    sent: list[bool] = []

    def stop(ensemble: Ensemble, jobs: Jobs) -> None:
        if not sent and has_checkpoint(ensemble, 0):
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    end = run_ensemble(RunOrder(ensemble.path, at_once=1), stop)
    assert end.stopped
    assert [end.jobs[member].state for member in (0, 1)] == ["stopped", "waiting"]
    assert attempts(ensemble, 0) == ["start", "stop"]
    campaign = ensemble.campaign(0)
    assert campaign is not None
    assert campaign.attempts[0].status == "stopped"
    assert not (ensemble.folder(1) / "campaign.jsonl").exists()


def test_members_of_two_ranks_run_on_this_machine(tmp_path: Path, images: Path) -> None:
    ensemble = planned(tmp_path / "e", images, 1, "problem.epochs=1", degree=2)
    assert run_ensemble(RunOrder(ensemble.path)).jobs[0].state == "ended"
    assert is_done(read_ensemble(ensemble.path), 0)


def test_members_train_on_copies_of_what_they_drew_which_are_gone_after(tmp_path: Path, images: Path) -> None:
    ensemble = planned(tmp_path / "e", images, 1, "problem.epochs=1", stage=str(tmp_path / "node"))
    assert run_ensemble(RunOrder(ensemble.path)).jobs[0].state == "ended"
    campaign = ensemble.campaign(0)
    assert campaign is not None
    events = read_record(campaign.record(campaign.done()[0])).events
    (dataset,) = (event["value"] for event in iterate(events, "dataset"))
    assert Path(dataset["root"]).parent == tmp_path / "node"
    assert list((tmp_path / "node").iterdir()) == []


def test_slots_share_the_cores_and_overlap_nowhere(tmp_path: Path, images: Path) -> None:
    ensemble = planned(tmp_path / "e", images, 3)
    cores = sorted(os.sched_getaffinity(0))
    taken = [core for slot in slots(ensemble, len(cores)) for core in slot.cores]
    assert sorted(taken) == cores[: len(taken)]
    assert len(taken) == min(3, len(cores)) * (len(cores) // min(3, len(cores)))


def test_accelerators_that_are_not_there_are_told(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = planned(tmp_path / "e", images, 2, "accelerator.device=cuda", degree=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert [slot.devices for slot in slots(ensemble, None)] == ["0,1"]
    with pytest.raises(EnvironmentLacksError, match=r"3 accelerators are visible here, but 2 members of 2 need 4"):
        slots(ensemble, 2)


@pytest.mark.parametrize(
    ("code", "failures", "again"),
    [
        (ExitCode.RUN_FAILED, 1, True),
        (-9, 1, True),
        (137, MOST_FAILURES - 1, True),
        (ExitCode.RUN_FAILED, MOST_FAILURES, False),
        (ExitCode.WRONG_ANSWER, 1, False),
        (ExitCode.USAGE, 1, False),
        (ExitCode.ENVIRONMENT, 1, False),
    ],
)
def test_only_what_may_end_otherwise_is_tried_again(code: int, failures: int, again: bool) -> None:
    assert may_be_tried_again(code, failures) is again


def test_a_member_whose_staging_fails_here_is_failed_for_whoever_looks_with_why(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e", tmp_path / "nowhere", 1, stage=str(tmp_path / "node"))
    end = run_ensemble(RunOrder(ensemble.path))
    assert end.failed == [0]
    failure = read_failures(ensemble.folder(0))[0][-1]
    assert failure.exit_code in (ExitCode.USAGE, ExitCode.ENVIRONMENT)
    status = Watch(ensemble.path, {}).look_at_all()
    row = status.rows[0]
    assert (row.state, row.attempts, status.exit_code) == ("failed", 0, ExitCode.WRONG_ANSWER)
    assert f"last on {os.uname().nodename} (exit code {failure.exit_code})" in str(row.wrong)
    assert "see members/00000/output.txt" in str(row.wrong)
    assert str(last_error(ensemble.folder(0))) in str(row.wrong)
    assert "nowhere" in str(row.wrong)


def test_who_waits_for_another_process_says_so_and_was_not_stopped_by_ctrl_c(tmp_path: Path, images: Path) -> None:
    ensemble, told = planned(tmp_path / "e", images, 1), list[str]()
    ensemble.folder(0).mkdir(parents=True)

    def stop(now: Ensemble, jobs: Jobs) -> None:
        if jobs[0].is_elsewhere and not told:
            status = read_status(now, jobs, Memory(), Source("local"))
            told.extend(sentence for _, sentence in trouble(status))
            os.kill(os.getpid(), signal.SIGTERM)

    with turn_at(ensemble.folder(0), 0):
        end = run_ensemble(RunOrder(ensemble.path), stop)
    assert told == ["member 0: is being run by another process: waiting for it"]
    assert end.stopped
    assert end.jobs[0].reason == "waited for another process, which still runs it"
    assert read_failures(ensemble.folder(0)) == ((), None)
