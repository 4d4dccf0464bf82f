"""The nine layers of a system under test (V2.0, Fig. 2) as the tables of a recipe.

No field has a default here, but `hardware.ranks`: `recipes/<benchmark>/reference.toml` states every value once
(`ensemble.toml` those of an ensemble), and every other recipe is a difference from it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hpcai500.layers.fields import Count, Fraction, Interval, Layer, Name, NonNegative, Pair, Positive, YearRange

# The layer of each table in the papers' nine-layer model, top down.
LAYER_NUMBERS: dict[str, int] = {
    "problem": 9,
    "hyperparameters": 8,
    "workload": 7,
    "programming": 6,
    "framework": 5,
    "accelerator": 4,
    "communication": 3,
    "os": 2,
    "hardware": 1,
}


# ----------------------------------------------------------------------------------------------------
# The table of an ensemble (V3.0): base models that vote, each trained on a bootstrap of the data. Only in its recipes.


class Ensemble(Layer):
    """M base models and their vote (V3.0 sections 3.1 and 3.4). P_degree is the ranks of a member: layer 1."""

    members: Count = Field(description="base models that vote (M of V3.0 Eq. 5)")
    sampling: Literal["bootstrap", "poisson", "all"] = Field(
        description="training samples of a member: draws with replacement, Poisson(1) counts, or each once (no bagging)"
    )
    strata: Name = Field(description="strata of the draws: `none`, `class` (ic), `year` (ewa)")
    out_of_bag_samples: Annotated[int, Field(ge=0, le=10**9)] = Field(
        description="training samples for the out-of-bag evaluation of members"
    )
    vote: Name = Field(description="`mean` of softmax outputs (ic); `weighted-boxes` or `nms` (ewa)")
    vote_iou: Fraction = Field(gt=0, description="overlap that merges boxes of two members (ewa)")


# ----------------------------------------------------------------------------------------------------
# Layers 9 and 8: the problem, and how it is learnt (V2.0, Fig. 2).


# Number of seeds.
SEEDS = 2**63


class Problem(Layer):
    """Layer 9: the problem. Nothing here may change in a rankable result."""

    dataset: Name = Field(description="data set; `synthetic-*` is made by hpcai500")
    metric: Name = Field(description="quality metric")
    target_quality: Fraction = Field(gt=0, description="target of the quality factor")
    epochs: Count = Field(description="passes over the training set")

    @property
    def is_synthetic(self) -> bool:
        """Whether hpcai500 makes the data set."""
        return self.dataset.startswith("synthetic-")


class LossProblem(Problem):
    """Layer 9 of a plug-in whose metric is a loss: any value of 0 or more, and lower is better."""

    target_quality: Positive = Field(description="target of the quality, reached from above")
    better: Literal["lower"] = Field(description="a lower value of the metric is better")


class ClimateProblem(Problem):
    """Layer 9 of `ewa`, with the training and evaluation years."""

    training_years: YearRange = Field(description="first and last year")
    evaluation_years: YearRange = Field(description="first and last year")

    @model_validator(mode="after")
    def _years_are_apart(self) -> ClimateProblem:
        for name in ("training_years", "evaluation_years"):
            first, last = getattr(self, name)
            if first > last:
                raise ValueError(f"{name}: expected [first, last] with first <= last, got [{first}, {last}]")
        if self.training_years[0] <= self.evaluation_years[1] and self.evaluation_years[0] <= self.training_years[1]:
            raise ValueError(
                f"evaluation_years: expected years that are not trained on ({list(self.training_years)}), "
                f"got {list(self.evaluation_years)}"
            )
        return self


Rule = Literal["sgd", "lars", "lamb", "adam", "adagrad", "rmsprop-warmup"]
# The update rules of hpcai500; a subclass of a plug-in may name those of its workload (`workloads.base.OwnOptimizer`).
RULES: tuple[str, ...] = get_args(Rule)


SLOW_START_SHARE = 0.5
"""Share of the scaled learning rate with which `slow-start` begins (Akiba, Suzuki and Fukuda 2017)."""


class Hyperparameters(Layer):
    """Layer 8. Batch size and learning-rate policy may change at every level, most other fields only at `free`."""

    batch_size: Count = Field(description="samples per accelerator (or set of stages) and backward pass")
    accumulation_steps: Count = Field(description="backward passes per update")
    optimizer: Rule = Field(description="update rule; `rmsprop-warmup` changes from RMSprop to SGD")
    base_learning_rate: Positive = Field(description="learning rate at `base_batch`")
    base_batch: Count = Field(description="global batch of `base_learning_rate`")
    learning_rate_scaling: Literal["linear", "none"] = Field(description="how the rate follows the batch")
    warmup_epochs: NonNegative = Field(description="linear warm-up: epochs; first share of the rate")
    warmup_start: Fraction = Field(description="linear warm-up: epochs; first share of the rate")
    schedule: Literal["cosine", "step", "polynomial", "constant", "slow-start"] = Field(
        description="decay after the warm-up; `slow-start` begins at half the rate"
    )
    end_learning_rate: NonNegative = Field(description="last rate of cosine and polynomial decay")
    step_epochs: Annotated[tuple[Positive, ...], Field(strict=False)] = Field(
        description="`step` decay: epochs, factor"
    )
    step_factor: Fraction = Field(description="`step` decay: epochs, factor")
    polynomial_power: Positive = Field(description="power of `polynomial` decay")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(description="momentum (SGD, LARS, RMSprop warm-up)")
    momentum_form: Literal["outside", "inside", "corrected"] = Field(
        description="learning rate outside the velocity, inside, or inside with correction (Facebook, Berkeley)"
    )
    trust_coefficient: Positive = Field(description="factor of LARS")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(description="first-moment decay (Adam, LAMB)")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(description="second-moment decay (Adam, LAMB, RMSprop warm-up)")
    epsilon: NonNegative = Field(description="added to denominators (all but SGD)")
    rmsprop_learning_rate: Positive = Field(description="RMSprop share: rate, middle, length (epochs)")
    rmsprop_center_epoch: NonNegative = Field(description="RMSprop share: rate, middle, length (epochs)")
    rmsprop_period_epochs: Positive = Field(description="RMSprop share: rate, middle, length (epochs)")
    weight_decay: NonNegative = Field(description="L2 penalty in the gradient")
    weight_decay_on: Literal["all", "weights"] = Field(
        description="`weights` omits batch norm and biases, as LARS and LAMB do (Tencent)"
    )
    seed: Annotated[int, Field(ge=0, lt=SEEDS)] = Field(description="seed of weights, order and crops")

    def peak_learning_rate(self, global_batch: int) -> float:
        """Rate after the warm-up; linear scaling multiplies it by k for a global batch of k x `base_batch`.

        `slow-start` begins at half of that rate and never exceeds it.
        """
        linear = self.learning_rate_scaling == "linear"
        scaled = self.base_learning_rate * (global_batch / self.base_batch if linear else 1.0)
        return scaled * SLOW_START_SHARE if self.schedule == "slow-start" else scaled


# ----------------------------------------------------------------------------------------------------
# Layers 6 to 1: the software and the machine that train a model (V2.0, Fig. 2).


class Programming(Layer):
    """Layer 6: how one model is trained by many processes."""

    parallel_mode: Literal["data", "model", "pipeline", "mixed"] = Field(
        description="`data`: replicas; `model`: a rank per stage; `pipeline`: in `micro_batches`; `mixed`: both"
    )
    stages: Count = Field(description="parts of the model; 1 for `data`")
    micro_batches: Count = Field(description="parts of a batch; with batch norm, above 1 is not equivalent")
    synchronous: Literal[True] = Field(description="synchronous SGD")

    @property
    def ranks_per_replica(self) -> int:
        """Ranks that work on the same samples."""
        return self.stages


class ShardedProgramming(Programming):
    """Layer 6 of a plug-in whose workload can shard its model: weights, gradients and optimizer state over all ranks.

    Its mode `sharded` is for torch's `fully_shard` and `parallelize_module` (docs/plugins.md).
    """

    parallel_mode: Literal["data", "model", "pipeline", "mixed", "sharded"] = Field(  # type: ignore[assignment]
        description="as for other benchmarks; `sharded`: the workload distributes its model over all ranks"
    )
    tensor_ranks: Count = Field(
        description="consecutive ranks that work on the same samples (tensor parallelism); 1 unless `sharded`"
    )

    @property
    def ranks_per_replica(self) -> int:
        return self.stages * self.tensor_ranks


class Framework(Layer):
    """Layer 5: the AI framework and its options."""

    name: Literal["torch"] = Field(description="the framework")
    compile: bool = Field(description="torch.compile")
    channels_last: bool = Field(description="NHWC layout")
    cuda_graphs: bool = Field(description="CUDA graphs of a step")
    fused_optimizer: bool = Field(description="one update kernel (sgd, adam, adagrad)")


class Accelerator(Layer):
    """Layer 4: the device, its arithmetic and its input pipeline."""

    device: Literal["cpu", "cuda"] = Field(description="where the model runs")
    precision: Literal["fp32", "tf32", "bf16", "fp16", "int8"] = Field(
        description="bf16, fp16: mixed, fp32 weights; int8: inputs rounded, fp32 arithmetic"
    )
    loader: Literal["native", "dali", "memory"] = Field(
        description="input pipeline; `dali` is NVIDIA's; `memory` repeats batches without reading"
    )
    conversion: Literal["host", "device"] = Field(
        description="images are converted by loader threads or the CUDA device"
    )
    prefetch_batches: Annotated[int, Field(ge=2, le=64)] = Field(description="batches in the input queue")


class Communication(Layer):
    """Layer 3: how gradients are summed over the ranks (V2.0 section 5.1.6). docs/communication.md has each value."""

    backend: Literal["local", "torch", "horovod"] = Field(
        description="`local`: one process; `torch`: Gloo or NCCL; `horovod`"
    )
    topology: Literal["flat", "hierarchical", "torus", "parameter-server"] = Field(
        description="flat, hierarchical, 2D torus, parameter server"
    )
    torus_columns: Annotated[int, Field(ge=0)] = Field(description="ranks in a torus row; 0: a node's")
    algorithm: Literal["default", "ring", "double-binary-tree", "butterfly", "hierarchical-ring"] = Field(
        description="the library's all-reduce algorithm (V2.0 Table 7)"
    )
    compression: Literal["none", "fp16", "bf16", "int8"] = Field(description="type of transferred gradients")
    error_feedback: bool = Field(description="add the compression error to the next step")
    bucket_bytes: Annotated[int, Field(ge=0, le=2**40)] = Field(
        description="bucket size (fp32 bytes); 0: measure and choose"
    )
    timeout_seconds: Positive = Field(description="time after which a silent rank ends the job")
    trace_steps: Annotated[int, Field(ge=0, le=10**6)] = Field(description="steps whose buckets are traced")


class OperatingSystem(Layer):
    """Layer 2: options of the operating system."""

    threads: Annotated[int, Field(ge=0)] = Field(description="compute threads a process; 0: all allowed")
    input_threads: Annotated[int, Field(ge=0)] = Field(description="input threads a process; 0: as many as cores")


class Hardware(Layer):
    """Layer 1: the machine's size."""

    nodes: Count = Field(description="nodes of the job")
    accelerators_per_node: Count = Field(description="accelerators (processes) per node")
    ranks: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="processes of the job, if some nodes have fewer than `accelerators_per_node`; else 0",
    )

    @property
    def world_size(self) -> int:
        """Processes of the job: one per accelerator."""
        return self.ranks or self.nodes * self.accelerators_per_node

    @model_validator(mode="after")
    def _ranks_fit_the_nodes(self) -> Hardware:
        nodes, per_node = self.nodes, self.accelerators_per_node
        if self.ranks and not nodes + per_node - 1 <= self.ranks < nodes * per_node:
            raise ValueError(
                f"ranks: {nodes} nodes, some with fewer than accelerators_per_node = {per_node}, cannot have "
                f"{self.ranks}; set it to 0 where all have as many"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_ranks(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave them out if nodes are equal, as almost all are."""
        return {key: value for key, value in handler(self).items() if key != "ranks" or value}


# ----------------------------------------------------------------------------------------------------
# Layer 7 of `ic`.


class ImageClassification(Layer):
    """Layer 7 of `ic`: ResNet v1.5 and its algorithmic options."""

    model: Literal["resnet-v1.5"] = Field(description="ResNet, stride in the 3x3 convolution")
    block: Literal["bottleneck", "basic"] = Field(description="residual block")
    depths: Annotated[tuple[Count, Count, Count, Count], Field(strict=False)] = Field(description="blocks a stage")
    width: Count = Field(description="channels of the first stage")
    norm: Literal["batch", "sync-batch"] = Field(description="normalisation; `sync-batch`: over all ranks (Google)")
    norm_statistics: Literal["moving", "last-batch"] = Field(
        description="evaluation uses moving averages, or the last batch (Preferred Networks, Sony)"
    )
    zero_gamma: bool = Field(description="last batch norm of a block starts at 0")
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(description="share of the label for all classes")
    image_size: Annotated[int, Field(ge=8, le=1024)] = Field(description="side of an image")
    evaluation_resize: Annotated[int, Field(ge=8, le=2048)] = Field(description="shorter side before the centre crop")
    crop_area: Interval = Field(description="random crop: share of the area; width / height")
    crop_ratio: Interval = Field(description="random crop: share of the area; width / height")
    flip_probability: Fraction = Field(description="probability of a flip")
    dct_scaling: bool = Field(description="decode large images at 1/2 or 1/4")
    tail: Literal["pad", "drop"] = Field(description="last batch of an epoch: padded or dropped")

    @model_validator(mode="after")
    def _crops_are_possible(self) -> ImageClassification:
        if self.crop_area[0] > self.crop_area[1] or self.crop_area[1] > 1:
            raise ValueError(f"crop_area: expected [low, high] with low <= high <= 1, got {list(self.crop_area)}")
        if self.crop_ratio[0] > self.crop_ratio[1]:
            raise ValueError(f"crop_ratio: expected [low, high] with low <= high, got {list(self.crop_ratio)}")
        if self.evaluation_resize < self.image_size:
            raise ValueError(
                f"evaluation_resize: expected at least image_size ({self.image_size}), got {self.evaluation_resize}"
            )
        return self


# ----------------------------------------------------------------------------------------------------
# Layer 7 of `ewa`.


# As ExtremeWeather names them, in the order of its files (CAM5 output: Racah et al. 2017).
ClimateChannel = Literal[
    "PRECT",
    "PS",
    "PSL",
    "QREFHT",
    "T200",
    "T500",
    "TMQ",
    "TREFHT",
    "TS",
    "U850",
    "UBOT",
    "V850",
    "VBOT",
    "Z1000",
    "Z200",
    "ZBOT",
]
# (height, width) of each anchor of a pyramid level.
AnchorShapes = Annotated[tuple[Interval, ...], Field(strict=False, min_length=1)]


class ExtremeWeather(Layer):
    """Layer 7 of `ewa`: Faster R-CNN with a feature pyramid and its algorithmic options."""

    model: Literal["faster-rcnn-fpn"] = Field(description="two-stage detector on a ResNet")
    block: Literal["bottleneck", "basic"] = Field(description="residual block")
    depths: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=4)] = Field(
        description="blocks a stage; pyramid levels: stages + 1"
    )
    width: Count = Field(description="channels of the first stage")
    norm: Literal["group", "batch", "sync-batch", "frozen-batch"] = Field(
        description="`sync-batch`: over all ranks; `frozen-batch`: fixed"
    )
    pyramid_channels: Count = Field(description="channels of pyramid levels")
    head_width: Count = Field(description="width of the head's two layers")
    channels: Annotated[tuple[ClimateChannel, ...], Field(strict=False, min_length=1)] = Field(
        description="input channels, in order"
    )
    longitude_roll: bool = Field(description="random rotation in longitude")
    crop_width: Annotated[int, Field(ge=0)] = Field(description="columns of a training image; 0: all")
    anchors: Annotated[tuple[AnchorShapes, ...], Field(strict=False, min_length=1)] = Field(
        description="(height, width) of anchors, finest level first"
    )
    canonical_side: Positive = Field(description="region side pooled at stride 16")
    proposals_before_nms: Pair = Field(
        description="proposals (training, evaluation), per level before and per image after NMS"
    )
    proposals_after_nms: Pair = Field(
        description="proposals (training, evaluation), per level before and per image after NMS"
    )
    proposal_nms_iou: Fraction = Field(description="overlaps in the first stage")
    proposal_foreground_iou: Fraction = Field(description="overlaps in the first stage")
    proposal_background_iou: Fraction = Field(description="overlaps in the first stage")
    proposal_samples: Count = Field(description="anchors per image to learn from; largest share of positives")
    proposal_positive_fraction: Fraction = Field(
        description="anchors per image to learn from; largest share of positives"
    )
    detection_foreground_iou: Fraction = Field(description="overlaps in the second stage")
    detection_samples: Count = Field(description="regions per image to learn from; largest share of positives")
    detection_positive_fraction: Fraction = Field(
        description="regions per image to learn from; largest share of positives"
    )
    detection_score: Fraction = Field(description="least score, and number per image")
    detection_nms_iou: Fraction = Field(description="overlaps in the second stage")
    detections: Annotated[int, Field(ge=1, le=100)] = Field(description="least score, and number per image")
    tail: Literal["pad", "drop"] = Field(description="last batch of an epoch: padded or dropped")

    @model_validator(mode="after")
    def _options_fit_together(self) -> ExtremeWeather:
        if len(set(self.channels)) < len(self.channels):
            raise ValueError(f"channels: expected no repeats, got {', '.join(self.channels)}")
        levels = len(self.depths) + 1
        if len(self.anchors) != levels:
            raise ValueError(f"anchors: expected {levels} levels (one more than depths), got {len(self.anchors)}")
        counts = sorted({len(level) for level in self.anchors})
        if len(counts) > 1:
            raise ValueError(f"anchors: expected the same number on every level, got {' and '.join(map(str, counts))}")
        if self.proposal_background_iou > self.proposal_foreground_iou:
            raise ValueError(
                f"proposal_background_iou: expected at most proposal_foreground_iou "
                f"({self.proposal_foreground_iou:g}), got {self.proposal_background_iou:g}"
            )
        return self


# ----------------------------------------------------------------------------------------------------
# A whole recipe: the nine layers, and the conditions between them.


# torch has fused kernels for these only; LARS and LAMB need norms of each layer between two passes.
_FUSED = ("sgd", "adam", "adagrad")


class Recipe(BaseModel):
    """The nine layers, the benchmark, and the edition of the rules."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    # Votes of an ensemble of this benchmark, and strata of its draws.
    votes: ClassVar[tuple[str, ...]] = ("mean",)
    strata: ClassVar[tuple[str, ...]] = ("none",)
    # Input pipelines that can read the benchmark's files.
    loaders: ClassVar[tuple[str, ...]] = ("native", "memory")

    benchmark: str
    edition: str
    problem: Problem
    hyperparameters: Hyperparameters
    workload: Layer
    programming: Programming
    framework: Framework
    accelerator: Accelerator
    communication: Communication
    os: OperatingSystem
    hardware: Hardware
    ensemble: Ensemble | None = None

    @model_serializer(mode="wrap")
    def _without_empty_tables(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a missing [ensemble]: TOML has no null, and the hash of recipes without it must not change."""
        tables: dict[str, Any] = handler(self)
        if tables.get("ensemble", ...) is None:
            del tables["ensemble"]
        return tables

    @property
    def world_size(self) -> int:
        """Processes of the job: one per accelerator."""
        return self.hardware.world_size

    @property
    def global_batch(self) -> int:
        """Samples of one update over all processes."""
        return self.hyperparameters.batch_size * self.shards

    @property
    def replicas(self) -> int:
        """Groups of processes that work on different samples: each has a copy of the model, or they share one.

        They are as many as processes, or fewer if several processes work on the same samples.
        """
        return self.world_size // self.programming.ranks_per_replica

    @property
    def is_sharded(self) -> bool:
        """Whether the workload distributes its model over all processes."""
        return str(self.programming.parallel_mode) == "sharded"

    @property
    def shards(self) -> int:
        """Backward passes of one update over all replicas, each with its own share of the samples."""
        return self.replicas * self.hyperparameters.accumulation_steps

    @model_validator(mode="after")
    def _layers_fit_together(self) -> Recipe:
        policy, epochs = self.hyperparameters, self.problem.epochs
        warmup_epochs = policy.warmup_epochs
        if warmup_epochs > epochs:
            raise ValueError(
                f"hyperparameters.warmup_epochs: expected at most problem.epochs ({epochs}), got {warmup_epochs:g}; "
                "change it too: --set hyperparameters.warmup_epochs=0"
            )
        peak = policy.peak_learning_rate(self.global_batch)
        if policy.end_learning_rate > peak:
            raise ValueError(
                f"hyperparameters.end_learning_rate: expected at most the peak rate ({peak:g}), got "
                f"{policy.end_learning_rate:g}"
            )
        if list(policy.step_epochs) != sorted(set(policy.step_epochs)):
            raise ValueError(f"hyperparameters.step_epochs: expected increasing epochs, got {list(policy.step_epochs)}")
        if self.communication.backend == "local" and self.world_size != 1:
            raise ValueError(
                f"communication.backend: `local` is one process, but hardware asks for {self.world_size} "
                "(nodes x accelerators_per_node); set both to 1"
            )
        if self.communication.backend != "local" and self.world_size == 1:
            raise ValueError(
                f"communication.backend: `{self.communication.backend}` is for two ranks or more, but hardware asks "
                "for one; use `local`, or start more: --procs N"
            )
        self._check_parallel_mode()
        self._check_communication()
        self._check_ensemble()
        self._check_accelerator()
        self._check_fused_optimizer()
        return self

    def _check_parallel_mode(self) -> None:
        """Check the number of ranks and the batch for the parallel mode (V3.0 Table 2)."""
        mode, stages, parts = self.programming.parallel_mode, self.programming.stages, self.programming.micro_batches
        tensor_ranks = getattr(self.programming, "tensor_ranks", 1)
        if self.is_sharded:
            self._check_sharded(tensor_ranks)
            return
        if tensor_ranks != 1:
            raise ValueError(
                f"programming.tensor_ranks: only `sharded` has ranks that share samples, got {tensor_ranks} with "
                f"`{mode}`; use 1, or parallel_mode sharded"
            )
        if mode == "data":
            if (stages, parts) != (1, 1):
                raise ValueError(
                    f"programming.parallel_mode: `data` does not split the model, but stages is {stages} and "
                    f"micro_batches {parts}; set both to 1, or parallel_mode to model, pipeline or mixed"
                )
            return
        ranks, batch_size = self.world_size, self.hyperparameters.batch_size
        if stages < 2:
            raise ValueError(f"programming.stages: `{mode}` splits the model: expected at least 2 stages, got {stages}")
        if mode != "mixed" and ranks != stages:
            raise ValueError(
                f"programming.stages: `{mode}` has a rank for each stage, but hardware asks for {ranks} ranks and "
                f"there are {stages} stages; make them equal, or use parallel_mode mixed for several replicas"
            )
        if ranks % stages or (mode == "mixed" and ranks < 2 * stages):
            raise ValueError(
                f"programming.stages: `mixed` has several replicas of {stages} stages: expected a multiple of "
                f"{stages} ranks, at least {2 * stages}, got {ranks} (hardware.nodes x accelerators_per_node)"
            )
        if mode == "model" and parts != 1:
            raise ValueError(
                f"programming.micro_batches: `model` does not split batches: expected 1, got {parts}; or use pipeline"
            )
        if mode == "pipeline" and parts < 2:
            raise ValueError(
                "programming.micro_batches: `pipeline` needs several to fill its stages: expected at least 2, got 1"
            )
        if batch_size % parts:
            raise ValueError(
                f"programming.micro_batches: expected a divisor of hyperparameters.batch_size ({batch_size}), got "
                f"{parts}"
            )
        self._check_stages()

    def _check_sharded(self, tensor_ranks: int) -> None:
        """Check the number of ranks, and for options that a sharded model does not support."""
        programming, ranks = self.programming, self.world_size
        if (programming.stages, programming.micro_batches) != (1, 1):
            raise ValueError(
                f"programming.stages: a sharded model has no stages, but stages is {programming.stages} and "
                f"micro_batches {programming.micro_batches}; set both to 1"
            )
        if ranks == 1:
            raise ValueError(
                "programming.parallel_mode: `sharded` distributes a model over two ranks or more, but hardware asks "
                "for one; use data, or start more: --procs N"
            )
        if ranks % tensor_ranks:
            raise ValueError(
                f"programming.tensor_ranks: expected a divisor of the {ranks} ranks (hardware.nodes x "
                f"accelerators_per_node), got {tensor_ranks}"
            )
        for field, value, usable, why in (
            ("communication.backend", self.communication.backend, ("torch",), "is moved by torch.distributed"),
            ("communication.topology", self.communication.topology, ("flat",), "has no all-reduce of hpcai500"),
            ("communication.compression", self.communication.compression, ("none",), "has no gradients to compress"),
            ("framework.cuda_graphs", self.framework.cuda_graphs, (False,), "communicates within a step"),
            ("framework.compile", self.framework.compile, (False,), "is not compiled as a whole"),
            ("accelerator.precision", self.accelerator.precision, ("fp32", "tf32", "bf16"), "has no loss scale"),
        ):
            if value not in usable:
                expected = " or ".join(map(_toml, usable))
                raise ValueError(
                    f"{field}: a sharded model {why}: expected {expected}, got {_toml(value)}; change it, or "
                    "programming.parallel_mode to data"
                )

    def _check_stages(self) -> None:
        """Check for options that ranks with stages of one model do not support."""
        mode, backend = self.programming.parallel_mode, self.communication.backend
        if backend != "torch":
            raise ValueError(
                f"communication.backend: stages need torch's pipelining, which `{backend}` lacks: use torch, or "
                "parallel_mode data"
            )
        if self.communication.topology != "flat":
            raise ValueError(
                f"communication.topology: `{mode}` parallelism needs flat; use flat, or parallel_mode data"
            )
        if self.framework.compile:
            raise ValueError(
                f"framework.compile: `{mode}` parallelism cannot compile its stages; use false, or parallel_mode data"
            )

    def _check_accelerator(self) -> None:
        accelerator, device = self.accelerator, self.accelerator.device
        if accelerator.precision == "tf32" and device != "cuda":
            raise ValueError("accelerator.precision: tf32 exists on CUDA devices only; use fp32 or bf16 on a CPU")
        if accelerator.loader not in self.loaders:
            expected = " or ".join(self.loaders)
            raise ValueError(f"accelerator.loader: expected {expected} for this benchmark, got {accelerator.loader}")
        if accelerator.conversion == "device" and device != "cuda":
            raise ValueError(
                f"accelerator.conversion: `device` is for CUDA devices, but accelerator.device is {device}; use `host`"
            )
        if not self.framework.cuda_graphs:
            return
        if device != "cuda":
            raise ValueError(
                f"framework.cuda_graphs: needs a CUDA device, but accelerator.device is {device}; set it to false"
            )
        if self.programming.stages > 1:
            raise ValueError(
                "framework.cuda_graphs: stages of one model wait for each other within a step, which a graph cannot "
                "capture; set it to false, or programming.stages to 1"
            )
        if getattr(self.workload, "norm", None) == "sync-batch":
            raise ValueError(
                "framework.cuda_graphs: synchronised batch norm waits for other ranks within a step, which a graph "
                "cannot capture; set it to false, or workload.norm to another norm"
            )

    def _check_fused_optimizer(self) -> None:
        policy = self.hyperparameters
        if not self.framework.fused_optimizer:
            return
        # A plug-in's own rule decides for itself what it does with the option.
        if policy.optimizer in RULES and policy.optimizer not in _FUSED:
            raise ValueError(
                f"framework.fused_optimizer: torch has no fused kernel for {policy.optimizer}, only for "
                f"{', '.join(_FUSED)}; set it to false"
            )
        if policy.optimizer == "sgd" and policy.momentum_form != "outside":
            raise ValueError(
                "framework.fused_optimizer: torch's fused sgd has the learning rate outside the momentum; set it "
                "to false, or hyperparameters.momentum_form to outside"
            )

    def _check_communication(self) -> None:
        options = self.communication
        if options.error_feedback and options.compression == "none":
            raise ValueError(
                "communication.error_feedback: without compression there is no error; set communication.compression to "
                "fp16, bf16 or int8, or error_feedback to false"
            )
        if options.topology == "torus" and options.torus_columns == 0 and self.hardware.ranks:
            raise ValueError(
                "communication.torus_columns: 0 makes each node a row, but nodes have different numbers of ranks "
                "(hardware.ranks): start as many on each node, or give the ranks of a row"
            )
        columns = options.torus_columns or self.hardware.accelerators_per_node
        if options.topology == "torus" and self.world_size % columns:
            raise ValueError(
                f"communication.torus_columns: expected a divisor of the {self.world_size} ranks, got {columns}"
            )

    def _check_ensemble(self) -> None:
        options = self.ensemble
        if options is None:
            return
        for name, value, allowed in (
            ("vote", options.vote, self.votes),
            ("strata", options.strata, self.strata),
        ):
            if value not in allowed:
                raise ValueError(f"ensemble.{name}: expected {' or '.join(allowed)} for {self.benchmark}, got {value}")
        if options.sampling == "poisson" and options.strata != "none":
            raise ValueError(
                "ensemble.strata: Poisson draws have no strata, each sample is drawn independently; set it to none, or "
                "ensemble.sampling to bootstrap"
            )


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ----------------------------------------------------------------------------------------------------
# The recipes of the benchmarks that come with hpcai500.


class IcRecipe(Recipe):
    """A recipe of Image Classification."""

    strata: ClassVar[tuple[str, ...]] = ("none", "class")
    loaders: ClassVar[tuple[str, ...]] = ("native", "dali", "memory")

    workload: ImageClassification


class EwaRecipe(Recipe):
    """A recipe of Extreme Weather Analytics."""

    votes: ClassVar[tuple[str, ...]] = ("weighted-boxes", "nms")
    strata: ClassVar[tuple[str, ...]] = ("none", "year")

    problem: ClimateProblem
    workload: ExtremeWeather


# A new benchmark needs its tables and a line here; CONTRIBUTING.md lists what else it needs.
RECIPE_TYPES: dict[str, type[Recipe]] = {"ic": IcRecipe, "ewa": EwaRecipe}
