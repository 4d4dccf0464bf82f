"""Forgeries of what is ranked: a mean without its bad classes, another model, fields left out, odd numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from builders.campaigns import edit_record, edit_records, values
from builders.forgeries import Bundle, Change, Forge, Forgery, each, each_node, in_all, in_journal, in_trial, lacking
from hpcai500.methodology.model_count import model_count
from hpcai500.record import Event

_CYCLONE = "tropical cyclone"


def _one_class(events: list[Event]) -> None:
    """Three of four classes are left out, and the mean is that of the best one."""
    for value in values(events, "eval_accuracy"):
        value.update(per_class={name: 0.9 if name == _CYCLONE else None for name in value["per_class"]}, value=0.9)


def _absent_classes(events: list[Event]) -> None:
    """The same, and the data set is said to have no other."""
    _one_class(events)
    others = [name for name in values(events, "eval_accuracy")[0]["per_class"] if name != _CYCLONE]
    each("dataset", classes_not_evaluated=others)(events)


def _wider(factor: float) -> Forge:
    """Another width, which no table of the edition has; operations are told as so many times more."""
    more = {name: lambda flops: flops * factor for name in ("per_sample", "forward")}

    def forge(bundle: Bundle) -> None:
        bundle.plan_with("workload.width=65")
        bundle.edit_all(each("flops", **more))

    return forge


def _counted(setting: str) -> Forge:
    """Another model of `ewa` in all recipes, and the operations that the software itself counts for it."""

    def forge(bundle: Bundle) -> None:
        bundle.plan_with(setting)
        count = model_count("ewa", bundle.read(1).tables["workload"], 4, (768, 1152))
        assert count
        bundle.edit_all(each("flops", per_sample=float(count.training), forward=float(count.forward)))

    return forge


def _strange_recipe(bundle: Bundle) -> None:
    """A value that no recipe may have, in all of them."""
    for path in bundle.campaign.rglob("recipe.toml"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("image_size = 224", "image_size = 2048"), encoding="utf-8")
    bundle.name_recipes()


def _preload(events: list[Event]) -> None:
    """Processes were started with a library that nobody knows."""
    for value in values(events, "system"):
        value["nodes"][0]["environment"]["LD_PRELOAD"] = "/opt/faster.so"


def _forget_launcher(events: list[Event]) -> None:
    lacking("attempt_start", "launcher")(events)
    each("attempt_start", slurm_job_id=None)(events)


def _one_node(events: list[Event]) -> None:
    """Sixteen ranks of two nodes, described as one node with eight accelerators."""
    for key in ("run_start", "run_resume"):
        lacking(key, "hosts")(events)
    each("system", nodes=lambda nodes: nodes[:1])(events)


def _forget_package(events: list[Event]) -> None:
    for value in values(events, "system"):
        del value["installation"]["package"]["core_sha256"]


def _qualities(quality: Callable[[int], float]) -> Change:
    """The quality of each epoch by its number, on the grid of the evaluation set."""

    def change(events: list[Event]) -> None:
        for value in values(events, "eval_accuracy"):
            value["value"] = round(quality(value["epoch"]) * value["samples"]) / value["samples"]

    return change


def _equal_classes(quality: Callable[[int], float]) -> Change:
    """The quality of each epoch by its number, the same of all classes."""

    def change(events: list[Event]) -> None:
        for value in values(events, "eval_accuracy"):
            told = quality(value["epoch"])
            value.update(value=told, per_class=dict.fromkeys(value["per_class"], told))

    return change


def _plan_of_an_older_version(bundle: Bundle) -> None:
    """The journal alone names a version that nobody has, and its recipe a value that no recipe may have."""
    in_journal(each("campaign_start", version="0.0.9"))(bundle)
    _strange_recipe(bundle)


def _cut_before_training(bundle: Bundle) -> None:
    """The attempts that were thrown away end before they train, when the warm-up has told their speed."""
    for path in bundle.campaign.glob("*/ERROR"):

        def cut(events: list[Event]) -> None:
            last = next(place for place, event in enumerate(events) if event["key"] == "init_stop")
            error = {**events[-1], "clock_s": events[last]["clock_s"] + 1, "time_ms": events[last]["time_ms"] + 1000}
            events[:] = [*events[: last + 1], {**error, "seq": last + 1}]

        edit_record(path.parent, cut)


def _losses(loss: Callable[[int], float]) -> Change:
    def change(events: list[Event]) -> None:
        for value in values(events, "epoch_stop"):
            value["loss"] = loss(value["epoch"]) + value["loss"] * 1e-6

    return change


def _same_qualities(bundle: Bundle) -> None:
    """Each trial has the qualities of the first."""
    told: list[dict[str, Any]] = values([*bundle.read(1).events], "eval_accuracy")
    _evaluated(_qualities(lambda epoch: told[epoch - 1]["value"]))(bundle)


# As if the step of one rank alone had been slowed by half.
_SLOW_ALONE = each("parallel_efficiency", efficiencies=lambda told: [1.43 * one / 0.94 for one in told])


def _nothing(bundle: Bundle) -> None:
    """It is in the honest bundle already."""


def _evaluated(change: Change) -> Callable[[Bundle], None]:
    """Other qualities in all trials, each with a checkpoint that is said to be the one which reached the target."""

    def forge(bundle: Bundle) -> None:
        edit_records({record: partial(rate, bundle, trial) for trial, record in enumerate(bundle.records, 1)})

    def rate(bundle: Bundle, trial: int, events: list[Event]) -> None:
        change(events)
        target = bundle.read(trial).tables["problem"]["target_quality"]
        reached = [number for number, one in enumerate(values(events, "eval_accuracy")) if one["value"] >= target]
        told = values(events, "checkpoint")[reached[0]]
        path = bundle.record(trial) / "checkpoints" / told["file"]
        if not path.is_file():
            content = f"stands for weights of trial {trial} that reach the target".encode()
            path.write_bytes(content)
            told.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))

    return forge


_NAMELESS = each_node(lambda node: [device.pop("uuid") for device in node["accelerators"]])

FORGERIES = (
    Forgery("classes-left-out-of-the-mean", in_all(_one_class), "classes", campaign="ewa"),
    Forgery("classes-exchanged", in_all(each("eval_accuracy", per_class={"weather": 0.9}, value=0.9)), "classes",
            campaign="ewa"),
    Forgery("classes-said-to-be-absent", _evaluated(_absent_classes), "standing", "note", "ewa"),
    Forgery("classes-untold", in_all(lacking("eval_accuracy", "per_class")), "classes", campaign="ewa"),
    Forgery("model-of-another-width", _wider(9.0), "model", campaign="rankable"),
    Forgery("crops-wider-than-the-images", _counted("workload.crop_width=11520"), "model", campaign="ewa"),
    Forgery("value-that-no-recipe-may-have", _strange_recipe, "recipe-fields"),
    Forgery("launcher-untold", in_journal(_forget_launcher), "attempts"),
    Forgery("machines-unknown", in_all(each("init_start", boot_id=None)), "evidence", "warning"),
    Forgery("hosts-untold-and-a-node-cut", in_all(_one_node), "evidence"),
    Forgery("host-names-untold", in_all(lacking("run_start", "hosts")), "evidence"),
    Forgery("parallel-efficiencies-untold", in_all(lacking("parallel_efficiency", "efficiencies")), "evidence"),
    Forgery("absent-classes-untold", in_all(lacking("dataset", "classes_not_evaluated")), "evidence"),
    Forgery("core-untold", in_all(_forget_package), "evidence"),
    Forgery("devices-without-numbers", in_all(_NAMELESS), "evidence"),
    Forgery("all-answers-right", _evaluated(_qualities(lambda epoch: 1.0)), "implausible", "warning", "rankable"),
    Forgery("quality-of-all-epochs-alike", _evaluated(_qualities(lambda epoch: 0.7634)), "implausible", "warning",
            "rankable"),
    Forgery("quality-of-the-last-epoch-from-the-first-on", _evaluated(_qualities(lambda epoch: 0.76 + epoch / 1e4)),
            "implausible", "warning", "rankable"),
    Forgery("qualities-of-one-trial-told-for-all", _same_qualities, "implausible", "warning", "rankable"),
    Forgery("loss-that-rises", in_all(_losses(lambda epoch: 900.0 + epoch)), "implausible", "warning", "rankable"),
    Forgery("loss-below-that-of-the-labels", in_all(_losses(lambda epoch: 0.8 - epoch / 1e3)), "loss",
            campaign="rankable"),
    Forgery("quality-beyond-all-published", _evaluated(_equal_classes(lambda epoch: 0.7 * (1 - 0.9**epoch))),
            "implausible", "warning", "ewa"),
    Forgery("target-reached-at-once", _evaluated(_qualities(lambda epoch: 0.68 if epoch == 1 else 0.764 + epoch / 1e5)),
            "implausible", "warning", "rankable"),
    Forgery("more-regions-than-are-proposed", _counted("workload.detection_samples=100000"), "standing", "note", "ewa"),
    Forgery("plan-of-an-older-version", _plan_of_an_older_version, "recipe-fields"),
    Forgery("host-names-told-as-none", in_all(each("run_start", hosts=[])), "evidence"),
    Forgery("parallel-efficiencies-told-as-none", in_all(each("parallel_efficiency", efficiencies=[])), "evidence"),
    Forgery("waits-told-as-none", in_all(each("epoch_stop", data_wait_seconds=0.0)), "step-sums"),
    Forgery("starts-thrown-away-before-they-train", _cut_before_training, "short-starts", "warning", "begun-twice"),
    Forgery("step-alone-slowed", in_all(_SLOW_ALONE), "implausible", "warning"),
    Forgery("library-preloaded", in_trial(2, _preload), "environment", "warning"),
    Forgery("starts-thrown-away-once-their-speed-was-seen", _nothing, "short-starts", "warning", "begun-twice"),
)  # fmt: skip
