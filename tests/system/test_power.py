"""What `--power` may say, and the sources behind it: what each reads, and what it says where it cannot."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from fakes.nvml import MeteredNvml
from fakes.power import IPMI_ANSWER, SyntheticPowercap, answering_ipmitool, fake_ipmitool
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.system import power, power_devices, power_kernel, power_remote
from hpcai500.system.power import Meter, PowerChoice, ReadingError, automatic_names, find_sources, parse_power
from hpcai500.system.power_devices import AmdSource, NvmlSource
from hpcai500.system.power_kernel import PmCountersSource, RaplSource, find_domains
from hpcai500.system.power_reading import EnergyCount
from hpcai500.system.power_remote import IpmiSource, parse_reading

# --- `--power …`


@pytest.mark.parametrize("word", ["auto", "none", "nvml", "rapl", "ipmi"])
def test_a_word_is_a_kind(word: str) -> None:
    assert parse_power(word) == PowerChoice(word)
    assert str(parse_power(word).from_anywhere()) == word


@pytest.mark.parametrize(
    ("text", "meter"),
    [
        ("csv:m.csv", Meter("m.csv", 0.0, "node")),
        ("csv:/d/%h-*.csv,scope=pdu", Meter("/d/%h-*.csv", 0.0, "pdu")),
        ("csv:m.csv,offset=-3.5", Meter("m.csv", -3.5, "node")),
        ("csv:m.csv,scope=device,offset=1e-3", Meter("m.csv", 0.001, "device")),
        ("csv:a,b:c.csv,offset=2", Meter("a,b:c.csv", 2.0, "node")),
    ],
)
def test_a_meter_is_a_file_with_options_at_its_end(
    text: str, meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = parse_power(text)
    assert choice == PowerChoice("csv", meter)
    assert parse_power(str(choice)) == choice
    # It is found from another folder, too.
    monkeypatch.chdir(tmp_path)
    found = choice.from_anywhere().meter
    assert found is not None
    assert found.of("n1") == str(tmp_path / meter.of("n1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "expected auto, none") for text in ("", "RAPL", "csv", "csv:", "csv:,offset=3", "rapl:x")),
        ("csv:m,offset=soon", "offset: expected seconds, for example -3.5, got soon"),
        ("csv:m,offset=nan", "offset: expected seconds"),
        ("csv:m,scope=rack", "scope: expected device, node, pdu, got rack"),
        ("csv:m,offset=1,offset=2", "offset is given twice"),
        ("csv:m,scop=pdu", "scop: no such option of a meter"),
        ("csv:m,scop=pdu,offset=1", "scop: no such option of a meter"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_power(text)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("nvml,redfish:https://bmc-%h", ["nvml", "redfish"]),
        ("redfish:https://bmc-%h.example:8443/redfish/v1/Chassis/Self,nvml,rapl", ["redfish", "nvml", "rapl"]),
        ("csv:/d/a,b.csv,offset=-2,scope=pdu,ipmi", ["csv", "ipmi"]),
        ("hwmon:power_meter,scope=node,csv:/d/m,nvmlx.csv", ["hwmon", "csv"]),
        ("redfish:https://pdu-3/redfish/v1/PowerEquipment/RackPDUs/1,scope=pdu,nvml", ["redfish", "nvml"]),
        ("dcgm:http://%h:9400/metrics,hwmon:amd_energy/Esocket*", ["dcgm", "hwmon"]),
    ],
)
def test_a_comma_before_a_name_begins_a_source_to_compare_with(text: str, kinds: list[str]) -> None:
    choice = parse_power(text)
    assert [one.kind for one in (choice, *choice.beside)] == kinds
    assert parse_power(str(choice)) == choice
    assert parse_power(str(choice.from_anywhere())) == choice.from_anywhere()


def test_each_host_has_its_own_address() -> None:
    asked = []

    def opened(place: str) -> RaplSource:
        asked.append(place)
        raise EnvironmentLacksError("away")

    choice = parse_power("redfish:https://bmc-%h/redfish/v1/Chassis/%h")
    with pytest.raises(EnvironmentLacksError):
        choice.opener("n7", {"redfish": opened})()  # type: ignore[dict-item]
    assert asked == ["https://bmc-n7/redfish/v1/Chassis/n7"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auto,nvml", "auto and none stand alone"),
        ("nvml,none", "auto and none stand alone"),
        ("nvml,nvml", "a source is given twice"),
        ("csv:a,csv:b", "a source is given twice"),
        ("nvml,dgcm", "expected auto, none"),
        ("redfish", "redfish needs the controller's address, for example redfish:https://bmc-%h"),
        ("redfish:bmc-1", "expected an address"),
        ("redfish:ftp://bmc-1", "expected an address"),
        ("redfish:https://", "expected an address"),
        ("redfish:https://bmc,scope=node", "expected an address"),
        ("dcgm:https://n1,scope=pdu", "expected an address"),
        ("redfish:https://bmc:port", "expected an address"),
        ("dcgm:http://n1/metrics?x=1", "expected an address"),
        ("hwmon:../../etc", "expected hwmon:CHIP"),
        ("hwmon:power_meter,scope=pdu", "expected hwmon:CHIP"),
    ],
)
def test_a_wrong_list_or_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_power(text)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="must not contain a user or password") as raised:
        parse_power("redfish:https://root:calvin@bmc-1")
    assert "calvin" not in str(raised.value)


# --- RAPL, on a synthetic tree


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
    for module in (power_kernel, power_devices, power_remote):
        monkeypatch.setattr(module, "machine_seconds", lambda: moments.pop(0) if len(moments) > 1 else moments[0])
    return moments


def test_packages_and_memory_count_once_and_parts_of_a_package_not_again(
    powercap: SyntheticPowercap, clock: list[float]
) -> None:
    domains = ["package-0", "package-0 dram", "package-1", "package-1 dram"]
    assert [domain.name for domain in find_domains(powercap.root)] == domains
    source = RaplSource(powercap.root)
    assert source.covers == "processors and memory"
    clock[:] = [10.0, 12.0]
    first = source.read()
    assert (first.joules, first.total_watts) == (0.0, None)
    for zone, microjoules in (("0", 105), ("1:1", 20), ("0:0", 77), ("2", 99)):
        powercap.set(f"intel-rapl:{zone}", microjoules * 1_000_000)
    second = source.read()
    assert second.joules == pytest.approx(120)
    assert second.watts == dict(zip(domains, (50, 0, 0, 10), strict=True))
    assert second.total_watts == pytest.approx(60)


@pytest.mark.parametrize(
    ("moments", "microjoules", "counts"),
    [
        ([0.0, 1.0], [262_143_000_000, 49_671_150], [0.0, 50.0]),
        ([0.0, 1.0, 300.0, 301.0], [5_000_000, 6_000_000, 7_000_000, 8_000_000], [0.0, 1.0, 0.0, 1.0]),
    ],
    ids=["full: again from zero", "a pause in which it may have turned over twice: anew"],
)
def test_a_counter_that_turns_over_is_followed(
    powercap: SyntheticPowercap,
    clock: list[float],
    moments: list[float],
    microjoules: list[int],
    counts: list[float],
) -> None:
    source = RaplSource(powercap.root)
    clock[:] = moments
    found = []
    for energy in microjoules:
        powercap.set("intel-rapl:0", energy)
        found.append(source.read().joules)
    assert found == [pytest.approx(count, abs=0.001) for count in counts]


@given(st.integers(10**6, 10**12), st.lists(st.integers(0, 10**6 - 1), min_size=1, max_size=50))
def test_whatever_a_counter_of_any_size_counts_is_counted(size: int, steps: list[int]) -> None:
    count = EnergyCount({"a": float(size)})
    values = itertools.accumulate(steps, lambda value, step: (value + step) % size, initial=size - 1)
    *_, last = (count.look(float(second), {"a": float(value)}) for second, value in enumerate(values))
    assert last.joules == pytest.approx(sum(steps))


def test_the_long_term_limit_of_a_package_is_its_cap(powercap: SyntheticPowercap) -> None:
    source = RaplSource(powercap.root)
    assert source.caps() == {}
    (powercap.root / "intel-rapl:1" / "constraint_0_power_limit_uw").write_text("225000000\n")
    assert source.caps() == {"package-1": 225.0}


def test_a_counter_that_vanishes_for_a_while_is_no_reading(powercap: SyntheticPowercap) -> None:
    source = RaplSource(powercap.root)
    source.read()
    (powercap.root / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(ReadingError, match="RAPL: "):
        source.read()
    powercap.set("intel-rapl:0", 5_000_000)
    assert source.read().joules is not None


def test_counters_that_are_not_there_or_only_roots_are_told_with_the_line_to_type(
    powercap: SyntheticPowercap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: object, **options: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_bytes().decode()

    # Root reads everything, whatever the mode says.
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(EnvironmentLacksError, match=r"only root can read it: ask root for `chmod a\+r .*energy_uj`"):
        RaplSource(powercap.root)
    with pytest.raises(EnvironmentLacksError, match="has no counters"):
        RaplSource(tmp_path)


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
    # An answer without a state counts.
    assert parse_reading("    Instantaneous power reading:   96 Watts\n") == 96.0


def test_the_active_limit_of_the_controller_is_its_cap(tmp_path: Path) -> None:
    source = IpmiSource(answering_ipmitool(tmp_path))
    # As ipmitool 1.8.18 prints it.
    limit = "    Current Limit State: {state}\n    Power Limit:         600   Watts\n"
    for state, caps in (("Power Limit Active", {"": 600.0}), ("No Active Power Limit", {})):
        fake_ipmitool(
            tmp_path, f'[ "$*" = "dcmi power get_limit" ] || exit 9\ncat <<END\n{limit.format(state=state)}END'
        )
        assert source.caps() == caps


def test_a_controller_that_hangs_is_left_after_its_time(tmp_path: Path) -> None:
    source = IpmiSource(answering_ipmitool(tmp_path), patience_seconds=120)
    fake_ipmitool(tmp_path, "exec sleep 600")
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
        (None, "ipmitool is not installed"),
    ],
)
def test_an_answer_that_is_no_power_is_told(tmp_path: Path, body: str | None, message: str) -> None:
    with pytest.raises(EnvironmentLacksError, match=message):
        IpmiSource({"PATH": str(tmp_path)} if body is None else fake_ipmitool(tmp_path, body))


# --- NVML, by a mock


def test_devices_are_summed_and_their_energy_is_counted() -> None:
    mock = MeteredNvml()
    source = NvmlSource(mock)
    assert (source.read().total_watts, source.devices) == (500.0, ("gpu0", "gpu1"))
    assert source.caps() == {"gpu0": 700.0, "gpu1": 700.0}
    mock.joules = [1150.0, 1100.0]
    assert source.read().joules == pytest.approx(250)
    # A counter that a driver has reset begins a new count.
    mock.joules = [10.0, 10.0]
    assert source.read().joules == 0.0
    source.close()
    assert mock.opened == 0


def test_only_devices_of_the_run_are_measured_and_the_others_counted() -> None:
    mock = MeteredNvml((300.0, 200.0, 100.0))
    source = NvmlSource(mock)
    source.keep({"00000001-0000-0000-0000-000000000000"})
    assert (source.covers, source.devices) == ("1 of 3 accelerators, used by this run", ("gpu1",))
    assert (source.read().total_watts, source.caps()) == (200.0, {"gpu1": 700.0})
    mock.joules = [1500.0, 1020.0, 1000.0]
    assert source.read().joules == pytest.approx(20)
    # A part of a device (MIG) has a UUID of its own, and no power.
    everything = NvmlSource(mock)
    everything.keep({"00000001-0000-0000-0000-000000000000", "of a part"})
    assert (everything.covers, everything.read().total_watts) == ("3 accelerators", 600.0)


def test_devices_that_count_nothing_tell_their_power_alone_and_a_lost_one_is_no_reading() -> None:
    mock = MeteredNvml(counts=False)
    source = NvmlSource(mock)
    reading = source.read()
    assert (reading.total_watts, reading.joules) == (500.0, None)
    mock.fails = True
    with pytest.raises(ReadingError, match="NVML: GPU is lost"):
        source.read()


@pytest.mark.parametrize(("watts", "message"), [((), "NVML: no device"), ((1.0,), "does not report its power")])
def test_no_device_or_a_silent_one_is_no_source(watts: tuple[float, ...], message: str) -> None:
    mock = MeteredNvml(watts)
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
        "pm_counters": "node", "redfish": "node", "ipmi": "node", "nvml": "device", "amd": "device", "dcgm": "device",
        "hwmon": "device", "rapl": "device",
    }  # fmt: skip
    assert [source.name for source in power.SOURCES.values()] == list(power.SOURCES)


def test_the_widest_scope_comes_first_and_the_others_say_why_not(tmp_path: Path, powercap: SyntheticPowercap) -> None:
    how = {
        "pm_counters": lambda: PmCountersSource(tmp_path / "none"),
        "amd": lambda: AmdSource(hwmon=tmp_path),
        "ipmi": lambda: IpmiSource({"PATH": str(tmp_path)}),
        "nvml": lambda: NvmlSource(MeteredNvml()),
        "rapl": lambda: RaplSource(powercap.root),
    }
    found = find_sources(automatic_names(on_gpu=True), how)
    assert list(found.sources) == ["nvml", "rapl"]
    assert found.missing.keys() == {"pm_counters", "ipmi", "amd"}
    assert "IPMI: ipmitool is not installed" in found.words
    taken = found.take("rapl")
    assert taken
    assert taken.name == "rapl"
    # A run on processors does not count accelerators that it leaves idle.
    assert automatic_names(on_gpu=False) == ("pm_counters", "ipmi", "rapl")
    here = find_sources(automatic_names(on_gpu=True))
    assert {*here.sources, *here.missing} == {"pm_counters", "ipmi", "nvml", "amd", "rapl"}
    here.take(None)
