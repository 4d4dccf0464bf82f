"""Rooflines of the paper's machine and of records: points, sentences, pictures, command line."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner
from written_record import COSTS, ranks, write_record

from hpcai500.cli.commands import app
from hpcai500.errors import RecordError, UsageError
from hpcai500.machine import Level, Machine, load_machine
from hpcai500.results.roofline import draw_roofline, roofline
from hpcai500.results.score import read_runs

V100 = load_machine("v100-64")
# Four accelerators on two nodes. What write_record writes: 1e9 FLOPs an image, 3e6 bytes sent a rank and step.
MACHINE = Machine(
    name="small",
    source="test",
    nodes=2,
    accelerators_per_node=2,
    node=Level(accelerators=2, ceilings={"CONV fp32": 4e11}, bandwidths={"bus": 1e7}, bound="bus"),
    system=Level(accelerators=4, ceilings={"CONV fp32": 8e11}, bandwidths={"net": 1e6, "bus": 1e7}, bound="net"),
)
BATCH = "hyperparameters.batch_size=16"


def record(tmp_path: Path, *settings: str, number: int = 4, nodes: int = 2, name: str = "run") -> Path:
    costs = COSTS if number > 1 else None
    return write_record(tmp_path / name, BATCH, *ranks(number, nodes=nodes), *settings, costs=costs)


def test_the_papers_points_are_bound_as_it_says_and_compression_is_quantified() -> None:
    points = {point.name: point for point in roofline([], V100).points}
    assert points["EWA"].bound == points["EWA, fp16 compression"].bound == "communication"
    assert points["IC fp32"].bound == points["IC mixed"].bound == "computation"
    assert points["EWA"].sentence == (
        "EWA is bound by communication: at a COI of 67.42 kFLOP/B Ethernet (1.2 GB/s) allows 80.9 TFLOPS; "
        "it attains 25.99 TFLOPS, 32% of that"
    )
    said = [move["sentence"] for move in roofline([], V100).document()["points"][0]["moves"]]
    assert (
        "fp16 compression doubles COI to 134.8 kFLOP/B and lifts the bound from 80.9 TFLOPS to 161.8 TFLOPS; "
        "then Ethernet still binds"
    ) in said
    assert "arithmetic at CONV mixed lifts no bound: Ethernet binds as before" in said


def test_the_document_has_the_ceilings_of_the_whole_machine_and_those_of_each_point() -> None:
    document = roofline([], V100).document()
    assert document["ceilings"]["peak mixed"] == 8320e12
    assert document["bandwidths"] == {"Ethernet": 1.2e9, "NVLink": 300e9}
    [roofs] = document["roofs"]
    assert (roofs["accelerators"], roofs["ceilings"]["GEMM fp32"]) == (16, 230e12)
    assert roofs["ridges"]["GEMM fp32"]["Ethernet"] == pytest.approx(230e12 / 1.2e9)
    for point in document["points"]:
        rate = document["bandwidths"][point["bandwidth"]]
        assert point["attainable_flops"] == min(roofs["ceilings"][point["flops_ceiling"]], rate * point["coi"])


def test_a_record_of_several_nodes_has_its_place_by_what_leaves_a_node(tmp_path: Path) -> None:
    [point] = roofline([record(tmp_path)], MACHINE).points
    # 4 x 16 images of 1e9; of a ring, a node sends as much as one of its ranks.
    assert point.coi == pytest.approx(64e9 / 3e6)
    assert point.flops == pytest.approx(1000 * 1e9 / 10)
    assert (point.bound, point.binding) == ("communication", "net")
    assert point.attainable_flops == pytest.approx(64e9 / 3)
    assert "more than its bound, so that a ceiling was measured too low" in point.sentence


def test_of_a_hierarchy_only_what_leaders_exchange_leaves_a_node(tmp_path: Path) -> None:
    [point] = roofline([record(tmp_path, "communication.topology=hierarchical")], MACHINE).points
    # Of n = 4 ranks, one sends 2 b 3 / 4 in the mean; b leaves a node.
    assert point.coi == pytest.approx(64e9 / (3e6 * 4 / 6))


def test_a_compressed_run_shows_what_it_was_before(tmp_path: Path) -> None:
    [point] = roofline([record(tmp_path, "communication.compression=fp16")], MACHINE).points
    assert point.coi == pytest.approx(64e9 / 3e6)
    assert point.coi_uncompressed == pytest.approx(32e9 / 3e6)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    [point] = roofline([record(tmp_path, "hyperparameters.accumulation_steps=3")], MACHINE).points
    assert point.coi == pytest.approx(3 * 64e9 / 3e6)


def test_a_record_of_one_node_is_of_the_single_node_model(tmp_path: Path) -> None:
    drawn = roofline([record(tmp_path, number=2, nodes=1)], MACHINE)
    assert drawn.model == "node"
    assert drawn.points[0].coi == pytest.approx(32e9 / 3e6)
    assert drawn.points[0].bandwidth == "bus"


def test_one_rank_communicates_nothing_and_needs_no_link(tmp_path: Path) -> None:
    node = Level(accelerators=1, ceilings={"GEMM fp32": 2e11})
    alone = Machine(name="one", source="test", nodes=1, accelerators_per_node=1, node=node)
    drawn = roofline([record(tmp_path, number=1, nodes=1)], alone)
    [point] = drawn.points
    assert (point.coi, point.bandwidth, point.bound, point.binding) == (None, None, "computation", "GEMM fp32")
    assert "communicates nothing and is bound by computation" in point.sentence
    assert set(draw_roofline(drawn)) == {"roofline-node-1.svg", "roofline-node-1.png"}


def test_ranks_that_communicate_need_a_link(tmp_path: Path) -> None:
    deaf = MACHINE.model_copy(update={"node": Level(accelerators=2, ceilings={"CONV fp32": 1e12})})
    with pytest.raises(UsageError, match="no bandwidth between them: measure it: hpcai500 micro --procs N"):
        roofline([record(tmp_path, number=2, nodes=1)], deaf)


def test_runs_of_one_and_of_several_nodes_are_not_mixed(tmp_path: Path) -> None:
    paths = [record(tmp_path), record(tmp_path, number=2, nodes=1, name="other")]
    with pytest.raises(UsageError, match=r"other: a run on 1 node\(s\) has its place in --model node, not system"):
        roofline(paths, MACHINE)


def test_ceilings_of_other_shares_of_a_cpu_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"4 rank\(s\) share the cores of a node.* of 2 a node: .*micro --procs 4"):
        roofline([record(tmp_path, number=4, nodes=1)], MACHINE)


def test_a_machine_without_the_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model `system`: it has only --model node"):
        roofline([record(tmp_path)], MACHINE.model_copy(update={"system": None}))


def test_a_record_that_does_not_tell_its_bytes_is_told(tmp_path: Path) -> None:
    path = write_record(tmp_path / "run", BATCH, *ranks(4, nodes=2))
    with pytest.raises(RecordError, match="do not tell what its ranks sent: no event communication"):
        roofline([path], MACHINE)


def test_the_picture_says_in_text_what_it_shows_and_is_the_same_every_time() -> None:
    files = draw_roofline(roofline([], V100))
    assert sorted(files) == [
        f"roofline-system-{accelerators}.{kind}" for accelerators in (16, 64) for kind in ("png", "svg")
    ]
    svg = files["roofline-system-16.svg"].decode()
    texts = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    for word in ("Ethernet  1.2 GB/s", "NVLink  300 GB/s", "25.99 TFLOPS", "36.97 TFLOPS", "GEMM mixed  1273 TFLOPS"):
        assert word in texts
    # V2.0 Fig. 15: EWA blue, Image Classification red.
    assert "#1f4fbf" in svg
    assert "#c8141e" in svg


def test_the_same_numbers_are_the_same_picture() -> None:
    assert draw_roofline(roofline([], V100, "node")) == draw_roofline(roofline([], V100, "node"))


def test_no_name_of_a_ceiling_lies_on_another() -> None:
    svg = draw_roofline(roofline([], V100))["roofline-system-16.svg"].decode()
    heights = [float(height) for height in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(?:peak|CONV|GEMM) [^<]*<', svg)]
    assert len(heights) == 6
    # A line of letters of 8 points.
    assert all(abs(one - other) > 8 for one, other in combinations(heights, 2))


def test_a_number_leads_from_each_point_to_its_name_in_the_legend() -> None:
    drawn = roofline([], V100)
    svg = draw_roofline(drawn)["roofline-system-16.svg"].decode()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    for number, point in enumerate(drawn.points, 1):
        assert texts.count(str(number)) == 1
        assert any(re.match(rf"{number}\s+{point.name}: .*{point.share:.0%} of its bound", text) for text in texts)


def test_signs_of_formulas_in_a_name_are_letters(tmp_path: Path) -> None:
    drawn = roofline([record(tmp_path, name=r"run $\frac$ 1")], MACHINE)
    [svg] = [content.decode() for name, content in draw_roofline(drawn).items() if name.endswith(".svg")]
    assert r"(run $\frac$ 1)" in svg


def test_a_topology_of_a_later_version_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [run] = read_runs([record(tmp_path)])
    run.record.tables["communication"]["topology"] = "dragonfly"
    monkeypatch.setattr("hpcai500.results.roofline.read_runs", lambda _: [run])
    with pytest.raises(UsageError, match="run: its topology 'dragonfly' is none that this version knows"):
        roofline([run.path], MACHINE)


def test_the_command_prints_one_document_and_draws(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["roofline", "--machine", "v100-64", "--json", "-o", str(tmp_path / "figures")])
    assert told.exit_code == 0
    document = json.loads(told.stdout)
    assert {point["name"]: point["bound"] for point in document["points"]}["EWA"] == "communication"
    assert [Path(figure).is_file() for figure in document["figures"]] == [True] * 4


def test_the_command_draws_a_record_under_what_was_measured(tmp_path: Path) -> None:
    number = {"value": 1e12, "accelerators": 2, "nodes": 1, "device": "Zen 4"}
    micro = tmp_path / "micro.json"
    micro.write_text(json.dumps({"conv fp32": number, "allreduce node": {**number, "value": 1e9}}), encoding="utf-8")
    run = record(tmp_path, number=2, nodes=1)
    told = CliRunner().invoke(app, ["roofline", str(run), "--micro", str(micro)])
    assert told.exit_code == 0
    assert "IC fp32 (run) is bound by computation: CONV fp32 allows 1 TFLOPS" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "give the ceilings"), (["--machine", "v100-64", "--micro", "micro.json"], "give one of them")],
)
def test_the_command_wants_the_ceilings_once(arguments: list[str], expected: str) -> None:
    told = CliRunner().invoke(app, ["roofline", *arguments])
    assert isinstance(told.exception, UsageError)
    assert expected in str(told.exception)
