"""The power of real, tiny runs: from a meter's file or a source to the result, through restarts, on ranks and nodes.

Times in records are rounded to microseconds, and these runs take tenths of a second: equal means to 1 in 10,000.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import edit_record
from builders.ranks import start
from builders.redfish import Server, documents, environment_metrics
from builders.runs import TINY, train_arguments
from comm.thread_ranks import run_threads
from fakes.nvml import MeteredNvml
from fakes.power import ScriptedSource, answering_ipmitool

from hpcai500 import train
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.identity import Gpu
from hpcai500.engine.reporting import SilentJournal
from hpcai500.engine.run_power import RunPower
from hpcai500.errors import EnvironmentLacksError, RecordError, UsageError, WrongAnswerError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import launcher_of
from hpcai500.launch.runs import Request, run_benchmark
from hpcai500.methodology import energy
from hpcai500.methodology.energy import power_of_run
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import Event, Record, RecordWriter, iterate, read_record
from hpcai500.results.outcome import figure_of_merit_lines, summary_lines
from hpcai500.results.report.page import make_report
from hpcai500.results.score import expand, score_record, summarise_trials
from hpcai500.system.power import Opener, Reading, Scope, automatic_names, parse_power
from hpcai500.system.power_devices import NvmlSource
from hpcai500.system.power_reading import Parts
from hpcai500.system.power_samples import check_power, read_samples, samples_of

ONE = "problem.epochs=1"
near = partial(pytest.approx, rel=1e-4)


def write_meter(path: Path, watts: float, begin: float = -20, end: float = 900) -> Path:
    """A meter's file from `begin` to `end` seconds from now, a row each half second."""
    now = time.time()
    times = [now + begin + 0.5 * number for number in range(round(2 * (end - begin)))]
    path.write_text("\n".join(["time,watts", *(f"{at:.3f},{watts:.6f}" for at in times)]) + "\n")
    return path


def trained(images: Path, out: Path, power: str, *settings: str) -> Path:
    """The record of a run in this process whose power is measured so."""
    assert train.main([*train_arguments(images, out, *(settings or (ONE,))), "--power", power]) == 0
    return out


def told(record: Path | Record) -> dict[str, Any]:
    """The event `power`."""
    (event,) = iterate((record if isinstance(record, Record) else read_record(record)).events, "power")
    value: dict[str, Any] = event["value"]
    return value


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests may keep a thread or a process waiting for long."""
    monkeypatch.setattr(energy, "_SHORTEST_GAP_SECONDS", 60.0)


# ----------------------------------------------------------------------------------------------------
# A run beside a meter.


@pytest.fixture(scope="module")
def metered(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside a meter that has read 250 W all the time."""
    folder = tmp_path_factory.mktemp("metered")
    return trained(images, folder / "record", f"csv:{write_meter(folder / 'meter.csv', 250.0)},scope=pdu")


def test_a_constant_power_gives_power_times_the_time_of_the_run(metered: Path) -> None:
    result = score_record(metered)
    assert result.energy_joules == near(250 * result.seconds)
    assert result.watts == near(250)
    assert (result.power_source, result.power_scope) == ("csv", "pdu")
    assert result.flops_per_watt == near(result.flops / 250)
    # The target is not the edition's.
    assert result.vflops_per_watt is None
    assert "fewer than MLPerf's rules require" in str(result.power_note)
    assert json.loads((metered / "result.json").read_text())["watts"] == near(250)


def test_it_is_shown_to_people_harnesses_and_whoever_reads_the_events(metered: Path) -> None:
    result = score_record(metered)
    shown = "\n".join(summary_lines(result))
    assert "mean 250 W (csv, scope pdu)" in shown
    assert "FLOPS/W" in shown
    figures = list(figure_of_merit_lines(result))
    (watts,) = (line for line in figures if line.startswith("HPCAI500 FOM watts="))
    # The meter's times have milliseconds: of a run of some hundredths of a second that is a part.
    assert float(watts.removeprefix("HPCAI500 FOM watts=").removesuffix(" W")) == near(250)
    assert any(line.startswith("HPCAI500 FOM flops_per_watt=") and line.endswith(" FLOPS/W") for line in figures)
    (node,) = told(metered)["nodes"]
    keys = "host source scope interval_seconds samples seconds energy_joules mean_watts gaps file sha256"
    assert set(keys.split()) <= node.keys()
    (file,) = samples_of(read_record(metered)).values()
    assert {row.watts for row in file.rows} == {250.0}


@pytest.fixture
def copied(metered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(metered, tmp_path / "record"))


def test_samples_that_were_changed_are_noticed(copied: Path) -> None:
    (file,) = (copied / "power").iterdir()
    file.write_text(file.read_text().replace(",250.000,", ",240.000,", 1))
    with pytest.raises(RecordError, match="the power samples were changed: their hash differs"):
        score_record(copied)
    file.unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        score_record(copied)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"energy_joules": 1.0}, WrongAnswerError, "samples of .* give energy_joules"),
        ({"samples": 10**6}, WrongAnswerError, "samples of .* give samples"),
        ({"gaps": [[0.0, 1.0]]}, WrongAnswerError, "samples of .* give gaps"),
        ({"mean_watts": None}, WrongAnswerError, "samples of .* give mean_watts"),
        ({"file": None, "sha256": None}, WrongAnswerError, "but no samples"),
        ({"file": "power/../../x"}, RecordError, r"not a file in power/"),
        ({"sha256": ...}, RecordError, "the event power lacks something: KeyError 'sha256'"),
    ],
    ids=str,
)
def test_an_event_that_its_samples_do_not_give_is_refused(
    copied: Path, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    forge(copied, change)
    with pytest.raises(error, match=said):
        score_record(copied)


def test_a_run_that_is_not_done_names_no_file_outside_of_its_record_either(copied: Path) -> None:
    forge(copied, {"file": "power/.."})
    (copied / "DONE").unlink()
    with pytest.raises(RecordError, match="not a file in power/"):
        read_record(copied)


def forge(record: Path, change: dict[str, Any]) -> None:
    """Change what the events tell of the node, and all hashes after it; `...` takes a key away."""

    def edit(events: list[Event]) -> None:
        node = next(event for event in events if event["key"] == "power")["value"]["nodes"][0]
        node.update(change)
        for key in [key for key, value in change.items() if value is ...]:
            del node[key]

    edit_record(record, edit)
    (record / "result.json").write_text("{}")


def test_a_meter_that_was_off_for_a_while_makes_the_energy_unknown(images: Path, tmp_path: Path) -> None:
    write_meter(tmp_path / "meter.csv", 250.0, -200, -100)
    result = score_record(trained(images, tmp_path / "record", f"csv:{tmp_path / '*.csv'}"))
    assert (result.energy_joules, result.watts, result.vflops_per_watt) == (None, None, None)
    assert "power is unknown for" in str(result.power_note)
    assert any(line.startswith("energy      unknown: ") for line in summary_lines(result))


def test_a_meters_file_that_never_comes_ends_no_run(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = trained(images, tmp_path / "record", f"csv:{tmp_path}/no-%h.csv")
    assert "no such file yet on " in capfd.readouterr().err
    assert "no such meter file" in str(score_record(record).power_note)


def test_without_a_source_it_is_unknown_and_nothing_is_said(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = score_record(trained(images, tmp_path / "record", "none"))
    assert "power" not in capfd.readouterr().err
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
    with pytest.raises(UsageError, match="--power rapls: 'rapls' is no source; expected auto, none"):
        list(run_benchmark(Request("ic", out=tmp_path / "record", power="rapls"), launcher))
    assert not (tmp_path / "record").exists()
    assert train.main(["--recipe", "ic/smoke", "--data", "x", "--out", str(tmp_path / "record"), "--power", "x"]) == 64


def test_a_series_and_its_resumption_measure_alike(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_meter(tmp_path / "meter.csv", 60.0)
    out, launcher = tmp_path / "series", launcher_of(find_placement({}), None)
    request = Request("ic", "ic/smoke", images, out, [*TINY, ONE], trials=2, power="csv:meter.csv")
    series = run_benchmark(request, launcher)
    assert next(series).exit_code == 0
    series.close()
    again = Request("ic", out=out, resume=True, power="csv:meter.csv")
    assert [run.exit_code for run in run_benchmark(again, launcher)] == [0, 0]
    results = [score_record(record) for record in expand([out])]
    assert [result.watts for result in results] == [near(60)] * 2
    assert summarise_trials(results)["flops_per_watt"].runs == 2


def test_two_ranks_of_a_node_are_measured_once(images: Path, tmp_path: Path) -> None:
    meter = write_meter(tmp_path / "meter.csv", 80.0)
    settings = ("hardware.accelerators_per_node=2", "communication.backend=torch", "hyperparameters.batch_size=4", ONE)
    arguments = [*train_arguments(images, tmp_path / "record", *settings), "--power", f"csv:{meter}"]
    ended = start([sys.executable, "-m", "hpcai500.train", *arguments], 2, "processes")
    assert ended.exit_codes == [0, 0], ended.output
    assert len(told(tmp_path / "record")["nodes"]) == 1
    assert score_record(tmp_path / "record").watts == near(80)


# ----------------------------------------------------------------------------------------------------
# A run that is stopped or killed, and goes on.


def ended_by(number: signal.Signals, method: str, pause: float, arguments: list[str]) -> None:
    """A run that ends by a signal `pause` seconds after the trainer's `method` has come back."""
    code = (
        "import os, sys, time; from hpcai500 import train; from hpcai500.engine.trainer import Trainer; "
        f"old = Trainer.{method}; Trainer.{method} = lambda *told, **more: (old(*told, **more), time.sleep({pause}), "
        f"os.kill(os.getpid(), {int(number)}))[0]; sys.exit(train.main(sys.argv[1:]))"
    )
    ended = start([sys.executable, "-c", code, *arguments], 1, "processes")
    assert ended.exit_codes == [1 if number == signal.SIGTERM else -number], ended.output


def test_a_stopped_run_knows_its_energy_where_a_meter_has_measured_its_down_time(images: Path, tmp_path: Path) -> None:
    out, power = tmp_path / "record", f"csv:{write_meter(tmp_path / 'meter.csv', 100.0)}"
    arguments = [*train_arguments(images, out, "problem.epochs=2"), "--power", power]
    ended_by(signal.SIGTERM, "_evaluate", 0, arguments)
    time.sleep(1)
    assert train.main(["--resume", "--out", str(out), "--power", power]) == 0
    result = score_record(out)
    assert result.restarts == 1
    assert result.downtime_seconds > 1
    assert result.energy_joules == near(100 * result.seconds)


@pytest.fixture
def ipmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executable that stands for ipmitool, first on the PATH: a real process for each reading while a run lasts."""
    tools = answering_ipmitool(tmp_path / "bin", 214)["PATH"]
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


@pytest.mark.usefixtures("ipmi", "patience")
def test_a_run_is_sampled_from_its_first_moment_to_its_last(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = trained(images, tmp_path / "record", "auto")
    assert "power: ipmi: the whole node (scope node), every 1 s" in capfd.readouterr().err
    result = score_record(record)
    assert (result.power_source, result.power_scope) == ("ipmi", "node")
    assert result.energy_joules == near(214 * result.seconds)
    (node,) = told(record)["nodes"]
    assert (node["gaps"], node["clock_offset_seconds"]) == ([], 0)
    assert node["cpu_seconds"] > 0


@pytest.mark.usefixtures("ipmi")
def test_a_killed_run_keeps_its_samples_and_what_goes_on_knows_that_some_are_missing(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record"
    ended_by(signal.SIGKILL, "_save", 1.5, [*train_arguments(images, out, "problem.epochs=2"), "--power", "ipmi"])
    (file,) = (out / "power").iterdir()
    before = read_samples(file).rows
    assert before
    # Longer than the longest hole that is no gap.
    time.sleep(4)
    assert train.main(["--resume", "--out", str(out), "--power", "ipmi"]) == 0
    assert read_samples(file).rows[: len(before)] == before
    result, gaps = score_record(out), told(out)["nodes"][0]["gaps"]
    assert max(end - begin for begin, end in gaps) > 3
    assert (result.energy_joules, result.power_source) == (None, "ipmi")
    unknown = sum(end - begin for begin, end in gaps)
    assert f"power is unknown for {unknown:.1f} s of {result.seconds:.1f} s" in str(result.power_note)


# ----------------------------------------------------------------------------------------------------
# Several nodes, whose ranks are threads here: each node its file, all of them one event.


HOSTS = ("n1", "n1", "n2", "n2")
RECIPE = load_recipe("ic/smoke")
Sources = Mapping[str, Mapping[str, Opener]]
Measured = Callable[..., Record]


@pytest.fixture
def measured(patience: None, tmp_path: Path) -> Measured:
    """`measured(choice, how)`: the record of a run on four ranks of two nodes."""
    return lambda *given, **more: measured_run(Path(tempfile.mkdtemp(dir=tmp_path)), *given, **more)


def measured_run(
    folder: Path,
    choice: str,
    how: Sources,
    *,
    shared: bool = True,
    seconds: float = 0.4,
    uuids: Sequence[str | None] = (None,) * len(HOSTS),
) -> Record:
    """Of `seconds`; each node opens its sources as `how` says, each rank has the GPU of its UUID."""

    def rank(world: Communicator) -> None:
        host = world.hosts[world.rank]
        out = folder / "record" if shared else folder / host / "record"
        writer = RecordWriter.create(out, RECIPE) if world.rank == 0 else None
        journal = writer or SilentJournal(out)
        journal.event("init_start", {"recipe_hash": recipe_hash(RECIPE), "boot_id": "boot"})
        power = RunPower(parse_power(choice), world, out, gpu=Gpu(uuids[world.rank], "0"), how=how.get(host, {}))
        power.find()
        power.begin()
        journal.event("run_start", {"hosts": list(dict.fromkeys(world.hosts))})
        world.barrier()
        time.sleep(seconds)
        journal.event("run_stop")
        power.conclude(journal)
        power.close()
        if writer:
            writer.finish({})

    run_threads(rank, HOSTS)
    return read_record(folder / "record" if shared else folder / "n1" / "record")


def steady(watts: float) -> Opener:
    return lambda: ScriptedSource(Reading({"": watts}))


def missing(words: str) -> Opener:
    def fail() -> ScriptedSource:
        raise EnvironmentLacksError(words)

    return fail


# No source that `--power auto` tries.
NOTHING = dict.fromkeys(automatic_names(on_gpu=True), missing("there is none"))


def watts(record: Record) -> dict[str, Any]:
    return {node["host"]: node["mean_watts"] for node in told(record)["nodes"]}


def test_a_run_pays_only_for_the_accelerators_of_its_ranks(
    measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    class Quick(NvmlSource):
        interval_seconds = 0.01

    how = {host: {"nvml": lambda: Quick(MeteredNvml((300.0, 200.0, 70.0, 70.0), counts=False))} for host in HOSTS}
    first, second = (f"0000000{number}-0000-0000-0000-000000000000" for number in range(2))
    record = measured("nvml", how, uuids=[first, second, first, first])
    assert watts(record) == pytest.approx({"n1": 500, "n2": 300})
    assert "power: nvml on 2 nodes: 2 of 4 accelerators, used by this run (scope device)" in capsys.readouterr().err
    # Where a rank's device is not known, nothing is left out.
    assert watts(measured("nvml", how, uuids=[first, None, first, first])) == pytest.approx({"n1": 640, "n2": 300})


@pytest.mark.parametrize("shared", [True, False], ids=["one file system", "each its own"])
def test_each_node_is_measured_once_and_its_samples_come_into_the_record(measured: Measured, shared: bool) -> None:
    record = measured("rapl", {"n1": {"rapl": steady(100)}, "n2": {"rapl": steady(300)}}, shared=shared)
    nodes = told(record)["nodes"]
    assert watts(record) == pytest.approx({"n1": 100, "n2": 300})
    assert sorted(path.name for path in (record.path / "power").iterdir()) == ["n1.csv", "n2.csv"]
    assert nodes[0]["clock_offset_seconds"] == 0
    assert abs(nodes[1]["clock_offset_seconds"]) < 60
    check_power(record)
    power = power_of_run(record.events, nodes[0]["seconds"], 8e9, None)
    assert power["flops_per_watt"] == pytest.approx(2e7)


def test_auto_takes_the_widest_that_all_nodes_have(measured: Measured, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {
        "n1": NOTHING | {"ipmi": steady(500), "nvml": steady(200), "rapl": steady(100)},
        "n2": NOTHING | {"ipmi": missing("no ipmitool"), "nvml": steady(210), "rapl": steady(110)},
    }
    assert watts(measured("auto", sources)) == pytest.approx({"n1": 200, "n2": 210})
    assert capsys.readouterr().err.count("power: scripted on 2 nodes: nothing real (scope node), every 0.01 s") == 1


def test_auto_is_silent_where_a_node_has_nothing_and_the_record_says_which(
    measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    record = measured("auto", {"n1": NOTHING | {"rapl": steady(1)}, "n2": NOTHING})
    assert capsys.readouterr().err == ""
    assert told(record)["reason"] == "no source of power on n2: " + "; ".join(["there is none"] * 5)
    assert not (record.path / "power").exists()


def test_a_source_that_was_named_and_one_node_lacks_is_an_error_that_names_the_node(measured: Measured) -> None:
    sources = {"n1": {"rapl": steady(1)}, "n2": {"rapl": missing("RAPL: only root can read it")}}
    with pytest.raises(EnvironmentLacksError, match="--power rapl: n2: RAPL: only root can read it"):
        measured("rapl", sources)


def test_a_node_that_stops_answering_makes_the_sum_unknown_by_name(measured: Measured) -> None:
    silent = {"rapl": lambda: ScriptedSource("the driver is gone")}
    record = measured("rapl", {"n1": {"rapl": steady(100)}, "n2": silent})
    one, other = told(record)["nodes"]
    assert told(record)["reason"] == "n2: the driver is gone"
    assert one["energy_joules"] == pytest.approx(100 * one["seconds"])
    assert (other["file"], other["energy_joules"]) == (None, None)
    assert other["failures"] > 0
    check_power(record)


def test_one_meter_of_all_nodes_is_read_once_and_needs_the_word(measured: Measured, tmp_path: Path) -> None:
    meter = write_meter(tmp_path / "pdu.csv", 700)
    record = measured(f"csv:{meter},scope=pdu", {})
    (node,) = told(record)["nodes"]
    assert (node["covers"], node["mean_watts"], told(record)["reason"]) == (["n1", "n2"], pytest.approx(700), None)
    with pytest.raises(UsageError, match="one file for 2 nodes: give each its own"):
        measured(f"csv:{meter}", {})


def test_each_node_may_have_a_meter_of_its_own(measured: Measured, tmp_path: Path) -> None:
    for host, level in (("n1", 100), ("n2", 150)):
        write_meter(tmp_path / f"{host}.csv", level)
    assert watts(measured(f"csv:{tmp_path}/%h.csv", {})) == pytest.approx({"n1": 100, "n2": 150})


def test_a_short_run_says_so_once_and_its_energy_is_told(measured: Measured) -> None:
    busy = {"rapl": lambda: ScriptedSource(*[Reading({"": 5.0})] * 9, "busy")}
    value = told(measured("rapl", {"n1": {"rapl": steady(100)}, "n2": busy}, seconds=0.2))
    assert value["reason"] is None
    assert "n1: " in value["note"]
    assert "(and 1 more)" in value["note"]
    assert "readings failed (busy)" in value["nodes"][1]["note"]
    assert json.dumps(value)


# ----------------------------------------------------------------------------------------------------
# Two sources side by side.


def source_of(
    name: str, watts: float, scope: Scope = "node", parts: Parts | None = "node", *limits: dict[str, float]
) -> Opener:
    """A source of steady power under the name of a real one."""

    def opened() -> ScriptedSource:
        source = ScriptedSource(Reading({"": watts}))
        source.name, source.scope, source.parts = name, scope, parts
        source.limits = list(limits) or [{}]
        return source

    return opened


def beside(first: float, other: float) -> Sources:
    sources = {"ipmi": source_of("ipmi", first), "pm_counters": source_of("pm_counters", other)}
    return {"n1": sources, "n2": sources}


def test_two_sources_are_sampled_and_compared_on_each_node_and_the_first_counts(
    measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    record = measured("ipmi,pm_counters", beside(1000, 1120), shared=False)
    value = told(record)
    assert watts(record) == pytest.approx({"n1": 1000, "n2": 1000})
    assert [(entry["host"], entry["source"]) for entry in value["beside"]] == [
        ("n1", "pm_counters"),
        ("n2", "pm_counters"),
    ]
    files = sorted(path.name for path in (record.path / "power").iterdir())
    assert files == ["n1+pm_counters.csv", "n1.csv", "n2+pm_counters.csv", "n2.csv"]
    findings = [one["finding"] for one in value["comparisons"]]
    assert findings == [f"n{n}: pm_counters gives 1120.0 W, 12.0% more than ipmi (1000.0 W)" for n in (1, 2)]
    check_power(record)
    power = power_of_run(record.events, value["nodes"][0]["seconds"], 8e9, None)
    assert power["watts"] == pytest.approx(2000)
    assert power["power_note"].startswith(
        "n1: pm_counters gives 1120.0 W, 12.0% more than ipmi (1000.0 W) (and 1 more)"
    )
    assert capsys.readouterr().err.count("warning: power: n1: pm_counters gives 1120.0 W") == 1


def test_a_difference_of_less_than_a_tenth_is_recorded_and_no_warning(
    measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    record = measured("ipmi,pm_counters", beside(1000, 1080))
    assert [one["finding"] for one in told(record)["comparisons"]] == [None, None]
    assert [one["ratio"] for one in told(record)["comparisons"]] == pytest.approx([1.08, 1.08])
    assert "warning" not in capsys.readouterr().err


def test_devices_above_their_node_are_told(measured: Measured) -> None:
    sources = {"nvml": source_of("nvml", 900, "device", "accelerators"), "ipmi": source_of("ipmi", 800)}
    record = measured("nvml,ipmi", {"n1": sources, "n2": sources})
    assert "n1: nvml gives 900.0 W for a part of what ipmi measures with 800.0 W" in str(told(record)["comparisons"])


def test_a_source_that_hangs_delays_no_other(measured: Measured) -> None:
    release = threading.Event()

    def hanging() -> ScriptedSource:
        source = ScriptedSource(Reading({"": 5.0}), lambda: (release.wait() and Reading()) or Reading())
        source.name = "pm_counters"
        return source

    sources = {"ipmi": source_of("ipmi", 300), "pm_counters": hanging}
    record = measured("ipmi,pm_counters", {"n1": sources, "n2": sources})
    release.set()
    assert watts(record) == pytest.approx({"n1": 300, "n2": 300})
    assert told(record)["reason"] is None
    assert {entry["failure"] for entry in told(record)["beside"]} == {"it does not respond any more"}
    # Forty readings of 0.01 s; the hanging one took one.
    assert min(entry["samples"] for entry in told(record)["nodes"]) > max(e["samples"] for e in told(record)["beside"])


def test_power_caps_are_recorded_and_a_change_during_the_run_is_told(measured: Measured) -> None:
    before = {"gpu0": 700.0, "gpu1": 700.0}
    steady_caps = source_of("nvml", 900, "device", "accelerators", before)
    lowered = source_of("nvml", 900, "device", "accelerators", before, before | {"gpu1": 500.0})
    record = measured("nvml", {"n1": {"nvml": steady_caps}, "n2": {"nvml": lowered}})
    one, other = told(record)["nodes"]
    assert (one["caps"], one["caps_after"], other["caps_after"]) == (before, before, {"gpu0": 700.0, "gpu1": 500.0})
    assert "power caps changed" not in str(one["note"])
    assert "power caps changed during the run (gpu1: 700 W, then 500 W)" in other["note"]


def test_one_address_of_all_nodes_is_asked_once_and_needs_the_word(measured: Measured) -> None:
    nodes = {"ipmi": source_of("ipmi", 300)}
    opened = []

    def pdu(place: str) -> ScriptedSource:
        opened.append(place)
        return source_of("redfish", 550, "pdu", None)()  # type: ignore[return-value]

    how: Any = {"n1": nodes | {"redfish": pdu}, "n2": nodes | {"redfish": pdu}}
    record = measured("ipmi,redfish:https://pdu/redfish/v1/PowerEquipment/RackPDUs/1,scope=pdu", how)
    assert len(opened) == 1
    (entry,), (found,) = told(record)["beside"], told(record)["comparisons"]
    assert (entry["covers"], entry["scope"]) == (["n1", "n2"], "pdu")
    # Two nodes of 300 W cannot be a part of 550 W.
    assert "ipmi gives 600.0 W for a part of what redfish measures with 550.0 W" in found["finding"]
    check_power(record)
    with pytest.raises(UsageError, match="one address for 2 nodes: give each its own"):
        measured("redfish:https://bmc", how)


def test_a_second_source_that_a_node_lacks_ends_before_the_run(measured: Measured) -> None:
    sources = {"ipmi": source_of("ipmi", 300)}
    with pytest.raises(EnvironmentLacksError, match="--power rapl: n2: RAPL: only root can read it"):
        measured(
            "ipmi,rapl",
            {"n1": sources | {"rapl": steady(1)}, "n2": sources | {"rapl": missing("RAPL: only root can read it")}},
        )


@pytest.mark.usefixtures("ipmi", "patience")
def test_a_run_beside_two_controllers_is_compared_from_the_option_to_the_result(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ipmitool's executable gives 214 W, the Redfish service 250 W."""
    with Server(documents(("1", "RackMount", environment_metrics(250.0, 400)))) as server:
        record = trained(images, tmp_path / "record", f"ipmi,redfish:{server.url}")
    warning = "redfish gives 250.0 W, 16.8% more than ipmi (214.0 W)"
    assert warning in capfd.readouterr().err
    result = score_record(record)
    assert (result.power_source, result.watts) == ("ipmi", near(214))
    assert warning in str(result.power_note)
    assert warning in "\n".join(summary_lines(result))
    (entry,) = told(record)["beside"]
    assert (entry["caps"], entry["scope"], entry["mean_watts"]) == ({"": 400.0}, "node", near(250))
    # The address of the controller is nobody's business.
    assert "127.0.0.1" not in (record / "events.jsonl").read_text()
    page = make_report([record]).html
    assert "Sources compared" in page
    assert "16.8% more than ipmi" in page
    assert "400 W" in page


@pytest.fixture(scope="module")
def compared(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside a meter of all nodes and one of its own node."""
    folder = tmp_path_factory.mktemp("compared")
    write_meter(folder / "meter.csv", 250.0)
    patched = pytest.MonkeyPatch()
    with patched.context() as context, Server(documents(("1", "RackMount", environment_metrics(240.0)))) as server:
        context.setattr(energy, "_SHORTEST_GAP_SECONDS", 60.0)
        return trained(images, folder / "record", f"csv:{folder / 'meter.csv'},redfish:{server.url}")


def _other_ratio(value: dict[str, Any]) -> None:
    value["comparisons"][0]["ratio"] = 1.0


def _another_finding(value: dict[str, Any]) -> None:
    value["comparisons"][0]["finding"] = "it is all right"


def _no_comparison(value: dict[str, Any]) -> None:
    value["comparisons"] = []


def _less_beside(value: dict[str, Any]) -> None:
    value["beside"][0]["mean_watts"] = value["beside"][0]["energy_joules"] = 0.5


def _a_file_outside(value: dict[str, Any]) -> None:
    value["beside"][0]["file"] = "power/../../x"


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (_other_ratio, WrongAnswerError, "do not give the comparison in the event power"),
        (_another_finding, WrongAnswerError, "do not give the comparison in the event power"),
        (_no_comparison, WrongAnswerError, "do not give the comparison in the event power"),
        (_less_beside, WrongAnswerError, "samples of .* give energy_joules"),
        (_a_file_outside, RecordError, "not a file in power/"),
    ],
)
def test_an_edited_comparison_is_refused(
    compared: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], error: type[Exception], said: str
) -> None:
    record = Path(shutil.copytree(compared, tmp_path / "record"))
    score_record(record)
    edit_record(record, lambda events: change(next(event for event in events if event["key"] == "power")["value"]))
    (record / "result.json").write_text("{}")
    with pytest.raises(error, match=said):
        score_record(record)
