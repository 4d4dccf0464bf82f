"""Predictions and estimates from machines and counted steps: what they say, and what they admit not to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_record import write_record

from hpcai500.errors import UsageError
from hpcai500.launch.measuring import planned_layout, planned_recipe
from hpcai500.machine import Level, Link, Machine, PaperPoint
from hpcai500.methodology.cost import Gradients, StepFacts
from hpcai500.results.estimate import Estimate, estimate_here, estimate_on
from hpcai500.results.prediction import MODEL_ERROR, Prediction, measured_points, predict_scaling, write_prediction
from hpcai500.results.score import read_runs

PNG = b"\x89PNG\r\n\x1a\n"
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


def test_a_prediction_says_that_it_is_one_everywhere() -> None:
    prediction = predicted()
    text = "\n".join(prediction.lines())
    assert text.startswith("PREDICTED")
    assert "no result, not to be scored" in text
    assert "HPCAI500 RESULT" not in text
    assert "HPCAI500 FOM" not in text
    document = prediction.document()
    assert (document["kind"], document["scoring"]) == ("prediction", False)
    json.dumps(document, allow_nan=False)


def test_the_wall_of_a_large_batch_is_where_no_recipe_goes() -> None:
    """4 x 128 samples a node: 65536 are those of 128 nodes."""
    prediction = predicted("communication.algorithm=double-binary-tree")
    assert prediction.wall
    assert (prediction.wall.binds, prediction.wall.nodes) == ("batch size", 129)
    assert "THE WALL" in "\n".join(prediction.lines())
    assert [wall.binds for wall in prediction.walls] == ["batch size", "steps per epoch"]


def test_rows_behind_the_wall_are_marked_as_in_the_picture() -> None:
    prediction = predicted("communication.algorithm=double-binary-tree")
    marked = [line.split()[0] for line in prediction.lines() if line.endswith("behind the wall")]
    assert marked == ["256", "512", "1024"]
    assert [point["nodes"] for point in prediction.document()["points"] if point["behind_the_wall"]] == [256, 512, 1024]


def test_several_nodes_may_be_as_much_slower_as_published_ones_were() -> None:
    point = PaperPoint(
        name="IC", benchmark="ic", model="node", accelerators=4, precision="fp32", flops=46e12, coi=1, source="a paper"
    )
    one, two = predicted(on=machine(points=(point,)), nodes=2).document()["points"]
    assert one["step_seconds_between"] == [one["step_seconds"]] * 2
    assert two["step_seconds_between"] == pytest.approx([two["step_seconds"], two["step_seconds"] * MODEL_ERROR[1]])
    assert two["flops_between"] == pytest.approx([two["flops"] / MODEL_ERROR[1], two["flops"]])
    assert two["parallel_efficiency_between"][0] == pytest.approx(two["parallel_efficiency"] / MODEL_ERROR[1])


def test_negotiation_lengthens_steps_on_several_nodes_only() -> None:
    quiet, agreeing = (predicted(on=machine(negotiation_seconds=told)).points for told in ({}, {"ic": 0.25}))
    assert agreeing[0].step == quiet[0].step
    assert agreeing[1].step.seconds == pytest.approx(quiet[1].step.seconds + 0.25)
    assert any(
        "0.25 s a step to agree" in line for line in predicted(on=machine(negotiation_seconds={"ic": 0.25})).lines()
    )


def test_a_slow_network_is_the_wall_before_it() -> None:
    slow = machine(network=Link(latency_seconds=1e-5, bytes_per_second=5e7))
    wall = predicted(on=slow).wall
    assert wall
    assert (wall.binds, wall.nodes) == ("network bandwidth", 2)


def test_what_is_not_known_exactly_is_a_span() -> None:
    """Faster computing leaves less to hide communication under."""
    point = predicted().document()["points"][3]
    low, high = point["parallel_efficiency_between"]
    assert low <= point["parallel_efficiency"] <= high
    assert point["flops_between"][0] < point["flops"] < point["flops_between"][1]


def test_a_published_rate_is_taken_by_the_papers_own_count_of_operations() -> None:
    """46 TFLOPS of four at 23 GFLOP an image are 500 images/s each; 128 of them take 0.256 s."""
    point = PaperPoint(
        name="IC", benchmark="ic", model="node", accelerators=4, precision="fp32", flops=46e12, coi=1, source="a paper"
    )
    prediction = predicted(on=machine(points=(point,)))
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
    with pytest.raises(UsageError, match=r"another \[hyperparameters\]"):
        measured_points(read_runs(records), machine().model_copy(update={"accelerators_per_node": 1}))


def test_jitter_makes_many_nodes_slower() -> None:
    quiet, noisy = predicted().points[-1], predicted(jitter=0.1).points[-1]
    assert noisy.parallel_efficiency < quiet.parallel_efficiency
    assert noisy.step.jitter_seconds > 0.3 * quiet.step.alone_seconds


def test_a_machine_without_a_network_is_told_what_to_add() -> None:
    with pytest.raises(UsageError, match=r"add to its file a table \[network\]"):
        predicted(on=machine(network=None))


def test_a_precision_that_the_machine_has_not_is_told() -> None:
    with pytest.raises(UsageError, match="no FLOPS of precision tf32"):
        predicted("accelerator.precision=tf32")


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
    alone = estimated("hardware.nodes=1").step_seconds
    assert found.step_seconds.high > alone.high * MODEL_ERROR[1]


def test_energy_is_unknown_without_watts_and_known_with_them() -> None:
    assert estimated().energy_joules is None
    assert estimated().document()["energy_joules"] is None
    assert any(line.startswith("energy      unknown") for line in estimated().lines())
    found = estimated(on=machine(watts_per_node=2000.0))
    assert found.energy_joules
    assert found.energy_joules.expected == pytest.approx(found.seconds.expected * 4000)


def test_an_estimate_says_that_it_is_no_result() -> None:
    text = "\n".join(estimated().lines())
    assert "quick look" in text
    assert "not to be scored" in text
    assert "HPCAI500" not in text
    document = estimated().document()
    assert (document["kind"], document["scoring"]) == ("estimate", False)
    assert document["seconds"]["low"] < document["seconds"]["expected"] < document["seconds"]["high"]


def test_a_data_set_of_unknown_size_is_refused() -> None:
    with pytest.raises(UsageError, match="how many samples it has is not known"):
        estimated(name="ic/smoke")


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


def test_a_size_that_is_no_number_is_told() -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        planned_layout("ic/reference", ["hardware.nodes=many"], 1, 1)


def test_prediction_and_record_are_counted_alike(tmp_path: Path) -> None:
    """A rank of 1000 images in 10 s, by the record's count of 1 GFLOP an image, though the recipe is another."""
    on = machine().model_copy(update={"accelerators_per_node": 1})
    facts = StepFacts(64, 1e8, 3e8, IC.gradients)
    recipe = planned_recipe("ic/smoke", [], 2, 1)
    measured = measured_points(read_runs([write_record(tmp_path / "one")]), on)
    prediction = predict_scaling(recipe, facts, on, 4, measured)
    assert prediction.points[0].flops == pytest.approx(prediction.measured[0].flops)
