"""Ensembles that nobody trained: real writers of plans, campaigns and journals made them, around made-up records.

Every measurement in them is false, and every vote that `made_up_vote` writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.campaigns import rewrite_record, values
from builders.events import Clock, Story, write_story
from hpcai500.campaign.attempts import Invocation, begin_attempt, stop_attempt
from hpcai500.ensemble.counting import Member
from hpcai500.ensemble.journal import Ensemble, append, begin_member, create_ensemble, read_ensemble
from hpcai500.ensemble.mapping import member_places, shape_of
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import drawn_digest, drawn_facts, draws
from hpcai500.recipe import load_recipe, parse_resolved, rulebook, to_toml

HOW = Invocation(["hpcai500", "ensemble", "member"], "alone", None)
# Two epochs of few samples: never rankable, quickly written.
SHORT = ("problem.epochs=2", "hyperparameters.warmup_epochs=1", "hyperparameters.batch_size=8")
PREDICTIONS = b"stands for predictions"
FEW = {"training_samples": 640, "evaluation_samples": 1000}


@dataclass(frozen=True)
class Made:
    """How a made-up member differs from the others; times in seconds.

    Attributes:
        late: how much later than member 0 it began.
        rate: its images a second.
        quality: of it alone.
        host: that it ran on.
        outcome: `done`, `failed`, or `running`: its journal tells no end.
        dataset: changes of its data set's facts.
        predicts: whether its record holds predictions.
    """

    late: float = 0.0
    rate: float = 100.0
    quality: float = 0.7
    host: str | None = None
    outcome: str = "done"
    dataset: Mapping[str, Any] | None = None
    predicts: bool = True


def write_ensemble(
    folder: Path,
    members: Sequence[Made | None],
    *settings: str,
    recipe: str = "ic/ensemble",
    degree: int = 8,
    few: bool = True,
) -> Ensemble:
    """An ensemble with these members; None has not begun.

    Args:
        folder: where it goes.
        members: one after the other.
        settings: as given to --set.
        recipe: name of it.
        degree: accelerators of a member.
        few: whether it has two epochs of few samples, or is the reference in full.
    """
    shape = shape_of(8, members=len(members), degree=degree)
    fixed = [
        f"ensemble.members={len(members)}",
        f"hardware.accelerators_per_node={shape.ranks_a_node}",
        *(["communication.backend=local"] if degree == 1 else []),
    ]
    resolved = load_recipe(recipe, [*(SHORT if few else ()), *fixed, *settings])
    jobs = member_places(shape, resolved.hyperparameters.seed)
    ensemble = create_ensemble(folder, resolved, shape, jobs, Path("/data"), None)
    ensemble = append(
        ensemble,
        "submit",
        {"scheduler": "local", "jobs": ["1"], "members": list(ensemble.members), "at_once": None, "exclude": []},
    )
    for number, made in enumerate(members):
        if made is not None:
            write_member(ensemble, number, made, few=few)
    return read_ensemble(folder)


def write_member(ensemble: Ensemble, number: int, made: Made, *, few: bool = True) -> Path:
    """Another attempt at a member, as the engine would have written it; returns its record."""
    campaign = begin_member(ensemble, number)
    campaign, attempt = begin_attempt(campaign, 1, HOW)
    record = campaign.record(attempt)
    recipe = parse_resolved((campaign.path / "recipe.toml").read_text(encoding="utf-8"), "recipe.toml")
    story = Story(
        recipe=recipe,
        hosts=(made.host or f"node-{number}",),
        images_per_second=made.rate,
        quality=made.quality,
        start_s=ensemble.events[-1]["time_ms"] / 1000 + 100 + made.late,
        campaign={"id": campaign.identity, "trial": 1, "attempt": attempt.attempt, "head": attempt.start_hash},
        dataset={**(FEW if few else {}), **(made.dataset or {})},
        package_code=str(ensemble.start["code_sha256"]),
    )
    clock = write_story(story)
    _draw(clock, recipe, story.facts["training_samples"])
    if made.predicts:
        _predict(record, clock, made.quality, story)
    (record / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")
    if made.outcome == "failed":
        (record / "ERROR").write_text("node-2 was lost\n", encoding="utf-8")
        del clock.events[-8:]
        clock.add("run_error", {"reason": "node-2 was lost"})
    rewrite_record(record, clock.events)
    if made.outcome != "running":
        stop_attempt(campaign, attempt, int(made.outcome == "failed"), rulebook(campaign.edition, campaign.benchmark))
    return record


def made_up_vote(ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
    """Writes a vote that nobody held: each member makes it a little better."""
    alone = [one.result.quality.achieved or 0.0 for one in members]
    value = min(1.0, alone[0] + 0.01 * (len(members) - 1))
    out.write_text(
        json.dumps(
            {
                "schema": "hpcai500-vote-1", "benchmark": ensemble.start["benchmark"], "metric": "top1",
                "target": 0.763, "vote": "mean", "value": value, "per_class": None, "samples": 1000,
                "members": [
                    {"member": one.number, "record": one.record, "value": quality, "per_class": None,
                     "samples": 1000, "sha256": "0" * 64}
                    for one, quality in zip(members, alone, strict=True)
                ],
                "curve": [
                    {"members": k + 1, "value": min(1.0, alone[0] + 0.01 * k)} for k in curve_sizes(len(members))
                ],
                "out_of_bag": {"samples": 900, "votes_a_sample": 0.37 * len(members), "value": value - 0.02,
                               "members": []},
            }
        ),
        encoding="utf-8",
    )  # fmt: skip


def curve_sizes(members: int) -> list[int]:
    """Places in the curve, as the vote chooses them: the first 16, then powers of two, and all."""
    wanted: Collection[int] = {*range(min(16, members)), *(2**power - 1 for power in range(5, 20)), members - 1}
    return sorted(k for k in wanted if k < members)


def _draw(clock: Clock, recipe: Recipe, samples: int) -> None:
    """What the member of this seed drew."""
    assert recipe.ensemble is not None
    drawn = draws(samples, recipe.hyperparameters.seed, recipe.ensemble.sampling)
    facts = drawn_facts(drawn, samples, recipe.ensemble.sampling)
    digest = drawn_digest(drawn)
    for value in values(clock.events, "dataset"):
        value["drawn"] = {
            "sampling": facts.sampling, "strata": list(facts.strata), "draws": facts.draws,
            "distinct": facts.distinct, "share": facts.share,
        }  # fmt: skip
        value["coverage"] = digest
    for value in values(clock.events, "epoch_stop"):
        value["coverage"] = digest


def _predict(record: Path, clock: Clock, quality: float, story: Story) -> None:
    """Files that stand for predictions, and what the events tell of them."""
    sha256 = hashlib.sha256(PREDICTIONS).hexdigest()
    (record / "predictions").mkdir(parents=True)
    for kind, samples in (("evaluation", story.facts["evaluation_samples"]), ("out-of-bag", 236)):
        (record / "predictions" / f"{kind}.npz").write_bytes(PREDICTIONS)
        file = f"predictions/{kind}.npz"
        clock.add("predictions", {"kind": kind, "file": file, "sha256": sha256, "samples": samples}, after=1.0)
    metric = story.recipe.problem.metric
    clock.add("out_of_bag", {"metric": metric, "value": quality - 0.03, "samples": 236, "per_class": None})
