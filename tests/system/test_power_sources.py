"""Sources of power beside NVML, RAPL and IPMI: what each reads, its caps, and what it says about wrong or old values.

Cray's counters, sensors of boards, AMD's library and DCGM's exporter cannot be here: trees of files, a module and a
server with their documented content stand for them, behind the same interface.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.power import SyntheticHwmon, SyntheticPmCounters

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system import power_kernel
from hpcai500.system.power_kernel import HwmonSource, PmCountersSource
from hpcai500.system.power_reading import ReadingError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The second at which the next readings are taken."""
    now = [100.0]
    monkeypatch.setattr(power_kernel, "machine_seconds", lambda: now[0])
    return now


# --- Cray's pm_counters


@pytest.fixture
def cray(tmp_path: Path) -> SyntheticPmCounters:
    return SyntheticPmCounters(tmp_path / "pm_counters")


def test_a_cray_counts_the_node_once_and_shows_its_parts(cray: SyntheticPmCounters, clock: list[float]) -> None:
    source = PmCountersSource(cray.root)
    assert (source.scope, source.devices) == ("node", ("cpu", "memory", "accel0", "accel1", "accel2", "accel3"))
    clock[0] = 101.0
    cray.set(power="1200 W", energy="91001234 J", accel2_power="310 W")
    reading = source.read()
    # The parts are inside the 1200 W.
    assert (reading.total_watts, reading.joules) == (1200.0, 1234.0)
    assert reading.watts == {"cpu": 220, "memory": 80, "accel0": 190, "accel1": 190, "accel2": 310, "accel3": 190}


def test_a_cap_of_0_is_none(cray: SyntheticPmCounters, clock: list[float]) -> None:
    source = PmCountersSource(cray.root)
    assert source.caps() == {f"accel{number}": 560.0 for number in range(4)}
    cray.set(power_cap="1600 W", generation="38")
    assert source.caps()[""] == 1600.0


def test_an_older_cray_has_one_file_for_its_accelerator(tmp_path: Path, clock: list[float]) -> None:
    cray = SyntheticPmCounters(tmp_path / "pm_counters", accelerators=0)
    cray.set(accel_power="90 W", accel_power_cap="0 W")
    (cray.root / "memory_power").unlink()
    assert PmCountersSource(cray.root).devices == ("cpu", "accel")


def test_values_that_are_no_longer_fresh_are_no_reading(cray: SyntheticPmCounters, clock: list[float]) -> None:
    source = PmCountersSource(cray.root)
    clock[0] = 101.0
    source.read()
    clock[0] = 104.0
    with pytest.raises(ReadingError, match="freshness has been 1001 for 4 s: the controller does not measure"):
        source.read()
    cray.set(energy="91004000 J")
    assert source.read().joules == 4000.0


def test_a_scan_during_a_reading_is_read_again(
    cray: SyntheticPmCounters, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = PmCountersSource(cray.root)
    real, scans = power_kernel._read, [1] * 2

    def read(file: Path, name: str) -> str:
        content = real(file, name)
        if file.name == "power" and scans and scans.pop():
            cray.set(power="1300 W", energy="91000500 J")
        return content

    monkeypatch.setattr(power_kernel, "_read", read)
    clock[0] = 101.0
    reading = source.read()
    assert (reading.total_watts, reading.joules) == (1300.0, 500.0)
    scans[:] = [1] * 100
    with pytest.raises(ReadingError, match="freshness changed during each of 5 readings"):
        source.read()


@pytest.mark.parametrize(
    "restart", [{"energy": "17 J"}, {"energy": "92000000 J", "startup": "1800000000000000"}], ids=["lower", "startup"]
)
def test_a_controller_that_started_again_begins_a_new_count(
    cray: SyntheticPmCounters, clock: list[float], restart: dict[str, str]
) -> None:
    source = PmCountersSource(cray.root)
    clock[0] = 101.0
    cray.set(**restart)
    assert source.read().joules == 0.0


@pytest.mark.parametrize("text", ["", "garbage", "-5 W 1 us", "nan W", "100 J 1 us", "1e3 W", "\0\xff"])
def test_a_file_that_holds_no_watts_is_told_by_its_name(
    cray: SyntheticPmCounters, clock: list[float], text: str
) -> None:
    source = PmCountersSource(cray.root)
    (cray.root / "power").write_text(text)
    with pytest.raises(ReadingError, match=r"pm_counters: .*/power: expected a number of W"):
        source.read()


@pytest.mark.parametrize("name", ["power", "energy", "freshness", "startup"])
def test_a_missing_counter_is_told_before_the_run(cray: SyntheticPmCounters, name: str) -> None:
    (cray.root / name).unlink()
    with pytest.raises(EnvironmentLacksError, match=rf"pm_counters: .*/{name}: No such file"):
        PmCountersSource(cray.root)
    with pytest.raises(EnvironmentLacksError, match="is not a Cray's"):
        PmCountersSource(cray.root / "none")


# --- hwmon


@pytest.fixture
def hwmon(tmp_path: Path) -> SyntheticHwmon:
    """A board's sensors, two cards of AMD, and Intel's, whose second channel is a part of its first."""
    tree = SyntheticHwmon(tmp_path / "hwmon")
    tree.chip("nvme", temp1_input=35000)
    tree.chip("amdgpu", power1_average=250_000_000, power1_input=1, power1_label="PPT", power1_cap=300_000_000)
    tree.chip("power_meter", power1_average=700_000_000, power1_cap=0)
    tree.chip("amdgpu", power1_input=150_500_000, power1_cap=300_000_000)
    return tree


def test_accelerators_are_found_by_their_driver_and_an_average_is_preferred(hwmon: SyntheticHwmon) -> None:
    source = HwmonSource(None, hwmon.root)
    assert (source.scope, source.parts) == ("device", "accelerators")
    reading = source.read()
    assert reading.watts == {"amdgpu0 power1 PPT": 250.0, "amdgpu1 power1": 150.5}
    assert (reading.total_watts, reading.joules) == (400.5, None)
    assert source.caps() == {"amdgpu0 power1 PPT": 300.0, "amdgpu1 power1": 300.0}


def test_a_boards_meter_is_read_when_the_site_names_it_and_its_scope(hwmon: SyntheticHwmon) -> None:
    source = HwmonSource("power_meter,scope=node", hwmon.root)
    assert (source.scope, source.parts, source.read().total_watts, source.caps()) == ("node", "node", 700.0, {})
    # Without a word, what it measures is unknown.
    assert (HwmonSource("power_meter", hwmon.root).scope, HwmonSource("power_meter", hwmon.root).parts) == (
        "device",
        None,
    )


def test_energy_is_counted_and_power_is_its_mean(hwmon: SyntheticHwmon, clock: list[float]) -> None:
    chip = hwmon.chip("xe", energy1_input=5_000_000, energy1_label="card", energy2_input=9, power1_cap=600_000_000)
    source = HwmonSource("xe/card", hwmon.root)
    clock[0] = 102.0
    (chip / "energy1_input").write_text("305000000\n")
    reading = source.read()
    assert (reading.total_watts, reading.joules) == (pytest.approx(150), pytest.approx(300))
    # Sixty-four bits of microjoules do not wrap around within years: a lower count was begun again.
    (chip / "energy1_input").write_text("1000\n")
    clock[0] = 103.0
    assert source.read().joules == 0.0


def test_sensors_that_may_include_each_other_are_not_added_up(hwmon: SyntheticHwmon) -> None:
    labels = {"energy1_label": "Ecore000", "energy2_label": "Esocket0", "energy3_label": "Esocket1"}
    hwmon.chip("amd_energy", energy1_input=1, energy2_input=2, energy3_input=3, **labels)
    with pytest.raises(EnvironmentLacksError, match=r"amd_energy has 3 sensors .*name those to add up"):
        HwmonSource("amd_energy", hwmon.root)
    source = HwmonSource("amd_energy/Esocket*", hwmon.root)
    assert source.devices == ("amd_energy0 energy2 Esocket0", "amd_energy0 energy3 Esocket1")


@pytest.mark.parametrize("text", ["", "N/A", "-1", "1.5", "9" * 40])
def test_a_sensor_that_holds_no_number_is_told(hwmon: SyntheticHwmon, text: str) -> None:
    source = HwmonSource(None, hwmon.root)
    (hwmon.root / "hwmon3" / "power1_input").write_text(text)
    with pytest.raises(ReadingError, match=r"hwmon: .*/hwmon3/power1_input: expected a number"):
        source.read()
    with pytest.raises(EnvironmentLacksError, match="expected a number"):
        HwmonSource(None, hwmon.root)


def test_a_sensor_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    tree = SyntheticHwmon(tmp_path / "hwmon")
    tree.chip("power_meter", power1_average=1)
    with pytest.raises(EnvironmentLacksError, match=r"no sensor of amdgpu, i915, xe; name one of power_meter"):
        HwmonSource(None, tree.root)
    with pytest.raises(EnvironmentLacksError, match="has no sensor ibmaem of power or energy"):
        HwmonSource("ibmaem", tree.root)


def test_the_sensors_of_this_machine_are_read_or_told() -> None:
    try:
        source = HwmonSource()
    except EnvironmentLacksError as error:
        assert str(error).startswith("hwmon: ")  # noqa: PT017 - either is right, by the machine
    else:
        assert source.read().total_watts is not None
