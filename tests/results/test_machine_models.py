"""What a machine allows: rooflines of the paper's and of records, predictions and estimates from counted steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from builders.records import COSTS, settings_of_ranks, write_record
from typer.testing import CliRunner

from hpcai500.cli.commands import app
from hpcai500.errors import RecordError, UsageError
from hpcai500.launch.measuring import planned_layout, planned_recipe
from hpcai500.machine import Level, Link, Machine, PaperPoint, load_machine
from hpcai500.methodology.cost import Gradients, StepFacts
from hpcai500.results.estimate import Estimate, estimate_here, estimate_on
from hpcai500.results.prediction import MODEL_ERROR, Prediction, measured_points, predict_scaling, write_prediction
from hpcai500.results.roofline import draw_roofline, roofline
from hpcai500.results.score import read_runs

PNG = b"\x89PNG\r\n\x1a\n"


# Rooflines: points, sentences, pictures, command line.


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
    return write_record(tmp_path / name, BATCH, *settings_of_ranks(number, nodes=nodes), *settings, costs=costs)


def test_the_papers_points_are_bound_as_it_says_and_compression_is_quantified() -> None:
    points = {point.name: point for point in roofline([], V100).points}
    assert points["EWA"].bound == points["EWA, fp16 compression"].bound == "communication"
    assert points["IC fp32"].bound == points["IC mixed"].bound == "computation"
    assert points["EWA"].sentence == (
        "EWA is bound by communication: at a COI of 67.42 kFLOP/B Ethernet (1.2 GB/s) allows 80.9 TFLOPS; "
        "its training steps attain 25.99 TFLOPS, 32% of that"
    )
    said = [move["sentence"] for move in roofline([], V100).document()["points"][0]["moves"]]
    assert (
        "fp16 compression doubles COI to 134.8 kFLOP/B and lifts the bound from 80.9 TFLOPS to 161.8 TFLOPS; "
        "Ethernet is still the bottleneck"
    ) in said
    assert "arithmetic at CONV mixed does not lift the bound: Ethernet is still the bottleneck" in said


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
    assert "more than its bound, so a ceiling was measured too low" in point.sentence


@pytest.mark.parametrize(
    ("settings", "coi", "uncompressed"),
    [
        # Of n = 4 ranks, one sends 2 b 3 / 4 in the mean; b leaves a node.
        ("communication.topology=hierarchical", 64e9 / (3e6 * 4 / 6), None),
        ("communication.compression=fp16", 64e9 / 3e6, 32e9 / 3e6),
        ("hyperparameters.accumulation_steps=3", 3 * 64e9 / 3e6, None),
    ],
)
def test_what_leaves_a_node_is_counted(tmp_path: Path, settings: str, coi: float, uncompressed: float | None) -> None:
    [point] = roofline([record(tmp_path, settings)], MACHINE).points
    assert point.coi == pytest.approx(coi)
    assert uncompressed is None or point.coi_uncompressed == pytest.approx(uncompressed)


def test_a_record_of_one_node_is_of_the_single_node_model(tmp_path: Path) -> None:
    drawn = roofline([record(tmp_path, number=2, nodes=1)], MACHINE)
    assert (drawn.model, drawn.points[0].bandwidth) == ("node", "bus")
    assert drawn.points[0].coi == pytest.approx(32e9 / 3e6)


def test_one_rank_communicates_nothing_and_needs_no_link(tmp_path: Path) -> None:
    node = Level(accelerators=1, ceilings={"GEMM fp32": 2e11})
    alone = Machine(name="one", source="test", nodes=1, accelerators_per_node=1, node=node)
    drawn = roofline([record(tmp_path, number=1, nodes=1)], alone)
    [point] = drawn.points
    assert (point.coi, point.bandwidth, point.bound, point.binding) == (None, None, "computation", "GEMM fp32")
    assert "communicates nothing and is bound by computation" in point.sentence
    assert set(draw_roofline(drawn)) == {"roofline-node-1.svg", "roofline-node-1.png"}


def test_ceilings_of_another_device_are_refused_by_name(tmp_path: Path) -> None:
    ran = record(tmp_path)
    mine, other = (MACHINE.model_copy(update={"devices": (name,)}) for name in ("Zen 4", "Zen 2"))
    assert roofline([ran], mine).points
    with pytest.raises(UsageError, match=r"the ceilings of small are of another machine \(Zen 2, not Zen 4\)"):
        roofline([ran], other)


@pytest.mark.parametrize(
    ("runs", "changes", "said"),
    [
        ([(2, 1)], {"node": Level(accelerators=2, ceilings={"CONV fp32": 1e12})},
         "no bandwidth between them: measure it: hpcai500 micro --procs N"),
        ([(4, 2), (2, 1)], {}, r"run-1: a run on 1 node needs --model node, not system"),
        ([(4, 1)], {}, r"4 ranks a node share its cores.* are of 2: .*micro --procs 4"),
        ([(4, 2)], {"system": None}, "no model `system`: it has only --model node"),
    ],
    ids=["no link", "one node and several", "other shares of a CPU", "no such model"],
)  # fmt: skip
def test_other_runs_are_told(tmp_path: Path, runs: list[tuple[int, int]], changes: dict[str, Any], said: str) -> None:
    paths = [record(tmp_path, number=n, nodes=m, name=f"run-{place}") for place, (n, m) in enumerate(runs)]
    with pytest.raises(UsageError, match=said):
        roofline(paths, MACHINE.model_copy(update=changes))


def test_a_record_that_does_not_tell_its_bytes_is_told(tmp_path: Path) -> None:
    path = write_record(tmp_path / "run", BATCH, *settings_of_ranks(4, nodes=2))
    with pytest.raises(RecordError, match="no event communication, so the bytes sent are unknown"):
        roofline([path], MACHINE)


def test_the_picture_says_in_text_what_it_shows_and_is_the_same_every_time() -> None:
    drawn = roofline([], V100)
    files = draw_roofline(drawn)
    assert files == draw_roofline(roofline([], V100))
    empty = {name: "No run in this roofline" in text.decode() for name, text in files.items() if name.endswith("svg")}
    assert empty == {"roofline-system-16.svg": False, "roofline-system-64.svg": True}
    assert sorted(files) == [f"roofline-system-{number}.{kind}" for number in (16, 64) for kind in ("png", "svg")]
    svg = files["roofline-system-16.svg"].decode()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    for word in ("Ethernet  1.2 GB/s", "NVLink  300 GB/s", "25.99 TFLOPS", "36.97 TFLOPS", "GEMM mixed  1273 TFLOPS"):
        assert word in " ".join(texts)
    # V2.0 Fig. 15: EWA blue, Image Classification red.
    assert {"#1f4fbf", "#c8141e"} <= set(re.findall(r"#[0-9a-f]{6}", svg))
    # A number leads from each point to its name in the legend.
    for number, point in enumerate(drawn.points, 1):
        assert texts.count(str(number)) == 1
        assert any(re.match(rf"{number}\s+{point.name}: .*{point.share:.0%} of its bound", text) for text in texts)
    # No name of a ceiling lies on another; a line of letters has 8 points.
    heights = [float(height) for height in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(?:peak|CONV|GEMM) [^<]*<', svg)]
    assert len(heights) == 6
    assert all(abs(one - other) > 8 for one, other in combinations(heights, 2))


def test_signs_of_formulas_in_a_name_are_letters(tmp_path: Path) -> None:
    drawn = roofline([record(tmp_path, name=r"run $\frac$ 1")], MACHINE)
    [svg] = [content.decode() for name, content in draw_roofline(drawn).items() if name.endswith(".svg")]
    assert r"(run $\frac$ 1)" in svg


def test_a_topology_of_a_later_version_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [run] = read_runs([record(tmp_path)])
    run.record.tables["communication"]["topology"] = "dragonfly"
    monkeypatch.setattr("hpcai500.results.roofline.read_runs", lambda _: [run])
    with pytest.raises(UsageError, match="run: unknown topology 'dragonfly'"):
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
    [([], "give the ceilings"), (["--machine", "v100-64", "--micro", "micro.json"], "use one of them")],
)
def test_the_command_wants_the_ceilings_once(arguments: list[str], expected: str) -> None:
    told = CliRunner().invoke(app, ["roofline", *arguments])
    assert isinstance(told.exception, UsageError)
    assert expected in str(told.exception)


# Predictions and estimates: what they say, and what they admit not to know.


IC = StepFacts(128, 8e9, 24e9, tuple(Gradients(1e6, (n + 1) / 100) for n in range(100)))
PEAK = Level(accelerators=4, peak_flops={"fp32": 40e12, "mixed": 400e12})


def machine(**how: Any) -> Machine:
    """Two nodes of four, 10 TFLOPS each, 1 GB/s between them."""
    links = {
        "node_link": Link(latency_seconds=1e-6, bytes_per_second=1e11),
        "network": Link(latency_seconds=1e-5, bytes_per_second=1e9),
    }
    known = {"node": PEAK, **links, **how}
    return Machine(name="made up", source="a test", nodes=2, accelerators_per_node=4, **known)


def predicted(*settings: str, on: Machine | None = None, nodes: int = 1024, **how: Any) -> Prediction:
    return predict_scaling(planned_recipe("ic/reference", settings, 2, 4), IC, on or machine(), nodes, **how)


def estimated(*settings: str, on: Machine | None = None, name: str = "ic/reference") -> Estimate:
    place = on or machine()
    recipe = planned_recipe(name, settings, *planned_layout(name, settings, place.nodes, place.accelerators_per_node))
    return estimate_on(place, name, recipe, IC)


POINT = PaperPoint(
    name="IC", benchmark="ic", model="node", accelerators=4, precision="fp32", flops=46e12, coi=1, source="a paper"
)
TREE = "communication.algorithm=double-binary-tree"


@pytest.mark.parametrize(("device", "buckets"), [("cuda", "3 buckets"), ("cpu", "1 bucket")])
def test_a_prediction_cuts_buckets_as_a_run_does(device: str, buckets: str) -> None:
    facts = StepFacts(64, 1e8, 3e8, (Gradients(4.0, 1.0),) * 3500)
    settings = (f"accelerator.device={device}", "accelerator.precision=fp32")
    recipe = planned_recipe("ic/reference", settings, 2, 4)
    assumptions = predict_scaling(recipe, facts, machine(), 8).assumptions
    assert any(f"in {buckets} of at most" in sentence for sentence in assumptions)


def test_an_estimate_for_unequal_nodes_is_refused() -> None:
    uneven = [f"hardware.{field}" for field in ("nodes=2", "accelerators_per_node=4", "ranks=7")]
    with pytest.raises(UsageError, match="7 ranks on 2 nodes: the model needs equal nodes"):
        estimated(*uneven)


def test_an_estimate_for_one_node_needs_no_network() -> None:
    alone = machine().model_copy(update={"nodes": 1, "network": None, "system": None})
    said = "\n".join(estimated("accelerator.precision=fp32", on=alone).lines())
    assert "a rank within its node" in said
    assert "a node sends" not in said


@pytest.mark.parametrize(("kind", "word"), [("prediction", "PREDICTED"), ("estimate", "an estimate without a run")])
def test_a_prediction_or_estimate_says_everywhere_that_it_is_one(kind: str, word: str) -> None:
    found = predicted() if kind == "prediction" else estimated()
    text = "\n".join(found.lines())
    assert text.startswith(word) == (kind == "prediction")
    assert word in text
    assert "not a result, not scored" in text
    assert "HPCAI500" not in text
    document = found.document()
    assert (document["kind"], document["scoring"]) == (kind, False)
    json.dumps(document, allow_nan=False)


def test_the_wall_of_a_large_batch_is_where_no_recipe_goes() -> None:
    """4 x 128 samples a node: 65536 are those of 128 nodes."""
    prediction = predicted(TREE)
    assert (prediction.wall.binds, prediction.wall.nodes) == ("batch size", 129)
    assert [wall.binds for wall in prediction.walls] == ["batch size", "steps per epoch"]
    lines = list(prediction.lines())
    assert "THE WALL" in "\n".join(lines)
    # Rows behind it are marked as in the picture.
    assert [line.split()[0] for line in lines if line.endswith("behind the wall")] == ["256", "512", "1024"]
    assert [point["nodes"] for point in prediction.document()["points"] if point["behind_the_wall"]] == [256, 512, 1024]


def test_a_slow_network_is_the_wall_before_it() -> None:
    wall = predicted(on=machine(network=Link(latency_seconds=1e-5, bytes_per_second=5e7))).wall
    assert (wall.binds, wall.nodes) == ("network bandwidth", 2)


def test_several_nodes_may_be_as_much_slower_as_published_ones_were() -> None:
    one, two = predicted(on=machine(points=(POINT,)), nodes=2).document()["points"]
    assert one["step_seconds_between"] == [one["step_seconds"]] * 2
    assert two["step_seconds_between"] == pytest.approx([two["step_seconds"], two["step_seconds"] * MODEL_ERROR[1]])
    assert two["flops_between"] == pytest.approx([two["flops"] / MODEL_ERROR[1], two["flops"]])
    assert two["parallel_efficiency_between"][0] == pytest.approx(two["parallel_efficiency"] / MODEL_ERROR[1])


def test_negotiation_and_jitter_lengthen_steps_on_several_nodes() -> None:
    quiet, agreeing, noisy = predicted(), predicted(on=machine(negotiation_seconds={"ic": 0.25})), predicted(jitter=0.1)
    assert agreeing.points[0].step == quiet.points[0].step
    assert agreeing.points[1].step.seconds == pytest.approx(quiet.points[1].step.seconds + 0.25)
    assert any("takes 0.25 s a step" in line for line in agreeing.lines())
    assert noisy.points[-1].parallel_efficiency < quiet.points[-1].parallel_efficiency
    assert noisy.points[-1].step.jitter_seconds > 0.3 * quiet.points[-1].step.alone_seconds


def test_what_is_not_known_exactly_is_a_span() -> None:
    """Faster computing leaves less to hide communication under."""
    point = predicted().document()["points"][3]
    low, high = point["parallel_efficiency_between"]
    assert low <= point["parallel_efficiency"] <= high
    assert point["flops_between"][0] < point["flops"] < point["flops_between"][1]


def test_a_published_rate_is_taken_by_the_papers_own_count_of_operations() -> None:
    """46 TFLOPS of four at 23 GFLOP an image are 500 images/s each; 128 of them take 0.256 s."""
    prediction = predicted(on=machine(points=(POINT,)))
    assert prediction.points[0].step.alone_seconds == pytest.approx(0.256)
    assert prediction.points == prediction.slow == prediction.fast
    assert "as published (a paper)" in prediction.assumptions[0]


def test_a_record_is_begun_from_and_drawn_as_measured(tmp_path: Path) -> None:
    """1000 images in 10 s in batches of 64: 15.6 steps of 0.64 s."""
    alone = machine().model_copy(update={"accelerators_per_node": 1})
    measured = measured_points(read_runs([write_record(tmp_path / "one")]), alone)
    prediction = predicted(measured=measured)
    assert prediction.points[0].step.alone_seconds == pytest.approx(0.64)
    assert [one["flops"] for one in prediction.document()["measured"]] == pytest.approx([1e11])
    figures = write_prediction(prediction, tmp_path / "out")
    assert [path.name for path in figures] == ["prediction.svg", "prediction.png"]
    assert figures[1].read_bytes().startswith(PNG)
    drawing = figures[0].read_text(encoding="utf-8")
    assert "PREDICTED weak scaling" in drawing
    assert ">measured<" in drawing
    assert json.loads((tmp_path / "out" / "prediction.json").read_bytes()) == json.loads(
        json.dumps(prediction.document())
    )


def test_records_of_two_recipes_are_not_one_prediction(tmp_path: Path) -> None:
    records = [write_record(tmp_path / "one"), write_record(tmp_path / "two", "hyperparameters.batch_size=32")]
    with pytest.raises(UsageError, match=r"its \[hyperparameters\] differs"):
        measured_points(read_runs(records), machine().model_copy(update={"accelerators_per_node": 1}))


def test_prediction_and_record_are_counted_alike(tmp_path: Path) -> None:
    """A rank of 1000 images in 10 s, by the record's count of 1 GFLOP an image, though the recipe is another."""
    on = machine().model_copy(update={"accelerators_per_node": 1})
    facts = StepFacts(64, 1e8, 3e8, IC.gradients)
    recipe = planned_recipe("ic/smoke", [], 2, 1)
    measured = measured_points(read_runs([write_record(tmp_path / "one")]), on)
    prediction = predict_scaling(recipe, facts, on, 4, measured)
    assert prediction.points[0].flops == pytest.approx(prediction.measured[0].flops)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: predicted(on=machine(network=None)), r"add a table \[network\]"),
        (lambda: predicted("accelerator.precision=tf32"), "no FLOPS for precision tf32"),
        (lambda: estimated(name="ic/smoke"), "whose size is unknown before a run"),
        (lambda: planned_layout("ic/reference", ["hardware.nodes=many"], 1, 1), "expected a whole number"),
    ],
    ids=["no network", "no such precision", "a data set of unknown size", "no number"],
)
def test_what_cannot_be_computed_is_told(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ask()


def test_an_estimate_by_hand() -> None:
    """One node of one: 1.281167 M images of 24 GFLOP, 90 times, at 4.1 to 5.7 TFLOPS."""
    found = estimated("hardware.nodes=1", "hardware.accelerators_per_node=1")
    assert (found.nodes, found.ranks, found.steps) == (1, 1, 90 * 10010)
    assert found.step_seconds.low == pytest.approx(128 * 24e9 / 5.7e12)
    assert found.step_seconds.high == pytest.approx(128 * 24e9 / 4.1e12)
    assert found.training_seconds.expected == pytest.approx(found.steps * found.step_seconds.expected)
    assert found.evaluation_seconds.low == pytest.approx(90 * 50_000 * 8e9 / 5.7e12)
    assert found.node_hours.high == pytest.approx(found.seconds.high / 3600)


def test_without_a_word_an_estimate_is_of_the_whole_machine() -> None:
    found = estimated()
    assert (found.nodes, found.ranks, found.global_batch) == (2, 8, 1024)
    assert estimated("hardware.nodes=8").ranks == 32
    assert found.step_seconds.high > estimated("hardware.nodes=1").step_seconds.high * MODEL_ERROR[1]
    seconds = found.document()["seconds"]
    assert seconds["low"] < seconds["expected"] < seconds["high"]


def test_energy_is_unknown_without_watts_and_known_with_them() -> None:
    unknown, found = estimated(), estimated(on=machine(watts_per_node=2000.0))
    assert (unknown.energy_joules, unknown.document()["energy_joules"]) == (None, None)
    assert any(line.startswith("energy      unknown") for line in unknown.lines())
    assert found.energy_joules.expected == pytest.approx(found.seconds.expected * 4000)


def test_measured_steps_are_multiplied_to_a_run() -> None:
    phases = {"seconds": 2.0, "low": 1.5, "high": 3.0, "forward": 0.5, "backward": 1.0, "wait": 0.3, "update": 0.2}
    document = {
        "batch_size": 128, "accumulation_steps": 1, "forward_flops": 8e9, "training_flops": 24e9, "gradients": [],
        "steps": 12, "ranks": 2, "library": "Gloo", "alone": phases, "together": phases,
        "evaluation_seconds_per_sample": 0.01,
    }  # fmt: skip
    found = estimate_here("ic/reference", planned_recipe("ic/reference", [], 1, 2), document)
    assert found.steps == 90 * 5005
    assert (found.step_seconds.low, found.step_seconds.expected, found.step_seconds.high) == (1.5, 2.0, 3.0)
    assert found.evaluation_seconds.expected == pytest.approx(90 * 25_000 * 0.01)
    assert found.energy_joules is None
