"""A recipe, whole: the nine layers together, and what one layer asks of another."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from hpcai500.layers.accelerator_options import accelerator_problem
from hpcai500.layers.ensemble import Ensemble
from hpcai500.layers.fields import Layer
from hpcai500.layers.parallel_modes import parallel_mode_problem
from hpcai500.layers.system import Accelerator, Communication, Framework, Hardware, OperatingSystem, Programming
from hpcai500.layers.training import Hyperparameters, Problem


class Recipe(BaseModel):
    """A job, whole: the nine layers, the benchmark and the edition of the rules that it is run under."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # How members of an ensemble of this benchmark can vote, and what their draws can keep the shares of.
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
    def _without_what_is_not_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """TOML has no word for nothing, and a recipe of one model is the same as before there were ensembles."""
        tables: dict[str, Any] = handler(self)
        if tables.get("ensemble", ...) is None:
            del tables["ensemble"]
        return tables

    @property
    def world_size(self) -> int:
        """Processes of the job: one an accelerator."""
        return self.hardware.nodes * self.hardware.accelerators_per_node

    @property
    def global_batch(self) -> int:
        """Samples of one update over all processes."""
        return self.hyperparameters.batch_size * self.shards

    @property
    def replicas(self) -> int:
        """Models that learn together: as many as processes, fewer where several processes hold the stages of one."""
        return self.world_size // self.programming.stages

    @property
    def shards(self) -> int:
        """Backward passes of one update over all replicas: each has its own share of the samples."""
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
        scale = self.global_batch / policy.base_batch if policy.learning_rate_scaling == "linear" else 1.0
        if policy.end_learning_rate > policy.base_learning_rate * scale:
            raise ValueError(
                f"hyperparameters.end_learning_rate: expected at most the peak rate "
                f"({policy.base_learning_rate * scale:g}), got {policy.end_learning_rate:g}"
            )
        if list(policy.step_epochs) != sorted(set(policy.step_epochs)):
            raise ValueError(f"hyperparameters.step_epochs: expected growing epochs, got {list(policy.step_epochs)}")
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
        if problem := accelerator_problem(
            self.framework,
            self.accelerator,
            policy,
            loaders=self.loaders,
            stages=self.programming.stages,
            norm=getattr(self.workload, "norm", None),
        ):
            raise ValueError(problem)
        return self

    def _check_parallel_mode(self) -> None:
        if problem := parallel_mode_problem(
            self.programming,
            ranks=self.world_size,
            batch_size=self.hyperparameters.batch_size,
            backend=self.communication.backend,
            topology=self.communication.topology,
            compiles=self.framework.compile,
        ):
            raise ValueError(problem)

    def _check_communication(self) -> None:
        way = self.communication
        if way.error_feedback and way.compression == "none":
            raise ValueError(
                "communication.error_feedback: nothing is lost without compression; set communication.compression to "
                "fp16, bf16 or int8, or error_feedback to false"
            )
        columns = way.torus_columns or self.hardware.accelerators_per_node
        if way.topology == "torus" and self.world_size % columns:
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
                "ensemble.strata: Poisson counts keep the shares of nothing, each sample counts for itself; set it to "
                "none, or ensemble.sampling to bootstrap"
            )
