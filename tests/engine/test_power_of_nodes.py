"""The power of several nodes, whose ranks are threads here: each node its file, all of them one event."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from comm.thread_ranks import run_threads
from power_places import ScriptedSource

from hpcai500.comm.communicator import Communicator
from hpcai500.engine.reporting import SilentJournal
from hpcai500.engine.run_power import RunPower
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.methodology import energy
from hpcai500.methodology.energy import power_of_run
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import Record, RecordWriter, iterate, read_record
from hpcai500.system.power import Opener, Reading, parse_power
from hpcai500.system.power_samples import check_power

HOSTS = ("n1", "n1", "n2", "n2")
RECIPE = load_recipe("ic/smoke")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests may keep a thread waiting for long."""
    monkeypatch.setattr(energy, "_SHORTEST_GAP_SECONDS", 60.0)


def missing(words: str) -> Opener:
    def fail() -> ScriptedSource:
        raise EnvironmentLacksError(words)

    return fail


def measured(
    folder: Path, choice: str, how: Mapping[str, Mapping[str, Opener]], *, shared: bool = True, seconds: float = 0.4
) -> Record:
    """The record of a run of `seconds` on four ranks of two nodes; each node opens its sources as `how` says."""

    def rank(world: Communicator) -> None:
        host = world.hosts[world.rank]
        out = folder / "record" if shared else folder / host / "record"
        writer = RecordWriter.create(out, RECIPE) if world.rank == 0 else None
        journal = writer or SilentJournal(out)
        journal.event("init_start", {"recipe_hash": recipe_hash(RECIPE), "boot_id": "boot"})
        power = RunPower(parse_power(choice), world, out, on_gpu=True, how=how.get(host, {}))
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


def told(record: Record) -> dict[str, Any]:
    (event,) = iterate(record.events, "power")
    value: dict[str, Any] = event["value"]
    return value


def steady(watts: float) -> Opener:
    return lambda: ScriptedSource(Reading({"": watts}))


@pytest.mark.parametrize("shared", [True, False], ids=["one file system", "each its own"])
def test_each_node_is_measured_once_and_its_samples_come_into_the_record(tmp_path: Path, shared: bool) -> None:
    record = measured(tmp_path, "rapl", {"n1": {"rapl": steady(100)}, "n2": {"rapl": steady(300)}}, shared=shared)
    nodes = told(record)["nodes"]
    assert [node["host"] for node in nodes] == ["n1", "n2"]
    assert [node["mean_watts"] for node in nodes] == [pytest.approx(100), pytest.approx(300)]
    assert sorted(path.name for path in (record.path / "power").iterdir()) == ["n1.csv", "n2.csv"]
    assert nodes[0]["clock_offset_seconds"] == 0
    assert abs(nodes[1]["clock_offset_seconds"]) < 60
    check_power(record)
    assert power_of_run(record.events, nodes[0]["seconds"], 8e9, None)["flops_per_watt"] == pytest.approx(2e7)


def test_auto_takes_the_widest_that_all_nodes_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {
        "n1": {"ipmi": steady(500), "nvml": steady(200), "rapl": steady(100)},
        "n2": {"ipmi": missing("no ipmitool"), "nvml": steady(210), "rapl": steady(110)},
    }
    record = measured(tmp_path, "auto", sources)
    assert [node["mean_watts"] for node in told(record)["nodes"]] == [pytest.approx(200), pytest.approx(210)]
    assert capsys.readouterr().err.count("power: scripted on 2 nodes: nothing real (scope node), every 0.01 s") == 1


def test_auto_is_silent_where_a_node_has_nothing_and_the_record_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = dict.fromkeys(("ipmi", "nvml", "rapl"), missing("there is none"))
    record = measured(tmp_path, "auto", {"n1": nothing | {"rapl": steady(1)}, "n2": nothing})
    assert capsys.readouterr().err == ""
    assert told(record)["reason"] == "no source of power on n2: there is none; there is none; there is none"
    assert not (record.path / "power").exists()


def test_a_source_that_was_named_and_one_node_lacks_is_an_error_that_names_the_node(tmp_path: Path) -> None:
    sources = {"n1": {"rapl": steady(1)}, "n2": {"rapl": missing("RAPL: only root may read it")}}
    with pytest.raises(EnvironmentLacksError, match="--power rapl: n2: RAPL: only root may read it"):
        measured(tmp_path, "rapl", sources)


def test_a_node_that_stops_answering_makes_the_sum_unknown_by_name(tmp_path: Path) -> None:
    silent = {"rapl": lambda: ScriptedSource("the driver is gone")}
    record = measured(tmp_path, "rapl", {"n1": {"rapl": steady(100)}, "n2": silent})
    value = told(record)
    assert value["reason"] == "n2: the driver is gone"
    assert value["nodes"][0]["energy_joules"] == pytest.approx(100 * value["nodes"][0]["seconds"])
    assert (value["nodes"][1]["file"], value["nodes"][1]["energy_joules"]) == (None, None)
    assert value["nodes"][1]["failures"] > 0
    check_power(record)


def test_one_meter_of_all_nodes_is_read_once_and_needs_the_word(tmp_path: Path) -> None:
    now = time.time()
    meter = tmp_path / "pdu.csv"
    meter.write_text("time,watts\n" + "".join(f"{now + number - 20},700\n" for number in range(200)))
    record = measured(tmp_path, f"csv:{meter},scope=pdu", {})
    (node,) = told(record)["nodes"]
    assert (node["covers"], node["mean_watts"], told(record)["reason"]) == (["n1", "n2"], pytest.approx(700), None)
    with pytest.raises(UsageError, match="one file for 2 nodes: give each its own"):
        measured(tmp_path / "again", f"csv:{meter}", {})


def test_each_node_may_have_a_meter_of_its_own(tmp_path: Path) -> None:
    now = time.time()
    for host, watts in (("n1", 100), ("n2", 150)):
        rows = "".join(f"{now + number - 20},{watts}\n" for number in range(200))
        (tmp_path / f"{host}.csv").write_text(f"time,watts\n{rows}")
    nodes = told(measured(tmp_path, f"csv:{tmp_path}/%h.csv", {}))["nodes"]
    assert [(node["host"], node["mean_watts"]) for node in nodes] == [
        ("n1", pytest.approx(100)),
        ("n2", pytest.approx(150)),
    ]


def test_a_short_run_says_so_once_and_its_energy_is_told(tmp_path: Path) -> None:
    sources = {"n1": {"rapl": steady(100)}, "n2": {"rapl": lambda: ScriptedSource(*[Reading({"": 5.0})] * 9, "busy")}}
    value = told(measured(tmp_path, "rapl", sources, seconds=0.2))
    assert value["reason"] is None
    assert "n1: " in value["note"]
    assert "(and 1 more)" in value["note"]
    assert "readings failed (busy)" in value["nodes"][1]["note"]
    assert json.dumps(value)
