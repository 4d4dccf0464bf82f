"""What the events of a run prove, whatever its recipe says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders.events import EventLog, complete, restarted, tables

from hpcai500.methodology.conduct import Observation, conduct
from hpcai500.recipe import rulebook

RULES = rulebook("v2.0", "ic")


def observed(log: EventLog, recipe: dict[str, Any] | None = None, **rules: Any) -> dict[str, Observation]:
    return {rule.name: rule for rule in conduct(recipe or tables(), RULES | rules, log.events)}


def broken(log: EventLog, recipe: dict[str, Any] | None = None, **rules: Any) -> dict[str, tuple[str, ...]]:
    return {name: rule.problems for name, rule in observed(log, recipe, **rules).items() if not rule.holds}


def alter(log: EventLog, key: str, change: Callable[[dict[str, Any]], None], epoch: int | None = None) -> EventLog:
    for event in log.events:
        if event["key"] == key and (epoch is None or event["value"]["epoch"] == epoch):
            change(event["value"])
    return log


def steps_of_ranks(*steps: int) -> dict[str, Any]:
    return {"ranks": [{"rank": rank, "steps": number} for rank, number in enumerate(steps)]}


def test_an_honest_run_keeps_every_rule() -> None:
    assert broken(complete()) == broken(restarted(60)) == {}
    assert [(rule.layer, rule.name) for rule in conduct(tables(), RULES, complete().events)] == [
        (9, "epochs"), (9, "data set"), (9, "quality metric"), (9, "evaluation samples"),
        (6, "equivalent parallelism"), (6, "synchronous SGD"),
    ]  # fmt: skip


def test_ranks_that_did_not_hold_the_same_weights_were_not_synchronous() -> None:
    log = alter(complete(), "replicas", lambda value: value.update(ranks=7), epoch=3)
    assert broken(log) == {
        "synchronous SGD": (
            "epoch 3: the event replicas does not show equal weights on all 8 ranks (ranks 7, digest 0000000000000003)",
        )
    }
    log = alter(complete(), "replicas", lambda value: value.update(digest=None))
    (problem,) = broken(log)["synchronous SGD"]
    assert problem.startswith("90 epochs from 1 to 90: the event replicas does not show equal weights on all 8 ranks")


def test_an_older_record_of_many_ranks_does_not_tell_and_one_of_one_rank_need_not() -> None:
    (problem,) = broken(complete().without("replicas"))["synchronous SGD"]
    assert problem.endswith("the record does not show that all ranks had equal weights (no event replicas)")
    alone = alter(complete().without("replicas"), "run_start", lambda value: value.update(world_size=1))
    assert "synchronous SGD" not in broken(alone)


def test_the_evidence_is_asked_of_the_ranks_that_ended_each_epoch() -> None:
    log = EventLog().initialise().start().epoch(1)
    log.initialise().add("run_resume", {"epoch": 2, "step": 0, "world_size": 4})
    log.epoch(2).add("run_stop")
    assert "synchronous SGD" not in broken(log)
    alter(log, "replicas", lambda value: value.update(ranks=8))
    assert "epoch 2: the event replicas does not show equal weights on all 4 ranks" in broken(log)["synchronous SGD"][0]


def test_what_was_lost_and_trained_again_is_judged_by_its_last_pass() -> None:
    log = EventLog().initialise().start().epoch(1, steps=3)
    log.initialise().add("run_resume", {"epoch": 1, "step": 0})
    assert broken(log.epoch(1).add("run_stop"), tables("problem.epochs=1", "hyperparameters.warmup_epochs=0")) == {}


def test_a_rank_that_made_fewer_steps_is_seen() -> None:
    assert "synchronous SGD" not in broken(complete().add("steps", steps_of_ranks(*[9] * 8)))
    (problem,) = broken(complete().add("steps", steps_of_ranks(*[9] * 7, 8)))["synchronous SGD"]
    assert problem == "ranks made different numbers of steps: from 8 to 9"
    (problem,) = broken(complete().add("steps", steps_of_ranks(*[9] * 7)))["synchronous SGD"]
    assert problem == "7 ranks report their steps; 8 trained"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"steps": 1251}, "epoch 5: 1251 steps; 1281167 samples in global batches of 1024 make 1252"),
        ({"steps": None}, "epoch 5: None steps; 1281167 samples in global batches of 1024 make 1252"),
        ({"padded_samples": 0}, "epoch 5: 0 padded samples; 1281167 samples in global batches of 1024 make 881"),
        ({"samples": 9}, "epoch 5: 9 samples; 1281167 samples in global batches of 1024 make 1281167"),
    ],
)
def test_updates_are_those_of_one_process_with_the_same_global_batch(changes: dict[str, Any], problem: str) -> None:
    log = alter(complete(), "epoch_stop", lambda value: value.update(changes), epoch=5)
    assert broken(log) == {"equivalent parallelism": (problem,)}


def test_a_tail_that_is_dropped_makes_whole_batches() -> None:
    def dropped(value: dict[str, Any]) -> None:
        value.update(steps=1251, samples=1251 * 1024, padded_samples=0)

    recipe = tables("workload.tail=drop")
    assert broken(alter(complete(), "epoch_stop", dropped), recipe) == {}
    assert "equivalent parallelism" in broken(complete(), recipe)


def test_accumulated_passes_are_one_update() -> None:
    def accumulated(value: dict[str, Any]) -> None:
        value.update(steps=313, padded_samples=313 * 4096 - 1_281_167)

    log = alter(complete(), "epoch_stop", accumulated)
    assert broken(log, tables("hyperparameters.accumulation_steps=4")) == {}
    assert "equivalent parallelism" in broken(log)


STAGES = ("programming.parallel_mode=mixed", "programming.stages=2")


def test_stages_share_the_batch_of_one_model() -> None:
    def of_half_the_batch(value: dict[str, Any]) -> None:
        value.update(steps=2503, padded_samples=2503 * 512 - 1_281_167)

    log = alter(complete(), "epoch_stop", of_half_the_batch)
    assert broken(log, tables(*STAGES)) == {}
    assert "equivalent parallelism" in broken(log)
    assert "equivalent parallelism" in broken(complete(), tables(*STAGES))


@pytest.mark.parametrize(
    ("norm", "micro_batches", "holds"),
    [("batch", 1, True), ("batch", 4, False), ("sync-batch", 4, False),
     ("group", 4, True), ("frozen-batch", 4, True), (None, 4, True)],
)  # fmt: skip
def test_a_norm_of_micro_batches_is_that_of_one_device_where_it_sees_no_batch(
    norm: str | None, micro_batches: int, holds: bool
) -> None:
    recipe = tables(*STAGES, f"programming.micro_batches={micro_batches}")
    recipe["workload"]["norm"] = norm
    found = [problem for problem in broken(complete(), recipe)["equivalent parallelism"] if "micro-batches" in problem]
    assert (not found) == holds
    if found:
        assert "micro-batches of 32 samples, not of batches of 128: not mathematically" in found[0]


def test_more_ranks_than_the_recipe_asks_for_are_another_batch() -> None:
    recipe = tables("hardware.accelerators_per_node=4")
    assert broken(complete(), recipe)["equivalent parallelism"][0] == (
        "the run was started on 8 ranks; its recipe asks for 4"
    )


def test_epochs_beyond_the_recipes_are_no_free_training() -> None:
    log = complete().epoch(91)
    assert broken(log) == {"epochs": ("epoch 91: beyond the 90 epochs of the recipe",)}


def test_the_data_set_stays_the_same_over_a_restart() -> None:
    problem = "the data set changed during the run: fingerprint differs between its starts"
    assert broken(restarted(60, fingerprint="e" * 64))["data set"] == (problem,)
    assert "coverage differs" in broken(restarted(60, coverage="1281167-fff"))["data set"][0]


def test_data_that_was_checked_between_two_starts_did_not_change() -> None:
    assert broken(restarted(60, content_fingerprint="c" * 64)) == {}


def test_the_data_set_is_the_editions_where_it_knows_one() -> None:
    assert broken(complete(), dataset_fingerprint="f" * 64) == {}
    assert broken(complete(), dataset_fingerprint="a" * 64) == {
        "data set": ("the data set is not imagenet-1k: its fingerprint is not the edition's",)
    }


def test_data_without_a_fingerprint_could_be_any() -> None:
    log = alter(complete(), "dataset", lambda value: value.pop("fingerprint"))
    assert broken(log) == {"data set": ("the record has no fingerprint of the data set",)}


@pytest.mark.parametrize(("metric", "said"), [("top5", "top5"), (None, "None")])
def test_the_quality_is_measured_by_the_recipes_metric(metric: str | None, said: str) -> None:
    log = alter(complete(), "eval_accuracy", lambda value: value.update(metric=metric), epoch=90)
    assert broken(log) == {"quality metric": (f"epoch 90: evaluated by {said}; the recipe asks for top1",)}


def test_every_evaluation_is_over_all_evaluation_samples() -> None:
    log = alter(complete(), "eval_accuracy", lambda value: value.update(samples=40_000), epoch=90)
    problem = "epoch 90: evaluated on 40000 samples; the evaluation set has 50000"
    assert broken(log) == {"evaluation samples": (problem,)}


DRAWN = {"sampling": "poisson", "strata": [], "draws": 1_280_000, "distinct": 800_000, "share": 0.6}
MEMBER = {"ensemble": {"sampling": "poisson"}}


def member(**changes: Any) -> EventLog:
    """A run of 1,280,000 draws in 1250 whole batches."""
    log = alter(complete(), "dataset", lambda value: value.update(drawn=DRAWN | changes))
    return alter(log, "epoch_stop", lambda value: value.update(steps=1250, samples=1_280_000, padded_samples=0))


def test_a_member_makes_the_updates_of_its_draws() -> None:
    assert broken(member(), tables() | MEMBER) == {}
    (problem,) = broken(complete(), tables() | MEMBER)["data set"]
    assert problem == "the record does not say which samples the member drew"
    (problem,) = broken(member(draws=1_270_000), tables() | MEMBER)["equivalent parallelism"][:1]
    assert "1250 steps; 1270000 samples in global batches of 1024 make 1241" in problem


@pytest.mark.parametrize("sampling", ["bootstrap", "all"])
def test_as_many_are_drawn_as_the_sampling_says(sampling: str) -> None:
    recipe = tables() | {"ensemble": {"sampling": sampling}}
    assert broken(member(sampling=sampling), recipe)["data set"] == (
        f"1280000 samples were drawn; {sampling} draws 1281167",
    )
    assert broken(member(), recipe)["data set"][0] == f"samples were drawn by poisson; the recipe asks for {sampling}"


def test_who_draws_from_the_whole_set_draws_from_no_strata() -> None:
    recipe = tables() | {"ensemble": {"sampling": "poisson", "strata": "none"}}
    assert broken(member(), recipe) == {}
    (problem,) = broken(member(strata=[1_281_166, 1]), recipe)["data set"]
    assert problem == "samples were drawn from 2 strata; the recipe asks for none"


def test_one_model_draws_nothing_and_no_start_draws_anew() -> None:
    assert broken(member())["data set"] == ("samples were drawn, although the recipe has no [ensemble]",)
    log = restarted(60)
    starts = [event["value"] for event in log.events if event["key"] == "dataset"]
    for draws, start in zip((DRAWN, DRAWN | {"distinct": 1}), starts, strict=True):
        start["drawn"] = draws
    assert "the data set changed during the run: drawn differs between its starts" in broken(log)["data set"]
