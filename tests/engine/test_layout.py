"""Who holds which part, and with how many ranks a run of stages may be gone on with."""

from __future__ import annotations

import pytest

from hpcai500.engine.ranks import Layout, changes_statistics, layout_of, require_size
from hpcai500.errors import RecipeError, UsageError
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe


def recipe(mode: str, stages: int, ranks: int, *more: str, micro_batches: int = 1, name: str = "ic/smoke") -> Recipe:
    return load_recipe(
        name,
        [
            f"programming.parallel_mode={mode}",
            f"programming.stages={stages}",
            f"programming.micro_batches={micro_batches}",
            f"hardware.accelerators_per_node={ranks}",
            "communication.backend=torch",
            *more,
        ],
    )


def test_every_rank_is_in_one_column_and_one_row() -> None:
    layout = Layout(stages=3, replicas=2)
    for rank in range(6):
        assert rank in layout.column(layout.replica(rank))
        assert rank in layout.row(layout.stage(rank))
        assert layout.column(layout.replica(rank))[layout.stage(rank)] == rank
    assert [list(layout.row(stage)) for stage in range(3)] == [[0, 3], [1, 4], [2, 5]]


def test_an_update_has_as_many_shares_as_replicas_not_as_ranks() -> None:
    mixed = recipe("mixed", 2, 4, "hyperparameters.batch_size=8", "hyperparameters.accumulation_steps=3")
    assert (mixed.world_size, mixed.replicas, mixed.shards, mixed.global_batch) == (4, 2, 6, 48)


@pytest.mark.parametrize(
    ("size", "found"), [(4, Layout(2, 2)), (2, Layout(2, 1)), (1, Layout(1, 1)), (3, None), (8, None)]
)
def test_stages_are_kept_where_they_fit_and_whole_models_take_their_place(size: int, found: Layout | None) -> None:
    assert layout_of(recipe("mixed", 2, 4), size) == found


def test_batch_norm_of_micro_batches_is_another_without_them() -> None:
    cut = recipe("pipeline", 2, 2, micro_batches=4)
    assert not changes_statistics(cut, Layout(2, 1))
    assert changes_statistics(cut, Layout(1, 1))
    with pytest.raises(UsageError, match=r"batch norm over micro-batches was begun on 2 ranks .* go on with 2"):
        require_size(cut, 1, going_on=True)
    settings = ("workload.norm=group", "hyperparameters.batch_size=4")
    require_size(recipe("pipeline", 2, 2, *settings, micro_batches=4, name="ewa/smoke"), 1, going_on=True)


def test_synchronised_norm_is_over_replicas() -> None:
    synchronised = recipe("mixed", 2, 4, "workload.norm=sync-batch")
    require_size(synchronised, 4, going_on=True)
    with pytest.raises(UsageError, match="batch norm over all ranks"):
        require_size(synchronised, 1, going_on=True)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("data", 2, 2, 1), "`data` has whole models, but stages is 2"),
        (("model", 1, 2, 1), "expected at least 2 stages, got 1"),
        (("model", 2, 4, 1), "hardware asks for 4 ranks and there are 2 stages"),
        (("model", 2, 2, 2), "`model` passes whole batches: expected 1, got 2"),
        (("pipeline", 2, 2, 1), "expected at least 2, got 1"),
        (("pipeline", 2, 2, 5), "expected a divisor of hyperparameters.batch_size"),
        (("mixed", 2, 2, 1), "expected a multiple of 2 ranks, at least 4, got 2"),
        (("mixed", 2, 5, 1), "expected a multiple of 2 ranks, at least 4, got 5"),
    ],
)
def test_a_mode_that_cannot_be_laid_over_the_ranks_is_refused(settings: tuple[str, int, int, int], line: str) -> None:
    mode, stages, ranks, micro_batches = settings
    with pytest.raises(RecipeError, match=line):
        recipe(mode, stages, ranks, micro_batches=micro_batches)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("communication.backend=horovod", "which `horovod` has not: use torch"),
        ("communication.topology=hierarchical", "`model` parallelism sums flat"),
        ("framework.compile=true", "stages of `model` parallelism are not compiled"),
    ],
)
def test_what_stages_cannot_do_is_refused_with_the_fix(more: str, line: str) -> None:
    with pytest.raises(RecipeError, match=line):
        recipe("model", 2, 2, more)
