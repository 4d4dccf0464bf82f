"""NVML, RAPL and IPMI behind one interface: what each reads, and what it says where it cannot."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_places import IPMI_ANSWER, MockNvml, SyntheticPowercap, answering_ipmitool, fake_ipmitool

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system import power
from hpcai500.system.power import (
    EnergyCount,
    IpmiSource,
    NvmlSource,
    RaplSource,
    ReadingError,
    automatic_names,
    find_domains,
    find_sources,
    parse_reading,
)

GIGA = 10**9


@pytest.fixture
def powercap(tmp_path: Path) -> SyntheticPowercap:
    """Two packages, each with its core and its memory, the platform's domain, and another way to a package."""
    tree = SyntheticPowercap(tmp_path / "powercap")
    for package in range(2):
        tree.zone(f"intel-rapl:{package}", f"package-{package}", microjoules=5_000_000)
        tree.zone(f"intel-rapl:{package}:0", "core")
        tree.zone(f"intel-rapl:{package}:1", "dram")
    tree.zone("intel-rapl:2", "psys")
    tree.zone("intel-rapl-mmio:0", "package-0")
    return tree


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the next readings are taken at; the last stays."""
    moments = [0.0]
    monkeypatch.setattr(power, "machine_seconds", lambda: moments.pop(0) if len(moments) > 1 else moments[0])
    return moments


# --- RAPL, on a synthetic tree


def test_packages_and_memory_count_once_and_parts_of_a_package_not_again(powercap: SyntheticPowercap) -> None:
    assert [domain.name for domain in find_domains(powercap.root)] == [
        "package-0", "package-0 dram", "package-1", "package-1 dram",
    ]  # fmt: skip
    assert RaplSource(powercap.root).covers == "processors and memory"


def test_a_count_begins_at_zero_and_sums_all_domains(powercap: SyntheticPowercap, clock: list[float]) -> None:
    source = RaplSource(powercap.root)
    clock[:] = [10.0, 12.0]
    first = source.read()
    assert (first.joules, first.total_watts) == (0.0, None)
    powercap.set("intel-rapl:0", 105_000_000)
    powercap.set("intel-rapl:1:1", 20_000_000)
    powercap.set("intel-rapl:0:0", 77_000_000)
    powercap.set("intel-rapl:2", 99_000_000)
    second = source.read()
    assert second.joules == pytest.approx(120)
    assert second.watts == {"package-0": 50, "package-0 dram": 0, "package-1": 0, "package-1 dram": 10}
    assert second.total_watts == pytest.approx(60)


def test_a_counter_that_is_full_starts_again_at_zero(powercap: SyntheticPowercap, clock: list[float]) -> None:
    powercap.set("intel-rapl:0", 262_143_000_000)
    source = RaplSource(powercap.root)
    clock[:] = [0.0, 1.0]
    source.read()
    powercap.set("intel-rapl:0", 49_671_150)
    assert source.read().joules == pytest.approx(50.0, abs=0.001)


def test_after_a_pause_in_which_it_may_have_turned_over_twice_the_count_begins_anew(
    powercap: SyntheticPowercap, clock: list[float]
) -> None:
    source = RaplSource(powercap.root)
    clock[:] = [0.0, 1.0, 300.0, 301.0]
    counts = []
    for energy in (5, 6, 7, 8):
        powercap.set("intel-rapl:0", energy * 1_000_000)
        counts.append(source.read().joules)
    assert counts == [0.0, pytest.approx(1.0), 0.0, pytest.approx(1.0)]


def test_a_counter_that_vanishes_for_a_while_is_no_reading(powercap: SyntheticPowercap) -> None:
    source = RaplSource(powercap.root)
    source.read()
    (powercap.root / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(ReadingError, match="RAPL: "):
        source.read()
    powercap.set("intel-rapl:0", 5_000_000)
    assert source.read().joules is not None


def test_counters_that_only_root_may_read_are_told_with_the_line_to_type(
    powercap: SyntheticPowercap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: object, **options: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_bytes().decode()

    # Root reads everything, whatever the mode says.
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(EnvironmentLacksError, match=r"only root may read it: ask for `chmod a\+r .*energy_uj`"):
        RaplSource(powercap.root)


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="has no counters"):
        RaplSource(tmp_path)


@given(st.integers(10**6, 10**12), st.lists(st.integers(0, 10**6 - 1), min_size=1, max_size=50))
def test_whatever_a_counter_of_any_size_counts_is_counted(size: int, steps: list[int]) -> None:
    count = EnergyCount({"a": float(size)})
    values = itertools.accumulate(steps, lambda value, step: (value + step) % size, initial=size - 1)
    *_, last = (count.look(float(second), {"a": float(value)}) for second, value in enumerate(values))
    assert last.joules == pytest.approx(sum(steps))


def test_the_real_counters_of_this_machine_count_up() -> None:
    try:
        source = RaplSource()
    except EnvironmentLacksError as error:
        pytest.skip(f"no RAPL on this machine: {error}")
    source.read()
    time.sleep(0.2)
    reading = source.read()
    assert reading.joules is not None
    assert 0 < reading.joules < 1000 * len(source.devices)


# --- IPMI, by an executable that stands for ipmitool


def test_the_power_of_the_node_is_read(tmp_path: Path) -> None:
    source = IpmiSource(answering_ipmitool(tmp_path, 214))
    assert (source.read().total_watts, source.read().joules, source.scope) == (214.0, None, "node")


def test_a_controller_that_hangs_is_left_after_its_time(tmp_path: Path) -> None:
    environment = answering_ipmitool(tmp_path)
    source = IpmiSource(environment, patience_seconds=5)
    fake_ipmitool(tmp_path, "exec sleep 60")
    source.patience_seconds = 0.2
    with pytest.raises(ReadingError, match=r"IPMI: no answer within 0\.2 s"):
        source.read()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'Could not open device at /dev/ipmi0' >&2; exit 1", "IPMI: Could not open device at /dev/ipmi0"),
        ("exit 3", "IPMI: exit code 3"),
        ("echo nonsense", "no line 'Instantaneous power reading'"),
        (f"cat <<END{IPMI_ANSWER.format(watts=0, state='activated')}END", "the controller reads 0 W"),
        (f"cat <<END{IPMI_ANSWER.format(watts=99, state='deactivated')}END", "power reading is deactivated"),
    ],
)
def test_an_answer_that_is_no_power_is_told(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(EnvironmentLacksError, match=message):
        IpmiSource(fake_ipmitool(tmp_path, body))


def test_without_ipmitool_there_is_no_ipmi(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="ipmitool is not installed"):
        IpmiSource({"PATH": str(tmp_path)})


def test_an_answer_without_a_state_counts() -> None:
    assert parse_reading("    Instantaneous power reading:   96 Watts\n") == 96.0


# --- NVML, by a mock


def test_devices_are_summed_and_their_energy_is_counted() -> None:
    mock = MockNvml()
    source = NvmlSource(mock)
    assert (source.read().total_watts, source.devices) == (500.0, ("gpu0", "gpu1"))
    mock.joules = [1150.0, 1100.0]
    assert source.read().joules == pytest.approx(250)
    source.close()
    assert mock.opened == 0


def test_devices_that_count_nothing_tell_their_power_alone() -> None:
    reading = NvmlSource(MockNvml(counts=False)).read()
    assert (reading.total_watts, reading.joules) == (500.0, None)


def test_a_counter_that_a_driver_has_reset_begins_a_new_count() -> None:
    mock = MockNvml(watts=(300.0,))
    source = NvmlSource(mock)
    source.read()
    mock.joules = [10.0]
    assert source.read().joules == 0.0


def test_a_device_that_is_lost_is_no_reading() -> None:
    mock = MockNvml()
    source = NvmlSource(mock)
    mock.fails = True
    with pytest.raises(ReadingError, match="NVML: GPU is lost"):
        source.read()


@pytest.mark.parametrize(("watts", "message"), [((), "NVML: no device"), ((1.0,), "does not tell its power")])
def test_no_device_or_a_silent_one_is_no_source(watts: tuple[float, ...], message: str) -> None:
    mock = MockNvml(watts)
    mock.fails = bool(watts)
    with pytest.raises(EnvironmentLacksError, match=message):
        NvmlSource(mock)
    assert mock.opened == 0


@pytest.mark.gpu
def test_the_real_devices_of_this_machine_tell_their_power() -> None:
    try:
        source = NvmlSource()
    except EnvironmentLacksError as error:
        pytest.skip(f"no CUDA device: {error}")
    source.read()
    time.sleep(0.5)
    reading = source.read()
    source.close()
    assert 0 < (reading.total_watts or 0) < 2000 * len(source.devices)
    assert reading.joules is None or reading.joules > 0


# --- finding


def test_every_source_is_known_by_its_own_name_and_scope() -> None:
    """Verification asks the class what a record may tell of it."""
    assert {name: source.scope for name, source in power.SOURCES.items()} == {
        "ipmi": "node", "nvml": "device", "rapl": "device",
    }  # fmt: skip
    assert [source.name for source in power.SOURCES.values()] == list(power.SOURCES)


def test_the_widest_scope_comes_first_and_the_others_say_why_not(tmp_path: Path, powercap: SyntheticPowercap) -> None:
    how = {
        "ipmi": lambda: IpmiSource({"PATH": str(tmp_path)}),
        "nvml": lambda: NvmlSource(MockNvml()),
        "rapl": lambda: RaplSource(powercap.root),
    }
    found = find_sources(automatic_names(on_gpu=True), how)
    assert (list(found.sources), found.words) == (["nvml", "rapl"], "IPMI: ipmitool is not installed")
    taken = found.take("rapl")
    assert taken
    assert taken.name == "rapl"


def test_a_run_on_processors_does_not_count_accelerators_that_it_leaves_idle() -> None:
    assert automatic_names(on_gpu=False) == ("ipmi", "rapl")


def test_what_this_machine_has_can_be_asked() -> None:
    found = find_sources(automatic_names(on_gpu=True))
    assert {*found.sources, *found.missing} == {"ipmi", "nvml", "rapl"}
    found.take(None)
