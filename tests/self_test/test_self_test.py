"""The self-test: parts in processes of their own, whose crash or silence is a finding; wrong runs are found, too."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error, RunError, WrongAnswerError
from hpcai500.findings import CannotBeChecked, Finding, FindingsLog, read_findings
from hpcai500.launch import self_test
from hpcai500.launch.processes import Patience
from hpcai500.launch.self_test import Part, SelfTest, run_parts
from hpcai500.record import read_record
from hpcai500.self_test import accelerator
from hpcai500.self_test.ranks import check_sum
from hpcai500.self_test.training import check_record, train_tiny

HPCAI500 = Path(sys.executable).with_name("hpcai500")


def part(script: str) -> Part:
    """A part that runs `script` after `here = begin()`."""

    def start(folder: Path) -> int:
        code = f"import os, sys\nfrom hpcai500.self_test.command import begin\nhere = begin(sys.argv[1:])\n{script}"
        return subprocess.run([sys.executable, "-c", code, str(folder), "60"], check=False).returncode

    return Part("a part", start)


def test_a_part_that_crashes_is_named_and_the_next_one_runs(tmp_path: Path) -> None:
    crash = "here.findings.check('first', str)\nhere.findings.check('second', lambda: os.kill(os.getpid(), 11))"
    found = list(run_parts([part(crash), part("here.findings.check('third', lambda: 'fine')")], tmp_path))
    assert [(one.name, one.status) for one in found] == [("first", "pass"), ("second", "fail"), ("third", "pass")]
    assert "SIGSEGV" in found[1].detail
    assert "Segmentation fault" in found[1].detail
    assert found[1].exit_code == ExitCode.RUN_FAILED


def limited(script: str, limit_seconds: float) -> subprocess.CompletedProcess[str]:
    """How a process ends that runs `script` under a limit, on one core with four other processes that use it."""
    code = f"import os, time\nfrom hpcai500.system.process import end_by_alarm\nend_by_alarm({limit_seconds})\n{script}"
    core = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4)]
    try:
        pinned = f"import os\nos.sched_setaffinity(0, [{core}])\n{code}"
        return subprocess.run([sys.executable, "-c", pinned], capture_output=True, text=True, check=False, timeout=300)
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("hang", ["time.sleep(600)", "while True: pass"], ids=["sleeping", "computing"])
def test_a_part_that_hangs_is_ended_also_on_a_loaded_machine(hang: str) -> None:
    assert limited(hang, 1.0).returncode == -signal.SIGALRM


def test_time_without_a_processor_does_not_count_against_the_limit() -> None:
    work = "start = time.monotonic()\nwhile time.process_time() < 1.5: pass\nprint(time.monotonic() - start)"
    done = limited(work, 2.5)
    assert done.returncode == 0, done.stderr
    # A fifth of a core takes five times as long: the clock alone would have ended it.
    assert float(done.stdout) > 2.5


def test_a_part_that_was_ended_by_its_limit_is_a_failure(tmp_path: Path) -> None:
    def start(folder: Path) -> int:
        code = "import sys, time\nfrom hpcai500.self_test.command import begin\nbegin(sys.argv[1:])\ntime.sleep(600)"
        return subprocess.run([sys.executable, "-c", code, str(folder), "1"], check=False).returncode

    (found,) = run_parts([Part("a part", start)], tmp_path)
    assert found.status == "fail"
    assert "did not end within" in found.detail


def test_a_launcher_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_PATIENCE", Patience(1.0))
    monkeypatch.setattr(self_test, "module_command", lambda *words: ["sleep", "600"])
    parts = {part.name: part for part in self_test.parts(2, os.environ, str(tmp_path))}
    (found,) = run_parts([parts["all-reduce: torch, Gloo"]], tmp_path)
    assert found.status == "fail"
    assert "did not end within 1 s" in found.detail


def test_a_part_that_says_nothing_and_one_whose_other_rank_fails_are_failures(tmp_path: Path) -> None:
    findings = list(run_parts([part(""), part("here.findings.check('sum', str)\nsys.exit(2)")], tmp_path))
    assert [(one.name, one.status) for one in findings] == [("a part", "fail"), ("sum", "pass"), ("a part", "fail")]
    assert findings[2].exit_code == ExitCode.WRONG_ANSWER


def test_what_cannot_be_here_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (found,) = run_parts([Part("MPI", lambda folder: 0, "no mpirun on PATH")], tmp_path)
    assert (found.status, found.detail) == ("skip", "no mpirun on PATH")


def test_what_a_check_prints_goes_to_the_log_and_only_its_end_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = "here.findings.check('one', lambda: os.system('echo noise; echo noise >&2') and '')"
    assert [one.status for one in run_parts([part(noise)], tmp_path)] == ["pass"]
    shown = capfd.readouterr()
    assert "noise" not in shown.out + shown.err
    assert "self-test: pass one" in shown.err
    assert (tmp_path / "0" / "log").read_text() == "noise\nnoise\n"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((), 0), ((69,), 69), ((69, 1), 1), ((1, 2, 69), 2), ((64,), 1)],
)
def test_a_wrong_answer_comes_before_a_crash_and_that_before_what_is_lacking(
    codes: tuple[int, ...], expected: int
) -> None:
    findings = [Finding("fine", "pass", ""), *(Finding("bad", "fail", "", exit_code=code) for code in codes)]
    ended = SelfTest(findings, 1.0)
    assert ended.exit_code == expected
    assert list(ended.lines())[-1] == f"HPCAI500 SELF-TEST {'FAIL' if codes else 'PASS'}"


def test_what_was_not_tested_is_said_with_the_reason_before_the_verdict() -> None:
    findings = [Finding("one", "pass", ""), *(Finding(name, "skip", "no device") for name in ("two", "three"))]
    *_, counts, untested, verdict = SelfTest([*findings, Finding("MPI", "pass", "")], 1.0).lines()
    assert counts == "2 pass, 0 fail, 2 skip in 1 s"
    assert untested == "NOT TESTED: two, three: no device"
    assert verdict == "HPCAI500 SELF-TEST PASS"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("no CUDA device", "no CUDA device"), (None, "--set communication.backend=horovod")],
    ids=["without a device", "with one"],
)
def test_libraries_for_gpus_that_are_installed_are_named_as_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str | None, expected: str
) -> None:
    def find_device() -> torch.device:
        if reason:
            raise CannotBeChecked(reason)
        return torch.device("cuda", 0)

    # What the image for GPUs holds, which this machine lacks.
    monkeypatch.setattr(accelerator, "find_device", find_device)
    monkeypatch.setattr(accelerator, "installed", lambda *names: "1.0")
    monkeypatch.setattr(accelerator, "Horovod", lambda device: Mock(takes_cuda_tensors=True))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    log = FindingsLog(tmp_path / "findings.jsonl")
    added = {name: check for name, check in accelerator.checks().items() if name not in accelerator.CHECKS}
    for name, check in added.items():
        log.check(f"{name} [CUDA]", lambda check=check: accelerator.on_device(check))
    found = read_findings(tmp_path / "findings.jsonl").ended
    assert [(one.name, one.status) for one in found] == [
        ("NCCL [CUDA]", "skip"), ("Horovod over NCCL [CUDA]", "skip"), ("DALI [CUDA]", "skip"),
    ]  # fmt: skip
    assert expected in found[1].detail


def test_a_library_that_is_not_installed_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "installed", lambda *names: None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert accelerator.checks() == accelerator.CHECKS


def test_how_a_check_ends_is_what_it_raises(tmp_path: Path) -> None:
    log = FindingsLog(tmp_path / "findings.jsonl")
    bodies = {
        "fine": Mock(return_value="seen"),
        "wrong": Mock(side_effect=WrongAnswerError("4 instead of 5")),
        "lacks": Mock(side_effect=EnvironmentLacksError("no mpirun")),
        "broken": Mock(side_effect=ValueError("one\ntwo")),
        "cannot": Mock(side_effect=CannotBeChecked("no CUDA device")),
    }
    for name, body in bodies.items():
        log.check(name, body)
    found = read_findings(tmp_path / "findings.jsonl")
    assert found.running is None
    assert [(one.name, one.status, one.exit_code, one.detail) for one in found.ended] == [
        ("fine", "pass", 0, "seen"),
        ("wrong", "fail", 2, "4 instead of 5"),
        ("lacks", "fail", 69, "no mpirun"),
        ("broken", "fail", 1, "ValueError: one two"),
        ("cannot", "skip", 0, "no CUDA device"),
    ]


def test_without_a_place_for_temporary_files_the_verdict_is_fail_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(environment: object, work: Path) -> None:
        raise EnvironmentLacksError("no folder for temporary files can be written: set TMPDIR")

    monkeypatch.setattr(self_test, "scratch_folder", nowhere)
    ended = self_test.run_self_test(2)
    assert ended.exit_code == ExitCode.ENVIRONMENT
    assert "set TMPDIR" in ended.document()["checks"][0]["detail"]
    assert "set TMPDIR" in capsys.readouterr().err


def test_no_gpu_is_told_to_the_process_that_would_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(self_test, "_one_process", lambda environment, *words: started.append(words))
    list(self_test.parts(2, os.environ, "", no_gpu=True))
    assert ("libraries", "no-gpu") in started


def test_a_terminals_ctrl_c_ends_ranks_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}

    def loads_torch(process: Path) -> bool:
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            ours = f"TMPDIR={tmp_path}".encode() in (process / "environ").read_bytes()
            return ours and b"libtorch" in (process / "maps").read_bytes()
        return False

    process = subprocess.Popen(
        [HPCAI500, "self-test"], env=environment, cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    assert any("libraries: MPI launcher" in line for line in process.stderr)
    while not any(map(loads_torch, Path("/proc").glob("[0-9]*"))):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = process.stderr.read()
    assert process.wait() == 1
    assert said.splitlines()[-1] == "hpcai500: error: stopped by Ctrl-C"
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_this_installation_passes_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [HPCAI500, "self-test", "--json"], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    document = json.loads(ended.stdout)
    assert [check for check in document["checks"] if check["status"] == "fail"] == [], ended.stderr
    assert (ended.returncode, document["verdict"]) == (0, "pass")
    names = {check["name"] for check in document["checks"]}
    assert {"all-reduce: torch, Gloo", "training run: ic", "training run: ewa", "crop boxes [portable]"} <= names
    assert {"convolutions: ic/smoke", "convolutions: ewa/smoke"} <= names
    assert {"name", "status", "detail", "seconds"} <= document["checks"][0].keys()
    assert "self-test: pass training run: ewa" in ended.stderr
    assert not list(tmp_path.iterdir())


class Careless(LocalCommunicator):
    """One rank whose library gets one sum wrong by the last bit."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        tensor[-1] += 2**-10


def test_an_exact_sum_passes_and_the_last_bit_of_one_does_not() -> None:
    assert "exactly" in check_sum(LocalCommunicator(), 1)
    with pytest.raises(WrongAnswerError, match="rank 0 has 1 of 1000003 sums wrong"):
        check_sum(Careless(), 1)


def test_ranks_that_did_not_come_together_are_no_sum() -> None:
    with pytest.raises(RunError, match="1 ranks connected instead of 2"):
        check_sum(LocalCommunicator(), 2)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert "66 images in 2 epochs" in train_tiny("ic", folder)
    return folder / "record"


def test_another_number_of_images_is_found(record: Path) -> None:
    assert check_record(read_record(record), 33).images == 66
    with pytest.raises(WrongAnswerError, match="images"):
        check_record(read_record(record), 34)


def test_a_result_that_is_not_the_events_is_found(record: Path) -> None:
    path = record / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"flops": result["flops"] * 1.01}))
    with pytest.raises(WrongAnswerError, match=r"result\.json"):
        check_record(read_record(record), 33)
    path.write_text(json.dumps(result))


def test_weights_that_are_no_numbers_are_found(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = torch.load

    def broken(*arguments: object, **named: object) -> dict[str, dict[str, torch.Tensor]]:
        return {"model": {name: tensor * torch.nan for name, tensor in load(*arguments, **named)["model"].items()}}

    monkeypatch.setattr(torch, "load", broken)
    with pytest.raises(WrongAnswerError, match="weights with NaN or infinite values"):
        check_record(read_record(record), 33)


def test_a_run_that_fails_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "ERROR").write_text("the disk is full\n")
    with pytest.raises(HpcAi500Error, match="the disk is full"):
        train_tiny("ic", tmp_path)
