"""The power of real, tiny runs: from a meter's file or a source to the result, through restarts, on two ranks.

Times in records are rounded to microseconds, and these runs take tenths of a second: equal means to 1 in 10,000.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from many_ranks import start
from power_places import answering_ipmitool
from tiny_runs import TINY, train_arguments

from hpcai500 import train
from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import launcher_of
from hpcai500.launch.runs import Request, run_benchmark
from hpcai500.methodology import energy
from hpcai500.record import iterate, line_hash, read_record
from hpcai500.results.outcome import figure_of_merit_lines, summary_lines
from hpcai500.results.score import expand, score_record, summarise_trials
from hpcai500.system.power_samples import read_samples, samples_of

ONE = "problem.epochs=1"


def write_meter(path: Path, power: Callable[[float], float], begin: float, end: float) -> Path:
    """A meter's file from `begin` to `end` seconds from now, a row each half second."""
    now = time.time()
    times = [now + begin + 0.5 * number for number in range(round(2 * (end - begin)))]
    path.write_text("\n".join(["time,watts", *(f"{at:.3f},{power(at):.6f}" for at in times)]) + "\n")
    return path


@pytest.fixture(scope="module")
def metered(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside a meter that has read 250 W all the time."""
    folder = tmp_path_factory.mktemp("metered")
    write_meter(folder / "meter.csv", lambda _: 250.0, -20, 600)
    arguments = train_arguments(images, folder / "record", ONE)
    assert train.main([*arguments, "--power", f"csv:{folder / 'meter.csv'},scope=pdu"]) == 0
    return folder / "record"


def test_a_constant_power_gives_power_times_the_time_of_the_run(metered: Path) -> None:
    result = score_record(metered)
    assert result.energy_joules == pytest.approx(250 * result.seconds, rel=1e-4)
    assert result.watts == pytest.approx(250, rel=1e-4)
    assert (result.power_source, result.power_scope) == ("csv", "pdu")
    assert result.flops_per_watt == pytest.approx(result.flops / 250, rel=1e-4)
    # The target is not the edition's.
    assert result.vflops_per_watt is None
    assert "fewer than MLPerf's rules ask for" in str(result.power_note)
    assert json.loads((metered / "result.json").read_text())["watts"] == pytest.approx(250, rel=1e-4)


def test_it_is_shown_to_people_and_harnesses(metered: Path) -> None:
    result = score_record(metered)
    shown = "\n".join(summary_lines(result))
    assert "mean 250 W (csv, scope pdu)" in shown
    assert "FLOPS/W" in shown
    figures = list(figure_of_merit_lines(result))
    (watts,) = (line for line in figures if line.startswith("HPCAI500 FOM watts="))
    # The meter's times have milliseconds: of a run of some hundredths of a second that is a part.
    assert float(watts.removeprefix("HPCAI500 FOM watts=").removesuffix(" W")) == pytest.approx(250, rel=1e-4)
    assert any(line.startswith("HPCAI500 FOM flops_per_watt=") and line.endswith(" FLOPS/W") for line in figures)


def test_the_event_has_the_keys_that_others_read(metered: Path) -> None:
    (event,) = iterate(read_record(metered).events, "power")
    (node,) = event["value"]["nodes"]
    assert {"host", "source", "scope", "interval_seconds", "samples", "seconds", "energy_joules", "mean_watts", "gaps",
            "file", "sha256"} <= node.keys()  # fmt: skip
    (file,) = samples_of(read_record(metered)).values()
    assert {row.watts for row in file.rows} == {250.0}


def copied(record: Path, to: Path) -> Path:
    return Path(shutil.copytree(record, to))


def test_samples_that_were_changed_are_noticed(metered: Path, tmp_path: Path) -> None:
    record = copied(metered, tmp_path / "record")
    (file,) = (record / "power").iterdir()
    file.write_text(file.read_text().replace(",250.000,", ",240.000,", 1))
    with pytest.raises(RecordError, match="not the power samples that the events name: its hash differs"):
        score_record(record)
    file.unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        score_record(record)


def forge(record: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the event `power`, and all hashes after it."""
    log = record / "events.jsonl"
    lines, previous = [], ""
    for line in log.read_bytes().splitlines():
        event = json.loads(line)
        if event["key"] == "power":
            change(event["value"]["nodes"][0])
        if previous:
            event["prev"] = previous
        lines.append(json.dumps(event, separators=(",", ":")).encode())
        previous = line_hash(lines[-1])
    log.write_bytes(b"\n".join(lines) + b"\n")
    (record / "DONE").write_text(f"{previous}\n")
    (record / "result.json").unlink()
    (record / "result.json").write_text("{}")


@pytest.mark.parametrize(
    ("key", "value"), [("energy_joules", 1.0), ("samples", 10**6), ("gaps", [[0.0, 1.0]]), ("mean_watts", None)]
)
def test_an_event_that_its_samples_do_not_give_is_refused(
    metered: Path, tmp_path: Path, key: str, value: object
) -> None:
    record = copied(metered, tmp_path / "record")
    forge(record, lambda node: node.update({key: value}))
    with pytest.raises(WrongAnswerError, match=f"samples of .* give {key}"):
        score_record(record)


def test_an_energy_without_samples_is_refused(metered: Path, tmp_path: Path) -> None:
    record = copied(metered, tmp_path / "record")
    forge(record, lambda node: node.update(file=None, sha256=None))
    with pytest.raises(WrongAnswerError, match="and no samples"):
        score_record(record)


def test_a_file_outside_of_the_records_folder_is_refused(metered: Path, tmp_path: Path) -> None:
    record = copied(metered, tmp_path / "record")
    forge(record, lambda node: node.update(file="power/../../x"))
    with pytest.raises(RecordError, match="not a file in power/"):
        score_record(record)


def test_a_power_event_that_lacks_something_is_no_record(metered: Path, tmp_path: Path) -> None:
    record = copied(metered, tmp_path / "record")
    forge(record, lambda node: node.pop("sha256"))
    with pytest.raises(RecordError, match="the event power lacks something: KeyError 'sha256'"):
        score_record(record)


def test_a_run_that_is_not_done_names_no_file_outside_of_its_record_either(metered: Path, tmp_path: Path) -> None:
    record = copied(metered, tmp_path / "record")
    forge(record, lambda node: node.update(file="power/.."))
    (record / "DONE").unlink()
    with pytest.raises(RecordError, match="not a file in power/"):
        read_record(record)


def test_a_meter_that_was_off_for_a_while_makes_the_energy_unknown(images: Path, tmp_path: Path) -> None:
    write_meter(tmp_path / "meter.csv", lambda _: 250.0, -200, -100)
    arguments = train_arguments(images, tmp_path / "record", ONE)
    assert train.main([*arguments, "--power", f"csv:{tmp_path / '*.csv'}"]) == 0
    result = score_record(tmp_path / "record")
    assert (result.energy_joules, result.watts, result.vflops_per_watt) == (None, None, None)
    assert "power is unknown for" in str(result.power_note)
    assert any(line.startswith("energy      unknown: ") for line in summary_lines(result))


def test_a_meters_file_that_never_comes_ends_no_run(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = train_arguments(images, tmp_path / "record", ONE)
    assert train.main([*arguments, "--power", f"csv:{tmp_path}/no-%h.csv"]) == 0
    assert "no such file yet on " in capfd.readouterr().err
    assert "no such file of a meter" in str(score_record(tmp_path / "record").power_note)


def test_without_a_source_it_is_unknown_and_nothing_is_said(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*train_arguments(images, tmp_path / "record", ONE), "--power", "none"]) == 0
    assert "power" not in capfd.readouterr().err
    result = score_record(tmp_path / "record")
    assert (result.energy_joules, result.power_note) == (None, "not measured (--power none)")


def test_a_source_that_was_asked_for_and_is_not_there_ends_before_the_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert train.main([*train_arguments(images, tmp_path / "record", ONE), "--power", "ipmi"]) == 69
    assert "--power ipmi: " in capfd.readouterr().err
    assert not list(iterate(read_record(tmp_path / "record").events, "run_start"))


def test_a_wrong_word_is_told_before_anything_is_done(tmp_path: Path) -> None:
    launcher = launcher_of(find_placement({}), None)
    with pytest.raises(UsageError, match="--power rapls: expected auto, none"):
        list(run_benchmark(Request("ic", out=tmp_path / "record", power="rapls"), launcher))
    assert not (tmp_path / "record").exists()
    assert train.main(["--recipe", "ic/smoke", "--data", "x", "--out", str(tmp_path / "record"), "--power", "x"]) == 64


def test_a_series_and_its_resumption_measure_alike(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_meter(tmp_path / "meter.csv", lambda _: 60.0, -20, 900)
    out, settings = tmp_path / "series", [*TINY, ONE]
    request = Request("ic", "ic/smoke", images, out, settings, trials=2, power="csv:meter.csv")
    launcher = launcher_of(find_placement({}), None)
    series = run_benchmark(request, launcher)
    assert next(series).exit_code == 0
    series.close()
    again = Request("ic", out=out, resume=True, power="csv:meter.csv")
    assert [run.exit_code for run in run_benchmark(again, launcher)] == [0, 0]
    results = [score_record(record) for record in expand([out])]
    assert [result.watts for result in results] == [pytest.approx(60, rel=1e-4)] * 2
    assert summarise_trials(results)["flops_per_watt"].runs == 2


def test_a_stopped_run_knows_its_energy_where_a_meter_has_measured_its_down_time(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    power = f"csv:{write_meter(tmp_path / 'meter.csv', lambda _: 100.0, -20, 900)}"
    arguments = [*train_arguments(images, out, "problem.epochs=2"), "--power", power]
    code = (
        "import os, signal, sys; from hpcai500 import train; from hpcai500.engine.trainer import Trainer; "
        "old = Trainer._evaluate; Trainer._evaluate = lambda self, epoch: (old(self, epoch), "
        "os.kill(os.getpid(), signal.SIGTERM))[0]; sys.exit(train.main(sys.argv[1:]))"
    )
    ended = start([sys.executable, "-c", code, *arguments], 1, "processes")
    assert ended.exit_codes == [1], ended.output
    time.sleep(1)
    assert train.main(["--resume", "--out", str(out), "--power", power]) == 0
    result = score_record(out)
    assert result.restarts == 1
    assert result.downtime_seconds > 1
    assert result.energy_joules == pytest.approx(100 * result.seconds, rel=1e-4)


def test_two_ranks_of_a_node_are_measured_once(images: Path, tmp_path: Path) -> None:
    write_meter(tmp_path / "meter.csv", lambda _: 80.0, -20, 600)
    settings = ("hardware.accelerators_per_node=2", "communication.backend=torch", "hyperparameters.batch_size=4", ONE)
    arguments = [*train_arguments(images, tmp_path / "record", *settings), "--power", f"csv:{tmp_path}/meter.csv"]
    ended = start([sys.executable, "-m", "hpcai500.train", *arguments], 2, "processes")
    assert ended.exit_codes == [0, 0], ended.output
    (event,) = iterate(read_record(tmp_path / "record").events, "power")
    assert len(event["value"]["nodes"]) == 1
    assert score_record(tmp_path / "record").watts == pytest.approx(80, rel=1e-4)


# --- a source that is asked while the run lasts: a real process for each reading, which stands for ipmitool


@pytest.fixture
def ipmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executable that stands for ipmitool, first on the PATH."""
    tools = answering_ipmitool(tmp_path / "bin", 214)["PATH"]
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


@pytest.mark.usefixtures("ipmi")
def test_a_run_is_sampled_from_its_first_moment_to_its_last(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # A machine that is busy with other tests may keep a process waiting for long.
    monkeypatch.setattr(energy, "_SHORTEST_GAP_SECONDS", 60.0)
    assert train.main(train_arguments(images, tmp_path / "record", ONE)) == 0
    assert "power: ipmi: the whole node (scope node), every 1 s" in capfd.readouterr().err
    result = score_record(tmp_path / "record")
    assert (result.power_source, result.power_scope) == ("ipmi", "node")
    assert result.energy_joules == pytest.approx(214 * result.seconds, rel=1e-4)
    (event,) = iterate(read_record(tmp_path / "record").events, "power")
    (node,) = event["value"]["nodes"]
    assert (node["gaps"], node["clock_offset_seconds"]) == ([], 0)
    assert node["cpu_seconds"] > 0


@pytest.mark.usefixtures("ipmi")
def test_a_killed_run_keeps_its_samples_and_what_goes_on_knows_that_some_are_missing(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record"
    arguments = [*train_arguments(images, out, "problem.epochs=2"), "--power", "ipmi"]
    code = (
        "import os, signal, sys, time; from hpcai500 import train; from hpcai500.engine.trainer import Trainer; "
        "old = Trainer._save; Trainer._save = lambda *told, **more: (old(*told, **more), time.sleep(1.5), "
        "os.kill(os.getpid(), signal.SIGKILL)); sys.exit(train.main(sys.argv[1:]))"
    )
    ended = start([sys.executable, "-c", code, *arguments], 1, "processes")
    assert ended.exit_codes == [-signal.SIGKILL], ended.output
    (file,) = (out / "power").iterdir()
    before = read_samples(file).rows
    assert before
    # Longer than the longest hole that is no gap.
    time.sleep(4)
    assert train.main(["--resume", "--out", str(out), "--power", "ipmi"]) == 0
    assert read_samples(file).rows[: len(before)] == before
    result = score_record(out)
    (event,) = iterate(read_record(out).events, "power")
    gaps = event["value"]["nodes"][0]["gaps"]
    assert max(end - begin for begin, end in gaps) > 3
    assert (result.energy_joules, result.power_source) == (None, "ipmi")
    unknown = sum(end - begin for begin, end in gaps)
    assert f"power is unknown for {unknown:.1f} s of {result.seconds:.1f} s" in str(result.power_note)
