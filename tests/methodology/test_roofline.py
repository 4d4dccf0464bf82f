"""The rooflines: the model's own laws, and what the paper says of its machine, by its own numbers."""

from __future__ import annotations

import itertools
import random

import pytest

from hpcai500.errors import UsageError
from hpcai500.machine import Level, PaperPoint, load_machine
from hpcai500.methodology.roofline import (
    TOPOLOGIES,
    Ceiling,
    Roof,
    Workload,
    attainable_flops,
    flops_ceiling,
    moves,
    next_precision,
    ridge_point,
    sent_bytes,
)

ROOF = Roof(Ceiling("CONV fp32", 100e12), Ceiling("Ethernet", 1e9))
CEILINGS = {"CONV fp32": 100e12, "GEMM fp32": 120e12, "CONV mixed": 300e12, "peak fp32": 150e12}
V100 = load_machine("v100-64")
POINTS = {f"{point.model} {point.name}": point for point in V100.points}


def published(name: str, model: str = "system") -> tuple[PaperPoint, Roof]:
    point = POINTS[f"{model} {name}"]
    level = V100.system if model == "system" else V100.node
    assert level
    assert level.bound
    here = level.of(point.accelerators)
    link = Ceiling(level.bound, here.bandwidths[level.bound])
    return point, Roof(flops_ceiling(point.precision, here.ceilings), link)


# --- laws -------------------------------------------------------------------------------------------------------------


def test_no_workload_can_attain_more_than_a_ceiling() -> None:
    random_ = random.Random(1)
    for _ in range(200):
        flops, rate, coi = (10 ** random_.uniform(0, 18) for _ in range(3))
        attained = attainable_flops(flops, rate, coi)
        assert attained <= flops
        assert attained <= rate * coi
        assert attained in (flops, rate * coi)


def test_more_operations_a_byte_never_lower_the_bound() -> None:
    bounds = [ROOF.attainable(10**e) for e in range(1, 9)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1] == ROOF.flops.rate


def test_slanted_and_flat_part_meet_at_the_ridge_point() -> None:
    ridge = ridge_point(100e12, 1e9)
    assert ridge == pytest.approx(1e5)
    assert ROOF.attainable(ridge) == pytest.approx(100e12)
    below, above = ROOF.attainable(ridge * (1 - 1e-9)), ROOF.attainable(ridge * (1 + 1e-9))
    assert below == pytest.approx(above, rel=1e-8)
    assert [ROOF.kind(coi) for coi in (ridge * 0.99, ridge, ridge * 1.01)] == [
        "communication", "computation", "computation",
    ]  # fmt: skip


def test_what_communicates_nothing_has_no_slanted_part() -> None:
    assert ROOF.attainable(None) == 100e12
    assert Roof(ROOF.flops, None).kind(1.0) == "computation"
    assert moves(Workload("node", "fp32", None), Roof(ROOF.flops, None), CEILINGS)[0].kind == "precision"


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_a_ceiling_is_a_positive_number(bad: float) -> None:
    for numbers in ((bad, 1.0, 1.0), (1.0, bad, 1.0), (1.0, 1.0, bad)):
        with pytest.raises(UsageError, match="expected a positive number"):
            attainable_flops(*numbers)


def test_a_convolutional_network_is_bound_by_convolution_then_by_products_then_by_the_data_sheet() -> None:
    assert flops_ceiling("fp32", CEILINGS).name == "CONV fp32"
    assert flops_ceiling("fp16", CEILINGS).name == "CONV mixed"
    assert flops_ceiling("fp32", {"peak fp32": 1.0, "GEMM fp32": 2.0}) == Ceiling("GEMM fp32", 2.0)
    assert flops_ceiling("fp32", {"peak fp32": 1.0}).name == "peak fp32"
    with pytest.raises(UsageError, match=r"no FLOPS ceiling in tf32 \(it has CONV fp32, .*hpcai500 micro"):
        flops_ceiling("tf32", CEILINGS)


def test_the_next_precision_is_the_next_higher_ceiling_of_the_same_kernel() -> None:
    assert next_precision(ROOF, {**CEILINGS, "CONV tf32": 200e12}) == Ceiling("CONV tf32", 200e12)
    assert next_precision(ROOF, {"CONV fp32": 100e12, "GEMM mixed": 900e12}) is None


def test_fp16_gradients_double_the_intensity_and_so_does_twice_the_batch() -> None:
    found = {move.kind: move for move in moves(Workload("system", "fp32", 20e3), ROOF, CEILINGS)}
    for kind in ("compression", "batch"):
        assert found[kind].coi == pytest.approx(40e3)
        assert found[kind].attainable_flops == pytest.approx(40e12)
        assert found[kind].binding == "Ethernet"
    assert found["precision"].attainable_flops == pytest.approx(20e12)


def test_above_the_ridge_point_only_precision_moves_anything() -> None:
    bounds = {move.kind: move.attainable_flops for move in moves(Workload("system", "fp32", 1e6), ROOF, CEILINGS)}
    assert bounds == {"precision": 300e12, "compression": 100e12, "batch": 100e12}


def test_what_was_compressed_would_have_half_the_intensity_without() -> None:
    assert Workload("system", "fp32", 10.0, "fp16").coi_uncompressed == pytest.approx(5.0)
    assert Workload("system", "fp32", 10.0, "none").coi_uncompressed == 10.0
    assert Workload("system", "fp32", None, "fp16").coi_uncompressed is None


def test_a_hierarchy_sends_less_between_two_nodes_than_a_ring_over_all_ranks() -> None:
    workload = Workload("system", "fp32", 10e3, "none", "ring", nodes=2, ranks_per_node=8)
    move = next(move for move in moves(workload, ROOF, CEILINGS) if move.kind == "topology")
    assert move.change == "a hierarchical instead of a ring"
    assert move.coi_factor == pytest.approx(15 / 8)
    assert move.attainable_flops == pytest.approx(1e9 * 10e3 * 15 / 8)


def test_no_topology_is_advised_where_none_sends_less() -> None:
    for topology in ("tree", "hierarchical", "torus"):
        workload = Workload("system", "fp32", 10e3, "none", topology, nodes=2, ranks_per_node=8)
        assert "topology" not in {move.kind for move in moves(workload, ROOF, CEILINGS)}


def test_int8_is_not_advised_where_it_would_send_more() -> None:
    # Two nodes of eight: fp16 around a ring sends 3.75 b / 2, int8 directly to everybody about 5 b / 4.
    ring = Workload("system", "fp32", 10e3, "fp16", "ring", nodes=2, ranks_per_node=8)
    assert "compression" not in {move.kind for move in moves(ring, ROOF, CEILINGS)}
    alone = Workload("system", "fp32", 10e3, "fp16", "ring", nodes=16, ranks_per_node=1)
    move = next(move for move in moves(alone, ROOF, CEILINGS) if move.kind == "compression")
    assert move.change == "int8 compression"
    assert move.coi_factor == pytest.approx(2 * 256 / 260)


@pytest.mark.parametrize(("nodes", "per_node", "topology"), list(itertools.product((1, 2, 5), (1, 2, 8), TOPOLOGIES)))
def test_every_topology_sends_what_a_sum_needs_and_no_more_leaves_a_node_than_is_sent(
    nodes: int, per_node: int, topology: str
) -> None:
    sent = sent_bytes(topology, 100.0, nodes, per_node)  # type: ignore[arg-type]  # parametrized
    # Each rank's values must leave it, and the sum must come to all but one.
    ranks = nodes * per_node
    assert sent.rank * ranks == pytest.approx(2 * 100.0 * (ranks - 1))
    assert sent.node <= sent.rank * per_node + 1e-9
    assert (sent.node == 0) == (nodes == 1)


# --- the paper --------------------------------------------------------------------------------------------------------


def test_the_ceilings_are_those_that_the_paper_prints() -> None:
    node, system = V100.node, V100.system
    assert node
    assert system
    assert (node.peak_flops["mixed"], system.peak_flops["mixed"]) == (1040e12, 8320e12)
    assert node.ceilings == {
        "GEMM mixed": 636e12, "CONV mixed": 176e12, "GEMM fp32": 115e12, "CONV fp32": 112e12,
    }  # fmt: skip
    assert system.ceilings == {
        "GEMM mixed": 5091e12, "GEMM fp32": 920e12, "CONV mixed": 2376e12, "CONV fp32": 976e12,
    }  # fmt: skip
    assert node.bandwidths == {"NVLink": 300e9, "memory": 1134e9}
    assert system.bandwidths == {"Ethernet": 1.2e9, "NVLink": 300e9}


def test_a_measured_ceiling_may_lie_above_the_data_sheet() -> None:
    assert V100.system
    assert V100.system.ceilings["CONV fp32"] > V100.system.peak_flops["fp32"]


@pytest.mark.parametrize(("name", "kind"), [("EWA", "communication"), ("IC fp32", "computation")])
def test_at_16_gpus_ewa_is_bound_by_communication_and_ic_by_computation(name: str, kind: str) -> None:
    point, roof = published(name)
    assert point.accelerators == 16
    assert roof.kind(point.coi) == kind


def test_mixed_precision_is_bound_by_computation_too() -> None:
    point, roof = published("IC mixed")
    assert roof.kind(point.coi) == "computation"


def test_compression_doubles_the_intensity_of_ewa_and_lifts_it_from_25_99_to_36_97_below_its_doubled_bound() -> None:
    (before, roof), (after, _) = published("EWA"), published("EWA, fp16 compression")
    assert (before.flops, after.flops) == (25.99e12, 36.97e12)
    assert after.coi == pytest.approx(2 * before.coi, rel=1e-4)
    assert roof.attainable(after.coi) == pytest.approx(2 * roof.attainable(before.coi), rel=1e-4)
    assert before.flops < roof.attainable(before.coi)
    assert after.flops < roof.attainable(after.coi)
    assert roof.kind(after.coi) == "communication"


def test_compression_doubles_the_intensity_of_ic_and_improves_nothing() -> None:
    (before, roof), (after, _) = published("IC fp32"), published("IC fp32, fp16 compression")
    assert after.coi == pytest.approx(2 * before.coi)
    assert roof.attainable(after.coi) == roof.attainable(before.coi)
    assert after.flops == before.flops


def test_mixed_precision_makes_ic_about_2_16_times_as_fast_with_twice_the_batch() -> None:
    (single, _), (mixed, roof) = published("IC fp32"), published("IC mixed")
    assert mixed.flops / single.flops == pytest.approx(2.16, rel=0.02)
    assert mixed.coi == pytest.approx(2 * single.coi)
    assert mixed.flops < roof.attainable(mixed.coi)


@pytest.mark.parametrize("point", V100.points, ids=lambda point: f"{point.model}-{point.name}")
def test_no_published_point_lies_above_its_bound(point: PaperPoint) -> None:
    _, roof = published(point.name, point.model)
    assert point.flops < roof.attainable(point.coi)


@pytest.mark.parametrize("point", V100.points, ids=lambda point: f"{point.model}-{point.name}")
def test_every_published_intensity_follows_from_table_5(point: PaperPoint) -> None:
    flops_of_a_step, values = {"ewa": (691e9, 41e6), "ic": (2944e9, 25e6)}[point.benchmark]
    batches = 2 if point.precision == "mixed" else 1
    nodes = max(1, point.accelerators // 8)
    assert point.topology
    sent = sent_bytes(point.topology, values * (2 if point.compression == "fp16" else 4), nodes, 8)
    through_link = sent.node if point.model == "system" else sent.rank
    assert point.coi == pytest.approx(point.accelerators * batches * flops_of_a_step / through_link, rel=1e-4)


def test_the_papers_own_count_of_bytes_puts_its_runs_above_their_bound() -> None:
    # All bytes against one link (sections 6.2, 6.3): why COI here is of one link.
    for name, flops, values in (("EWA", 691e9, 41e6), ("IC fp32", 2944e9, 25e6)):
        point, _ = published(name)
        assert point.flops > 2 * 1.2e9 * flops / (4 * values)


def bound_over_ceiling(accelerators: int, level: Level) -> float:
    """Of IC fp32 over the double binary tree: above 1, computation binds."""
    nodes = accelerators // 8
    coi = accelerators * 2944e9 / sent_bytes("tree", 100e6, nodes, 8).node
    return 1.2e9 * coi / level.of(accelerators).ceilings["CONV fp32"]


def test_the_shift_of_ic_from_32_to_64_gpus_does_not_follow_from_the_model_as_published() -> None:
    assert V100.system
    margins = [bound_over_ceiling(accelerators, V100.system) for accelerators in (16, 32, 64)]
    assert margins == pytest.approx([2.32, 1.54, 1.32], abs=0.01)
    # The limit of many nodes: each sends 2 b instead of b, and no more.
    assert bound_over_ceiling(8 * 10**6, V100.system) == pytest.approx(1.16, abs=0.01)


def test_a_ring_without_overlap_explains_both_published_rates_of_ewa() -> None:
    # 46 images/s on 8 GPUs, and 2 b (n - 1) / n of gradients through a node's 1.2 GB/s after them.
    for name, bytes_a_value in (("EWA", 4), ("EWA, fp16 compression", 2)):
        point, _ = published(name)
        seconds = 8 / 46 + sent_bytes("ring", 41e6 * bytes_a_value, 2, 8).node / 1.2e9
        assert point.flops == pytest.approx(16 * 691e9 / seconds, rel=0.015)
