"""What such a log says first: who submits what, and with which hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.record import Record
from hpcai500.results.global_batch import global_batch
from hpcai500.results.mllog.line import OURS
from hpcai500.results.submission.claim import accelerators_of

_PRECISION = {"bf16": "bfloat16"}
# What MLPerf calls the training of ResNet-50 v1.5 on ImageNet; it has no word for what else we do.
_SAME_TASK = {("ic", "imagenet-1k"): "resnet"}


def submission_facts(record: Record) -> Iterator[tuple[str, Any]]:
    """Keys and values that tell what the log is of.

    A record knows no organisation. MLPerf's checker stops at a benchmark that it does not know, so there is a word of
    its own or none.
    """
    tables, nodes = record.tables, record.system.get("nodes")
    benchmark = tables["benchmark"]
    yield f"{OURS}benchmark", benchmark
    if same := _SAME_TASK.get((benchmark, tables["problem"]["dataset"])):
        yield "submission_benchmark", same
    yield "submission_division", "open"
    yield "submission_org", None
    yield "submission_platform", f"{len(nodes)} nodes, accelerators: {accelerators_of(record)}" if nodes else None
    yield "submission_status", "research"
    # No cache is cleared before a run.
    yield "cache_clear", False


def hyperparameters(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of the recipe in plain tables that MLPerf has words for."""
    policy, samples = tables["hyperparameters"], global_batch(tables)
    scaled = policy["learning_rate_scaling"] == "linear"
    precision = tables["accelerator"]["precision"]
    yield "seed", policy["seed"]
    yield "global_batch_size", samples
    yield "gradient_accumulation_steps", policy["accumulation_steps"]
    yield "micro_batch_size", policy["batch_size"]
    yield "opt_name", policy["optimizer"]
    # MLPerf's is the one that is used, not the one that a smaller batch would have.
    yield (
        "opt_base_learning_rate",
        policy["base_learning_rate"] * (samples / policy["base_batch"] if scaled else 1.0),
    )
    yield "opt_learning_rate_warmup_epochs", policy["warmup_epochs"]
    yield "opt_weight_decay", policy["weight_decay"]
    yield "lowest_numerical_precision_in_linear", _PRECISION.get(precision, precision)
