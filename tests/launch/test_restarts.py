"""`--restarts`: real ranks are killed, and the run goes on as if it had been stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import evidence
from builders.commands import HPCAI500
from builders.needs import needs_horovod, needs_mpi
from builders.ranks import clean_environment, started
from builders.runs import TINY, same_weights

from hpcai500.campaign.journal import read_campaign
from hpcai500.methodology.conduct import conduct
from hpcai500.recipe import rulebook
from hpcai500.record import Event, iterate, read_record
from hpcai500.restarts import Loss, RankEnd, Restarts, find_loss

# Long enough that a kill after the second epoch comes before the end.
SETTINGS = (*TINY, "problem.epochs=30", "hyperparameters.batch_size=4")
TWO = ("hardware.nodes=1", "hardware.accelerators_per_node=2", "communication.backend=torch")
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def command(images: Path, out: Path, *more: str, settings: tuple[str, ...] = SETTINGS) -> list[str]:
    changes = [token for setting in settings for token in ("--set", setting)]
    return [*HPCAI500, "ic", "--recipe", "ic/smoke", "--data", str(images), "--out", str(out), *changes, *more]


@contextmanager
def running(tokens: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """The command in a process group of its own, as in a terminal, and what it has printed on stderr."""
    log = Path(tokens[tokens.index("--out") + 1]).with_suffix(".log")
    with log.open("w") as sink:
        process = subprocess.Popen(
            tokens, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=sink, start_new_session=True
        )
    try:
        yield process, log.read_text
    finally:
        process.kill()
        process.wait()


def events_of(record: Path, key: str) -> list[Event]:
    """Whole events named `key`; the last line may still be in the making."""
    log = record / "events.jsonl"
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return [event for event in map(json.loads, lines) if event["key"] == key]


def wait_for(record: Path, key: str, count: int, process: subprocess.Popen[Any], output: Callable[[], str]) -> None:
    while len(events_of(record, key)) < count:
        assert process.poll() is None, output()
        time.sleep(0.01)


def ranks_of(record: Path) -> dict[int, int]:
    """The process of each rank that trains for `record`."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_text("utf-8", "replace").split("\0")
        except OSError:
            continue
        if b"hpcai500.train" in words and os.fsencode(record) in words:
            variables = dict(one.split("=", 1) for one in environment if "=" in one)
            found[int(next((variables[name] for name in RANK_VARIABLES if name in variables), "0"))] = int(process.name)
    return found


def kill_rank(record: Path, rank: int, number: signal.Signals = signal.SIGKILL) -> dict[int, int]:
    """Returns the processes of all ranks as they were."""
    before = ranks_of(record)
    os.kill(before[rank], number)
    return before


def findings(path: Path) -> list[str]:
    """All that is against a complete record, by verification and by the rules of the edition."""
    record = read_record(path)
    assert record.status == "done"
    problems = [it for rule in conduct(record.tables, rulebook("v2.0", "ic"), record.events) for it in rule.problems]
    against = (f"{one.severity} {one.name}: {one.evidence}" for one in evidence.against(evidence.findings(path)))
    # An evaluation whose checkpoint the kill has prevented is done again.
    return [*problems, *(one for one in against if not one.startswith("warning trained-again"))]


@pytest.fixture(scope="module")
def undisturbed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "record"
    with running(command(images, out, "--procs", "2")) as (process, output):
        assert process.wait(300) == 0, output()
    return out


def assert_same_run(record: Path, undisturbed: Path, restarts: int) -> None:
    assert same_weights(record, undisturbed)
    result, other = (json.loads((path / "result.json").read_text()) for path in (record, undisturbed))
    assert (result["restarts"], result["quality"]) == (restarts, other["quality"])
    assert result["images"] == other["images"]
    goodput = result["goodput"]
    assert goodput["interruptions"] == restarts
    # The start of each process of rank 0 counts.
    starts = [event["value"]["seconds"] for event in events_of(record, "init_stop")]
    assert len(starts) > 1
    assert goodput["seconds"]["startup"] > sum(starts)
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["wall_seconds"])
    assert findings(record) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_only_the_lost_rank_gets_a_new_process_and_the_weights_are_the_same(
    images: Path, undisturbed: Path, tmp_path: Path, victim: int
) -> None:
    out = tmp_path / "record"
    with running(command(images, out, "--procs", "2", "--restarts", "3")) as (process, output):
        wait_for(out, "epoch_stop", 2, process, output)
        before = kill_rank(out, victim)
        wait_for(out, "run_resume", 1, process, output)
        after = ranks_of(out)
        assert (after[1 - victim], after[victim] != before[victim]) == (before[1 - victim], True)
        assert process.wait(300) == 0, output()
    assert f"rank {victim} on host" in output()
    assert ": restart 1 of 3, from the last checkpoint" in output()
    assert "error:" not in output()
    (resumed,) = events_of(out, "run_resume")
    assert resumed["value"]["after"] == ("an error" if victim else "a kill or a crash")
    assert ranks_of(out) == {}
    assert_same_run(out, undisturbed, 1)


def test_a_process_can_stay_more_than_once(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    with running(command(images, out, "--procs", "2", "--restarts", "2")) as (process, output):
        wait_for(out, "epoch_stop", 1, process, output)
        first = kill_rank(out, 1)
        wait_for(out, "run_resume", 1, process, output)
        second = kill_rank(out, 1)
        assert second[0] == first[0]
        assert process.wait(300) == 0, output()
    assert_same_run(out, undisturbed, 2)


def test_a_run_of_one_rank_is_started_again(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    with running(command(images, out, "--restarts", "1")) as (process, output):
        wait_for(out, "epoch_stop", 2, process, output)
        kill_rank(out, 0)
        assert process.wait(300) == 0, output()
    assert "rank 0 on host" in output()
    assert json.loads((out / "result.json").read_text())["restarts"] == 1
    assert findings(out) == []


def test_a_rank_that_is_lost_each_time_ends_the_run_in_one_line(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    with running(command(images, out, "--procs", "2", "--restarts", "2")) as (process, output):
        for number in range(3):
            wait_for(out, "run_resume" if number else "run_start", max(1, number), process, output)
            kill_rank(out, 1)
        assert process.wait(120) == 1, output()
    errors = [line for line in output().splitlines() if "error:" in line]
    assert len(errors) == 1, output()
    assert errors[0].startswith("hpcai500: error: rank 1 on host ")
    assert errors[0].endswith("not started again, after 2 restarts (--restarts); go on with --resume")
    assert "rank 1 on host" in (out / "ERROR").read_text()
    assert ranks_of(out) == {}


def test_a_rank_that_hangs_is_replaced(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    settings = (*SETTINGS, "communication.timeout_seconds=3")
    with running(command(images, out, "--procs", "2", "--restarts", "1", settings=settings)) as (process, output):
        wait_for(out, "epoch_stop", 2, process, output)
        before = kill_rank(out, 1, signal.SIGSTOP)
        wait_for(out, "run_resume", 1, process, output)
        assert ranks_of(out)[1] != before[1]
        assert process.wait(300) == 0, output()
    assert "no sign of life" in output()
    assert_same_run(out, undisturbed, 1)


def test_ctrl_c_during_a_restart_ends_everything(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    with running(command(images, out, "--procs", "2", "--restarts", "5")) as (process, output):
        wait_for(out, "epoch_stop", 2, process, output)
        kill_rank(out, 1)
        while "restart 1 of 5" not in output():
            assert process.poll() is None, output()
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 1, output()
    assert ranks_of(out) == {}
    assert "restart 2" not in output()
    assert "Traceback" not in output()
    assert not events_of(out, "run_resume")


def test_a_rank_that_ends_by_its_own_error_is_not_started_again(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    # Reading this image fails on the rank that gets it.
    other = tmp_path / "images"
    subprocess.run(["cp", "-r", images, other], check=True)
    victim = sorted((other / "train").glob("*/*.JPEG"))[5]
    victim.write_bytes(victim.read_bytes()[:400])
    with running(command(other, out, "--procs", "2", "--restarts", "5")) as (process, output):
        assert process.wait(120) in (1, 64), output()
    assert victim.name in output()
    assert "restart 1" not in output()
    assert "run_resume" not in (out / "events.jsonl").read_text()


def test_a_rank_lost_before_training_is_not_started_again(capfd: pytest.CaptureFixture[str]) -> None:
    assert Restarts(3, lambda: None).after(Loss(1, "rank 1 on host n1: gone; go on with --resume")) is None
    assert "rank 1 on host n1: gone: not started again, because the run had not begun" in capfd.readouterr().err


@needs_mpi
def test_under_a_launcher_the_copies_of_the_command_start_the_lost_rank_again(
    images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record"
    tokens = command(images, out, "--restarts", "1", settings=(*SETTINGS, *TWO))
    with started(tokens, 2, "mpirun") as ((process,), log):
        wait_for(out, "epoch_stop", 2, process, log.read_text)
        before = kill_rank(out, 1)
        wait_for(out, "run_resume", 1, process, log.read_text)
        after = ranks_of(out)
        assert (after[0], after[1] != before[1]) == (before[0], True)
        assert process.wait(300) == 0, log.read_text()
        assert ": restart 1 of 1, from the last checkpoint" in log.read_text()
    assert_same_run(out, undisturbed, 1)


@needs_horovod
def test_horovod_starts_all_ranks_again(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    settings = (*SETTINGS, "communication.backend=horovod")
    with running(command(images, out, "--procs", "2", "--restarts", "1", settings=settings)) as (process, output):
        wait_for(out, "epoch_stop", 2, process, output)
        kill_rank(out, 1)
        assert process.wait(300) == 0, output()
    assert ": restart 1 of 1, from the last checkpoint" in output()
    assert json.loads((out / "result.json").read_text())["restarts"] == 1
    assert findings(out) == []


def test_the_journal_of_a_campaign_has_each_restart(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    tokens = command(images, folder, "--procs", "2", "--trials", "2", "--restarts", "1")
    with running(tokens) as (process, output):
        wait_for(folder / "trial-01", "epoch_stop", 2, process, output)
        kill_rank(folder / "trial-01", 1)
        assert process.wait(300) == 0, output()
    campaign = read_campaign(folder)
    journal = [(event["key"], event["value"]["trial"]) for event in campaign.events if event["key"] != "campaign_start"]
    assert journal == [
        ("attempt_start", 1), ("attempt_stop", 1), ("attempt_resume", 1), ("attempt_stop", 1),
        ("attempt_start", 2), ("attempt_stop", 2),
    ]  # fmt: skip
    stops = [event["value"]["status"] for event in iterate(campaign.events, "attempt_stop")]
    assert stops[1:] == ["done", "done"]
    assert stops[0] != "done"
    assert findings(folder / "trial-01") == []


LOST = Loss(1, "rank 1 on host n1: no sign of life")


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([RankEnd("n0", 0), RankEnd("n1", 0)], None),
        ([RankEnd("n0", None, LOST), RankEnd("n1", -9)], LOST),
        ([RankEnd("n0", 1, LOST), RankEnd("n1", -signal.SIGSEGV)], LOST),
        ([RankEnd("n0", None, LOST), RankEnd("n1", -15)], LOST),
        ([RankEnd("n0", -signal.SIGALRM, LOST), RankEnd("n1", -9)], LOST),
        ([RankEnd("n0", -9), RankEnd("n1", -9)], Loss(0, "rank 0 on host n0: it was killed by SIGKILL")),
        ([RankEnd("n0", None, LOST), RankEnd("n1", 1)], None),
        ([RankEnd("n0", None, LOST), RankEnd("n1", 64)], None),
        ([RankEnd("n0", -2), RankEnd("n1", -2)], None),
    ],
    ids=["well", "killed", "crashed", "hung", "stuck", "all killed", "failed", "usage", "stopped"],
)
def test_what_is_a_loss(ends: list[RankEnd], expected: Loss | None) -> None:
    assert find_loss(dict(enumerate(ends))) == expected
