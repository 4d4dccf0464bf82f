"""Recipes of plug-ins are found, filled up and checked as those of hpcai500."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_package import GOOD, write_package

from hpcai500.errors import EnvironmentLacksError, RecipeError
from hpcai500.recipe import (
    default_recipe,
    find_recipe,
    is_shipped,
    load_recipe,
    parse_resolved,
    reference_recipe,
    rulebook,
    shipped_recipes,
    to_toml,
)


def test_its_recipes_have_short_names(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_named")
    (folder / "recipes" / "large.toml").write_text('benchmark = "tiny"\n[workload]\nwidth = 99\n')
    assert {"tiny/reference", "tiny/large"} <= set(shipped_recipes())
    assert load_recipe("tiny/large").workload.model_dump() == {"width": 99}
    assert is_shipped(find_recipe("tiny/large"))
    assert not is_shipped(site / "mine.toml")


def test_what_its_reference_leaves_out_is_as_in_that_of_ic(site: Path) -> None:
    write_package(site, "tiny", "tiny_short")
    ours, theirs = load_recipe("tiny/reference"), reference_recipe("ic")
    assert ours.communication == theirs.communication
    assert ours.hyperparameters.momentum == theirs.hyperparameters.momentum
    assert ours.problem.dataset == "synthetic-tiny"
    assert ours.workload.model_dump() == {"width": 4}


def test_a_mistake_in_its_own_table_is_told_by_line_and_key(site: Path) -> None:
    write_package(site, "tiny", "tiny_strict")
    path = site / "mine.toml"
    path.write_text('benchmark = "tiny"\n\n[workload]\nwidht = 3\n')
    with pytest.raises(RecipeError, match=r"mine.toml:4: \[workload\] widht: unknown key; did you mean width\?"):
        load_recipe(path)


def test_an_ensemble_of_it_votes_by_the_mean_of_the_bootstrap_unless_it_says_otherwise(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_voting")
    plain = load_recipe("tiny/reference", ["ensemble.members=3"]).ensemble
    assert plain is not None
    assert (plain.members, plain.sampling, plain.strata, plain.vote) == (3, "bootstrap", "none", "mean")
    (folder / "recipes" / "ensemble.toml").write_text('benchmark = "tiny"\n[ensemble]\nout_of_bag_samples = 7\n')
    assert load_recipe("tiny/ensemble").ensemble == plain.model_copy(update={"members": 8, "out_of_bag_samples": 7})


def test_its_type_says_how_members_may_vote_and_draw(site: Path) -> None:
    code = GOOD.replace("workload: Tiny\n", 'strata = ("none", "class")\n    workload: Tiny\n')
    write_package(site, "tiny", "tiny_grouped", code)
    assert load_recipe("tiny/reference", ["ensemble.strata=class"]).ensemble is not None
    with pytest.raises(RecipeError, match=r"ensemble\.vote: expected mean for tiny, got nms"):
        load_recipe("tiny/reference", ["ensemble.vote=nms"])


def test_a_record_s_recipe_is_read_where_the_plug_in_is_installed_and_told_where_it_is_not(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(site, "tiny", "tiny_recorded")
    text = to_toml(load_recipe("tiny/reference"))
    assert to_toml(parse_resolved(text, "recipe.toml")) == text
    monkeypatch.syspath_prepend("/")
    (site / "tiny_recorded-1.0.dist-info" / "entry_points.txt").unlink()
    with pytest.raises(RecipeError, match=r"recipe\.toml: benchmark: expected one of ic, ewa, got 'tiny'; a plug-in's"):
        parse_resolved(text, "recipe.toml")


def test_a_broken_plug_in_is_told_by_its_own_recipes_and_by_no_other(site: Path) -> None:
    write_package(site, "tiny", "tiny_broken", "raise ValueError('no')")
    assert load_recipe("ic/smoke").benchmark == "ic"
    assert "ic/smoke" in shipped_recipes()
    with pytest.raises(EnvironmentLacksError, match="it cannot be loaded: ValueError: no; mend it"):
        load_recipe("tiny/reference")


def test_without_a_smoke_recipe_the_reference_is_what_runs(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_default")
    assert default_recipe("tiny", has_data=False) == "tiny/reference"
    (folder / "recipes" / "smoke.toml").write_text('benchmark = "tiny"\n')
    assert default_recipe("tiny", has_data=False) == "tiny/smoke"
    assert default_recipe("tiny", has_data=True) == "tiny/reference"
    assert (default_recipe("ic", has_data=False), default_recipe("ic", has_data=True)) == ("ic/smoke", "ic/reference")


def test_no_edition_has_rules_for_it(site: Path) -> None:
    write_package(site, "tiny", "tiny_ruled")
    assert rulebook("v3.0", "tiny") == {}
