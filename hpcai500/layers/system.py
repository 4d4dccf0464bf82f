"""Layers 6 to 1: how, with what and on what a model is trained (V2.0, Fig. 2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcai500.layers.fields import Count, Layer, Positive


class Programming(Layer):
    """Layer 6: how one model is trained by many processes."""

    parallel_mode: Literal["data", "model", "pipeline", "mixed"] = Field(
        description="`data`: equal replicas, summed gradients; `model`: one model, cut into `stages`, a rank each; "
        "`pipeline`: the same, and a batch passes in `micro_batches`; `mixed`: replicas that are cut"
    )
    stages: Count = Field(description="consecutive parts that the model is cut into, one rank each; 1 for `data`")
    micro_batches: Count = Field(
        description="parts in which a batch passes the stages; with more than one, batch norm takes its statistics of "
        "each part, and the result is not that of one device (V2.0 section 5.1.4)"
    )
    synchronous: Literal[True] = Field(description="synchronous SGD; the rules allow no other")


class Framework(Layer):
    """Layer 5: the AI framework and its options."""

    name: Literal["torch"] = Field(description="the framework")
    compile: bool = Field(description="compile the model (torch.compile), before the clock starts")
    channels_last: bool = Field(description="NHWC memory layout of images and weights")
    cuda_graphs: bool = Field(
        description="capture the kernels of a step once and start them as one, so that the host cannot hold a CUDA "
        "device up; what depends on values (the choice of boxes) stays outside"
    )
    fused_optimizer: bool = Field(
        description="update all parameters in one kernel, by torch's own; sgd, adam and adagrad have one"
    )


class Accelerator(Layer):
    """Layer 4: the device, its arithmetic and the library that feeds it."""

    device: Literal["cpu", "cuda"] = Field(description="where the model runs; never chosen silently")
    precision: Literal["fp32", "tf32", "bf16", "fp16", "int8"] = Field(
        description="bf16 and fp16 are mixed precision over fp32 weights; fp16 scales the loss; int8 rounds what "
        "convolutions and linear layers multiply to 256 values, straight-through gradients, arithmetic in fp32"
    )
    loader: Literal["native", "dali", "memory"] = Field(
        description="input pipeline; `dali` is NVIDIA's, for JPEG: on a CPU around our decoder, on a CUDA device with "
        "its own; `memory` repeats a few batches and reads nothing, to see what input costs"
    )
    conversion: Literal["host", "device"] = Field(
        description="where the native loader's images are normalised, cast and laid out: by its threads, or on the "
        "CUDA device while the step before computes"
    )
    prefetch_batches: Annotated[int, Field(ge=2, le=64)] = Field(description="batches in the input ring")


class Communication(Layer):
    """Layer 3: how gradients are summed over the ranks (V2.0 section 5.1.6). docs/communication.md has each value."""

    backend: Literal["local", "torch", "horovod"] = Field(
        description="`local` is one process; `torch` is Gloo or NCCL; `horovod` what it was built with"
    )
    topology: Literal["flat", "hierarchical", "torus", "parameter-server"] = Field(
        description="flat all-reduce; node by node; rows and columns of a 2D torus; one server for each bucket"
    )
    torus_columns: Annotated[int, Field(ge=0)] = Field(description="ranks in a row of the torus; 0: those of a node")
    algorithm: Literal["default", "ring", "double-binary-tree", "butterfly", "hierarchical-ring"] = Field(
        description="what the library below does for an all-reduce, where it has a switch (V2.0 Table 7)"
    )
    compression: Literal["none", "fp16", "bf16", "int8"] = Field(description="type in which gradients travel")
    error_feedback: bool = Field(description="add what compression lost to the next step's gradients")
    bucket_bytes: Annotated[int, Field(ge=0, le=2**40)] = Field(
        description="gradients (bytes in fp32) that travel together; 0 measures several sizes before the clock starts"
    )
    timeout_seconds: Positive = Field(description="silence of a rank after which the whole job is ended")
    trace_steps: Annotated[int, Field(ge=0, le=10**6)] = Field(
        description="first steps of the run of which every bucket is kept in the record's trace"
    )


class OperatingSystem(Layer):
    """Layer 2: what the job asks of the operating system."""

    threads: Annotated[int, Field(ge=0)] = Field(description="compute threads a process; 0 takes all that it may use")
    input_threads: Annotated[int, Field(ge=0)] = Field(description="input threads a process; 0 takes as many as cores")


class Hardware(Layer):
    """Layer 1: the machine's size."""

    nodes: Count = Field(description="nodes of the job")
    accelerators_per_node: Count = Field(description="accelerators, and so processes, a node")
