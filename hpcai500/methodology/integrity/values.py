"""What the events of a run tell, as far as it can be checked: types and ranges of their values.

Keys that are not named here may join. Those that have a default are missing in the records of older versions; what this
version writes in every run, a record of this version must tell (`Value.untold`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[int, Field(ge=1, le=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4096)]


class Value(BaseModel):
    """Content of an event: wrong types are refused, unknown keys are not looked at.

    Attributes:
        sometimes: fields that this version does not write in every run.
        may_be_empty: fields that an honest run may leave empty: a list, a table or a text without content.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    sometimes: ClassVar[frozenset[str]] = frozenset()
    may_be_empty: ClassVar[frozenset[str]] = frozenset()

    def untold(self) -> Iterator[str]:
        """Missing and empty fields that this version writes in every run; `table.field` for those of a table in it."""
        for name in type(self).model_fields:
            if name not in self.model_fields_set:
                if name not in self.sometimes:
                    yield name
                continue
            value = getattr(self, name)
            if value in ([], {}, "") and name not in self.sometimes | self.may_be_empty:
                yield name
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Value):
                    yield from (f"{name}.{inner}" for inner in one.untold())


class InitStart(Value):
    """`init_start`: a process begins."""

    benchmark: Text
    edition: Text
    recipe_hash: Text
    version: Text
    process: Number | None = None
    boot_id: Text | None = None
    campaign: dict[str, Any] | None = None


class Drawn(Value):
    """`dataset.drawn`: the training samples that a member of an ensemble drew."""

    may_be_empty = frozenset({"strata"})

    sampling: Text
    strata: list[Number]
    draws: Number
    distinct: Number
    share: Amount


class Dataset(Value):
    """`dataset`: what is trained on."""

    # A plug-in tells what it likes; of our own benchmarks `records/evidence.py` knows which of these are told.
    sometimes = frozenset(
        {"root", "content_fingerprint", "synthetic", "classes", "grid", "classes_not_evaluated", "drawn"}
    )

    root: Text | None = None
    fingerprint: Text
    content_fingerprint: Text | None = None
    synthetic: bool | None = None
    training_samples: Number
    evaluation_samples: Number
    coverage: Text
    classes: Count | None = None
    grid: list[Number] | None = None
    classes_not_evaluated: list[Text] | None = None
    drawn: Drawn | None = None

    @property
    def samples_of_an_epoch(self) -> int:
        """How many an epoch trains on: the whole training set, or a member's draws."""
        return self.training_samples if self.drawn is None else self.drawn.draws


class Model(Value):
    """`model`."""

    parameters: Number
    steps_per_epoch: Number


class Flops(Value):
    """`flops`: operations of one sample."""

    convention: Text
    per_sample: Amount
    forward: Amount


class Ceilings(Value):
    """`ceilings`: the most that the run's devices reach, measured in the run."""

    precision: Text
    flops: Amount
    slowest_flops: Amount
    slowest_host: Text | None = None
    side: Number | None = None
    ranks: Number
    seconds: Amount


class ParallelEfficiency(Value):
    """`parallel_efficiency`: a step alone and together with all ranks, before the clock."""

    step_seconds_alone: Amount
    step_seconds: Amount
    efficiencies: list[Amount] = []


class InitStop(Value):
    """`init_stop`: what a process needed before it trained."""

    seconds: Amount
    compile_seconds: Amount = 0.0


class Company(Value):
    """`run_start`: who trains."""

    world_size: Number
    nodes: Number
    hosts: list[Text] = []
    backend: Text | None = None
    library: Text | None = None


class Resume(Company):
    """`run_resume`: who goes on, and where."""

    epoch: Number
    step: Count
    after: Text | None = None
    torn_bytes: Count = 0


class Place(Value):
    """`epoch_start`, `interrupted`: an epoch (from 1), and its updates that are done."""

    epoch: Number
    step: Count


class Epoch(Value):
    """`eval_start`, `eval_stop`: an epoch (from 1)."""

    epoch: Number


class EpochStop(Value):
    """`epoch_stop`: what an epoch did; times are means over ranks, in seconds."""

    epoch: Number
    steps: Count
    samples: Count
    padded_samples: Count
    warnings: Count = 0
    indexed_samples: Count = 0
    loss: Annotated[float, Field(allow_inf_nan=False)] | None
    seconds: Amount
    data_wait_seconds: Amount
    compute_seconds: Amount = 0.0
    communication_wait_seconds: Amount = 0.0
    coverage: Text


class Replicas(Value):
    """`replicas`: the digest of the weights of all ranks, which are the same; None where there is one rank."""

    epoch: Number
    ranks: Number
    digest: Text | None


class Evaluation(Value):
    """`eval_accuracy`."""

    # Top-1 has none.
    sometimes = frozenset({"per_class"})

    epoch: Number
    metric: Text
    value: Annotated[float, Field(allow_inf_nan=False)]
    samples: Number
    seconds: Amount
    per_class: dict[str, Annotated[float, Field(allow_inf_nan=False)] | None] | None = None


class Checkpoint(Value):
    """`checkpoint`: where the run goes on from it, and its file."""

    epoch: Number
    step: Count
    file: Text
    sha256: Text
    bytes: Count = 0


class StepsRow(Value):
    """One rank in `steps`."""

    rank: Count
    host: Text
    steps: Count
    seconds: Amount
    data_wait_seconds: Amount = 0.0
    compute_seconds: Amount = 0.0
    communication_wait_seconds: Amount = 0.0
    other_seconds: Amount = 0.0


class Steps(Value):
    """`steps`: where each rank's time went since the last start."""

    ranks: list[StepsRow]


class CommunicationRow(Value):
    """One rank in `communication`."""

    rank: Count
    host: Text


class Communication(Value):
    """`communication`."""

    may_be_empty = frozenset({"bytes_per_step", "stragglers", "network"})

    steps: Count
    ranks: list[CommunicationRow]
    communication_fraction: Any = None
    bytes_per_step: Any = None
    stragglers: Any = None
    network: Any = None


class File(Value):
    """`picture`, `trace`: a file of the record."""

    file: Text
    sha256: Text


class Predictions(File):
    """`predictions`: a file of what a member of an ensemble says of so many samples."""

    kind: Text
    samples: Count


class OutOfBag(Value):
    """`out_of_bag`: quality of a member on samples that it has not drawn; None where there were none."""

    sometimes = frozenset({"per_class"})

    metric: Text
    value: Annotated[float, Field(allow_inf_nan=False)] | None
    samples: Count
    per_class: dict[str, Annotated[float, Field(allow_inf_nan=False)] | None] | None = None


VALUES: dict[str, type[Value]] = {
    "init_start": InitStart,
    "dataset": Dataset,
    "model": Model,
    "flops": Flops,
    "ceilings": Ceilings,
    "parallel_efficiency": ParallelEfficiency,
    "init_stop": InitStop,
    "run_start": Company,
    "run_resume": Resume,
    "epoch_start": Place,
    "interrupted": Place,
    "epoch_stop": EpochStop,
    "replicas": Replicas,
    "eval_start": Epoch,
    "eval_accuracy": Evaluation,
    "eval_stop": Epoch,
    "checkpoint": Checkpoint,
    "steps": Steps,
    "communication": Communication,
    "picture": File,
    "trace": File,
    "prediction_start": Company,
    "predictions": Predictions,
    "out_of_bag": OutOfBag,
}
