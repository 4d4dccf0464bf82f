"""Machines as files: what is in them, and what is said of a mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcai500.errors import UsageError
from hpcai500.machine import (
    Level,
    load_machine,
    origin_of_figures,
    origin_of_run,
    other_machine,
    parse_machine,
    shipped_machines,
    why_not_of,
)
from hpcai500.toml_source import Source

GOOD = """
name = "two"
source = "data sheet"
nodes = 1
accelerators_per_node = 2

[node]
accelerators = 2
peak_flops.fp32 = 1e12
bandwidths."PCIe 4" = 3e10
bound = "PCIe 4"
"""


def measured(value: float, **more: Any) -> dict[str, Any]:
    """One number as `hpcai500 micro` writes it."""
    return {
        "value": value, "unit": "FLOPS", "spread": 0.01, "shape": [64, 64, 64], "interval": [value, value],
        "repetitions": 5, "accelerators": 4, "nodes": 2, "device": "Zen 4", "precision": "fp32", "verified": True,
        **more,
    }  # fmt: skip


MICRO: dict[str, dict[str, Any]] = {
    "gemm fp32": measured(4e12),
    "conv fp32": measured(3e12),
    "copy": measured(40e9),
    "allreduce node": measured(
        5e9, ranks=2, table=[], link={"latency_seconds": 2e-5, "bytes_per_second": 6e9, "fitted_to": 5}
    ),
    "allreduce network": measured(1e9, accelerators=2, link={"latency_seconds": -1e-9, "bytes_per_second": 1.1e9}),
    "allreduce system": measured(0.9e9, link=None),
    "input ic": measured(100.0),
}


def written(folder: Path, document: Any) -> Path:
    path = folder / "micro.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_shipped_machine_is_found_by_its_name_and_by_its_path() -> None:
    assert shipped_machines() == ["v100-64"]
    machine = load_machine("v100-64")
    assert (machine.nodes, machine.accelerators_per_node) == (8, 8)


def test_a_file_in_the_working_folder_is_found(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")
    node = load_machine(path).node
    assert node
    assert node.bandwidths == {"PCIe 4": 3e10}


def test_an_unknown_machine_is_told_which_are_known_and_how_to_measure_one() -> None:
    with pytest.raises(UsageError, match=r"nowhere: no such file; choose one of v100-64, or .*micro -o micro.json"):
        load_machine("nowhere")


def test_a_site_file_is_told_from_a_machine_file() -> None:
    with pytest.raises(UsageError, match=r"local.toml: a site file \(\[container\]\).*slurm render --site.*v100-64"):
        load_machine("local")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"two"', "2"), r"my.toml:2: name: expected a valid string, got 2"),
        (("nodes = 1", "nodes = 0"), r"my.toml:4: nodes: expected greater than or equal to 1, got 0"),
        (("accelerators_per_node", "acelerators"), r"my.toml:5: acelerators: unknown table or key"),
        (("[node]", "[nod]"), r"my.toml:7: nod: unknown table or key; did you mean node\?"),
        (("bandwidths.", "bandwidth."), r"my.toml:10: \[node\] bandwidth: unknown key; did you mean bandwidths\?"),
        (("fp32 = 1e12", "fp32 = -1"), r"my.toml:9: \[node\] peak_flops.fp32: expected greater than 0, got -1"),
        (("fp32 = 1e12", "fp32 = inf"), r"my.toml:9: \[node\] peak_flops.fp32: expected a finite number, got inf"),
        (('bound = "PCIe 4"', 'bound = "NVLink"'), r"my.toml:7: node: bound: expected one of bandwidths \(PCIe 4\)"),
        (("[node]", "[node"), r"my.toml: not valid TOML"),
        (("[node]", '[[points]]\n[[points]]\nmodl = 1\n[node]'), r"my.toml:9: \[\[points\]\] 2.modl: .*mean model\?"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(change: tuple[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_machine(Source("my.toml", GOOD.replace(*change)))


def test_ceilings_of_a_part_of_the_accelerators_are_their_share_and_each_link_keeps_its_bandwidth() -> None:
    level = Level(accelerators=8, peak_flops={"fp32": 8.0}, ceilings={"GEMM fp32": 6.0}, bandwidths={"a": 3.0})
    part = level.of(2)
    assert part == Level(accelerators=2, peak_flops={"fp32": 2.0}, ceilings={"GEMM fp32": 1.5}, bandwidths={"a": 3.0})


def test_what_was_measured_on_two_nodes_becomes_both_models_and_links(tmp_path: Path) -> None:
    machine = load_machine(written(tmp_path, MICRO))
    node, system = machine.node, machine.system
    assert node
    assert system
    assert (machine.nodes, machine.accelerators_per_node) == (2, 2)
    assert node.ceilings == {"GEMM fp32": 2e12, "CONV fp32": 1.5e12}
    assert (node.bandwidths, node.bound) == ({"memory": 20e9, "interconnect": 5e9}, "interconnect")
    assert system.ceilings == {"GEMM fp32": 4e12, "CONV fp32": 3e12}
    assert system.bandwidths == {"network": 1e9, "all ranks": 0.9e9, "interconnect": 5e9}
    assert system.bound == "network"
    assert machine.node_link
    assert machine.node_link.latency_seconds == 2e-5
    # A fit may find a latency a little below nothing.
    assert machine.network
    assert machine.network.latency_seconds == 0.0


def test_one_rank_has_no_link(tmp_path: Path) -> None:
    machine = load_machine(written(tmp_path, {"gemm fp32": measured(1e12, accelerators=1, nodes=1)}))
    assert machine.system is None
    assert machine.node
    assert (machine.node.bandwidths, machine.node.bound) == ({}, None)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], r"not what `hpcai500 micro` writes: the file: "),
        ({"gemm fp32": {"value": 1.0, "nodes": 1}}, r"gemm fp32 accelerators: field required"),
        ({"gemm fp32": measured(0.0)}, r"gemm fp32 value: input should be greater than 0"),
        ({"gemm fp32": measured(1.0, verified=False)}, r"gemm fp32: the result was wrong.*hpcai500 doctor"),
        ({"gemm fp32": measured(1.0), "conv fp32": measured(1.0, accelerators=2)}, r"different numbers of ranks"),
        (
            {"gemm fp32": measured(1.0, accelerators=3)},
            r"3 ranks on 2 nodes: measure with the same number on each node",
        ),
        ({}, r"no measurement of an accelerator in it"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, document: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_machine(written(tmp_path, document))


@pytest.mark.parametrize(
    ("device", "ranks_per_node", "reason"),
    [
        ("cpu", 2, None),
        ("cpu", 1, r"1 rank a node share its cores, and the ceilings of two are of 2: .*micro --procs 1"),
        ("cuda", 1, None),
        ("cuda", 4, "the run has 4 accelerators per node, but two has 2"),
    ],
)
def test_ceilings_of_other_ranks_say_nothing_of_a_run(device: str, ranks_per_node: int, reason: str | None) -> None:
    said = why_not_of(parse_machine(Source("two.toml", GOOD)), device, ranks_per_node)
    assert (said is None) if reason is None else re.search(reason, said or "")


# Where figures were measured, and where runs took place.


def system(
    *hosts: str, devices: int = 4, device: str = "A100", cpu: str = "Zen 4", cluster: str = ""
) -> dict[str, Any]:
    """A `system.json`, as far as it names the machine."""
    nodes = [
        {
            "host": host, "cpu": {"Model name": cpu}, "accelerators": [{"name": device}] * devices,
            "environment": {"SLURM_CLUSTER_NAME": cluster} if cluster else {},
        }
        for host in hosts
    ]  # fmt: skip
    return {"nodes": nodes}


HERE = system("gpu-01.site", "gpu-02.site")


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"device": "A100", "hosts": ["gpu-01.site"] * 4}, None),
        ({"device": "A100", "hosts": ["gpu-07.site"] * 4}, None),
        ({"device": "A100", "hosts": ["gpu-01"] * 2}, None),
        ({"device": "Zen 4", "hosts": ["gpu-01.site"] * 96}, None),
        ({"device": "aarch64", "hosts": ["gpu-01.site"]}, None),
        ({"hosts": ["gpu-01.site"] * 64}, None),
        ({"device": "A100", "hosts": ["0a1b2c3d4e5f"]}, None),
        ({"device": "A100"}, None),
        ({"device": "H100", "hosts": ["gpu-01.site"]}, "H100, not A100"),
        ({"device": "Xeon", "hosts": ["gpu-01.site"]}, "Xeon, not A100"),
        ({"device": "A100", "hosts": ["gpu-01.site"] * 8}, "8 accelerators a node, not 4"),
        ({"device": "A100", "hosts": ["login1"]}, "host login1, not hosts gpu-01.site, gpu-02.site"),
        (
            {"device": "A100", "hosts": ["x1", "x2", "x3", "x4"]},
            "hosts x1, x2 and 2 more, not hosts gpu-01.site, gpu-02.site",
        ),
    ],
)
def test_figures_of_another_machine_are_told_from_those_of_the_runs(figures: dict[str, Any], said: str | None) -> None:
    document = {"gemm bf16": {"value": 1.0, "unit": "FLOPS", **figures}}
    assert other_machine(origin_of_figures(document), origin_of_run(HERE)) == said


def test_a_profile_names_its_device_and_its_ranks() -> None:
    profile = {"device": "cuda", "device_name": "A100", "ranks": 8, "nodes": 2, "classes": {}}
    assert other_machine(origin_of_figures(profile), origin_of_run(HERE)) is None
    assert other_machine(origin_of_figures({**profile, "device_name": "H100"}), origin_of_run(HERE)) == "H100, not A100"
    assert other_machine(origin_of_figures({**profile, "nodes": 1}), origin_of_run(HERE)) == (
        "8 accelerators a node, not 4"
    )
    assert other_machine(origin_of_figures({**profile, "device_name": "processor"}), origin_of_run(HERE)) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (system("gpu-09.site", devices=1), None),
        (system("gpu-01.site", device="H100"), "H100, not A100"),
        (system("gpu-01.site", devices=0), "no accelerator, not A100"),
        (system("gpu-01.site", cpu="Xeon"), "Xeon, not Zen 4"),
        (system("nid000001"), "host nid000001, not hosts gpu-01.site, gpu-02.site"),
        ({}, None),
    ],
)
def test_runs_of_two_machines_are_told_apart(other: dict[str, Any], said: str | None) -> None:
    assert other_machine(origin_of_run(other), origin_of_run(HERE)) == said


def test_the_name_of_a_cluster_counts_more_than_those_of_hosts() -> None:
    one, other, far = (
        origin_of_run(system(host, cluster=cluster))
        for host, cluster in (("gpu-01", "levante"), ("big-01", "levante"), ("gpu-01", "jupiter"))
    )
    assert other_machine(other, one) is None
    assert other_machine(far, one) == "cluster jupiter, not levante"
