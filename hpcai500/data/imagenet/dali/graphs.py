"""The two pipelines: ours on a CPU, and one for a device whose decoder reads regions of an image."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcai500._core import DecodeSpec
from hpcai500.data.imagenet.dali.feed import Feed
from hpcai500.data.imagenet.dali.plugin import load_operators

if TYPE_CHECKING:
    from nvidia.dali import Pipeline

_LAYOUTS = {"nchw": "CHW", "nhwc": "HWC"}
# Edges of DALI's graph, which has a type of its own for them.
Node = Any


@dataclass(frozen=True)
class Engine:
    """Size of a pipeline.

    Attributes:
        batch_size: images of a batch, at most.
        threads: of DALI, on the host.
        depth: batches that are made ahead.
        device_id: number of the CUDA device; None for a pipeline that needs none.
    """

    batch_size: int
    threads: int
    depth: int
    device_id: int | None = None


def host_pipeline(feed: Feed, spec: DecodeSpec, engine: Engine, index: Path | None = None) -> Pipeline:
    """DALI reads the files, and our operator makes the images of `spec`, by a seek `index`. Outputs: images, status."""

    def graph(files: Node, keys: Node) -> tuple[Node, ...]:
        from nvidia.dali import fn  # noqa: PLC0415

        images, status = fn.hpcai500.decode_crop(
            files,
            keys,
            mean=_texts(spec.mean),
            std=_texts(spec.std),
            dtype=spec.dtype,
            layout=_LAYOUTS[spec.layout],
            dct_scaling=spec.dct_scaling,
            index=list(os.fsencode(index)) if index else [],
            **_crop_arguments(spec),
        )
        return images, status

    return _pipeline(feed, engine, graph)


def device_pipeline(
    feed: Feed, spec: DecodeSpec, engine: Engine, *, decoder: Literal["mixed", "cpu"] = "mixed"
) -> Pipeline:
    """Our operator draws the crops, and DALI's decoder, resize and normalisation make them on the device.

    `decoder="cpu"` is the same graph on a host: for tests of it, where no device is. Outputs: images (float32 where
    `spec` asks for bfloat16, which DALI does not have), status of the headers.
    """

    def graph(files: Node, keys: Node) -> tuple[Node, ...]:
        from nvidia.dali import fn, types  # noqa: PLC0415

        files, anchor, shape, begin, end, flip, status = fn.hpcai500.draw_crop(files, keys, **_crop_arguments(spec))
        # As our decoder: EXIF's orientation is left alone.
        images = fn.decoders.image_slice(
            files, anchor, shape, device=decoder, axis_names="HW", adjust_orientation=False, output_type=types.RGB
        )
        # Not rounded to levels between resize and normalisation, as in our decoder.
        images = fn.resize(
            images,
            size=[spec.size, spec.size],
            roi_start=begin,
            roi_end=end,
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            dtype=types.FLOAT,
        )
        levels = spec.dtype == "uint8"
        images = fn.crop_mirror_normalize(
            images,
            mirror=flip,
            mean=[0.0] * 3 if levels else list(spec.mean),
            std=[1.0] * 3 if levels else list(spec.std),
            dtype={"uint8": types.UINT8, "float16": types.FLOAT16}.get(spec.dtype, types.FLOAT),
            output_layout=_LAYOUTS[spec.layout],
        )
        return images, status

    return _pipeline(feed, engine, graph)


def _pipeline(feed: Feed, engine: Engine, graph: Callable[[Node, Node], tuple[Node, ...]]) -> Pipeline:
    load_operators()
    from nvidia.dali import Pipeline, fn, types  # noqa: PLC0415

    pipeline = Pipeline(
        batch_size=engine.batch_size,
        num_threads=engine.threads,
        device_id=engine.device_id,
        prefetch_queue_depth=engine.depth,
    )
    with pipeline:
        paths, keys = fn.external_source(source=feed, num_outputs=2, dtype=[types.UINT8, types.INT64], ndim=1)
        # A file that shrinks while it is mapped would end the process.
        files = fn.io.file.read(paths, dont_use_mmap=True)
        pipeline.set_outputs(*graph(files, keys))
    return pipeline


def _crop_arguments(spec: DecodeSpec) -> dict[str, Any]:
    return {
        "size": spec.size,
        "mode": spec.mode,
        "area": _texts(spec.area),
        "ratio": _texts(spec.ratio),
        "flip_probability": repr(spec.flip_probability),
        "resize_shorter": spec.resize_shorter,
    }


def _texts(numbers: tuple[float, ...]) -> list[str]:
    # Our operators take numbers as text: DALI would round them to 24 bits.
    return [repr(number) for number in numbers]
