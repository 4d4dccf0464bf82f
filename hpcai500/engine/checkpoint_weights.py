"""Weights from a checkpoint that nobody has reason to trust, and sketches by which models are compared.

Only `replay_command` uses it, and imports it late: torch comes after OpenMP's variables are set.
"""

from __future__ import annotations

import resource
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpcai500.engine.checkpoints import state_bytes
from hpcai500.errors import WrongAnswerError
from hpcai500.streams import spelt_out

# What a checkpoint, a ZIP file, may hold beside the numbers: names, shapes and its directory.
_SLACK_BYTES = 16 << 20
_MOST_WORDS = 200
# Numbers of a sketch; matrices and convolutions are in it.
_SUMS = 4096
_LEAST_DIMENSIONS = 2
_CONVOLUTION_DIMENSIONS = 4
# After eight rounds, factors of e^3 of all rows and columns leave less than 1e-6 in a trained net.
_ROUNDS = 8
_LEAST_DEVIATION = 1e-6


def load_weights(model: nn.Module, path: Path) -> None:
    """Give `model` the weights of the checkpoint `path`, which nobody has reason to trust.

    Nothing in the file is run (`weights_only`), its size is bounded by the model's, and names, shapes and types must be
    exactly the model's.

    Raises:
        WrongAnswerError: it is no checkpoint of this model.
    """
    try:
        _require_plain(path, state_bytes(model) + _SLACK_BYTES)
        with _bounded_memory(path.stat().st_size + _SLACK_BYTES):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
        _require_fit(state, model)
        model.load_state_dict(state["model"])
    except WrongAnswerError:
        raise
    except OSError as error:
        raise WrongAnswerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # what a hostile file can raise has no end
        raise WrongAnswerError(f"{path}: not a checkpoint of weights: {_words(error)}") from error


def sketch_of(model: nn.Module) -> list[float]:
    """4096 numbers by which the weights of two models can be compared without having both.

    Each weight is added, with a sign, to one of the sums, both drawn from one seed (count sketch: Charikar, Chen and
    Farach-Colton 2002), so that the cosine of two sketches is that of the weights to within about 1/64. Added are the
    balanced magnitudes of matrices and convolutions, less their mean, each tensor scaled to norm 1, so that none
    outweighs another. Biases and the parameters of norms begin alike in all trainings, and are left out.
    """
    sums = torch.zeros(_SUMS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.dim() < _LEAST_DIMENSIONS:
            continue
        values = _balanced(weight).flatten()
        values -= values.mean()
        places = torch.randint(_SUMS, values.shape, generator=generator)
        signs = 2.0 * torch.randint(2, values.shape, generator=generator) - 1.0
        norm = values.norm()
        # Of a matrix with one row or column, balancing leaves ones and what rounding adds.
        if norm > _LEAST_DEVIATION * len(values) ** 0.5:
            sums.index_add_(0, places, signs * values / norm)
    return [float(value) for value in sums]


def _balanced(weight: Tensor) -> Tensor:
    """Magnitudes of the weights (outputs, inputs, places in the filter), scaled until each of these has a mean of 1.

    Who copies a net can scale its filters (before a batch norm also by -1) and the layer after them inversely: the
    function stays the same. Balanced magnitudes do not depend on such factors of rows and columns (Sinkhorn and Knopp
    1967). Places are balanced, too, as the middle of a filter has the largest weights in all nets.
    """
    magnitudes = weight.detach().to("cpu", torch.float64, copy=True).nan_to_num_().abs_()
    magnitudes = magnitudes.reshape(*weight.shape[:_LEAST_DIMENSIONS], -1)
    for _ in range(_ROUNDS):
        for others in ((1, 2), (0, 2), (0, 1)):
            mean = magnitudes.mean(others, keepdim=True)
            magnitudes /= torch.where(mean > 0, mean, 1.0)
    return magnitudes


def first_filters(model: nn.Module) -> list[list[float]]:
    """The filters of a model's first convolution, each of norm 1; none where it has no convolution.

    A copy may have a net's inner channels in any order; the channels of its input images have a fixed order.
    """
    weight = next((one for one in model.parameters() if one.dim() == _CONVOLUTION_DIMENSIONS), None)
    if weight is None:
        return []
    rows = weight.detach().to("cpu", torch.float64).nan_to_num().flatten(1)
    filters: list[list[float]] = nn.functional.normalize(rows).tolist()
    return filters


def _require_plain(path: Path, most_bytes: int) -> None:
    """Refuse, before torch reads it, what is no ZIP file, is too large, or would unpack into more than its size."""
    size = path.stat().st_size
    if size > most_bytes:
        raise WrongAnswerError(f"{path}: {size} bytes; a checkpoint of this model has at most {most_bytes}")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise WrongAnswerError(f"{path}: compressed; a checkpoint is not")
    if sum(entry.file_size for entry in entries) > size:
        raise WrongAnswerError(f"{path}: its parts claim more than its {size} bytes")


def _require_fit(state: Any, model: nn.Module) -> None:
    weights = state.get("model") if isinstance(state, Mapping) else None
    if not isinstance(weights, Mapping):
        raise WrongAnswerError("the checkpoint holds no table `model` of weights")
    wanted = model.state_dict()
    for name in [*wanted, *weights]:
        if name not in weights:
            raise WrongAnswerError(f"the checkpoint lacks {name}, which the recipe's model has")
        if name not in wanted:
            raise WrongAnswerError(
                f"the checkpoint holds {str(name)[:_MOST_WORDS]!r}, which the recipe's model has not"
            )
        if _form(weights[name]) != _form(wanted[name]):
            raise WrongAnswerError(
                f"{name}: the recipe's model has {_form(wanted[name])}, the checkpoint {_form(weights[name])}"
            )


def _form(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__} {value.layout} {value.dtype} {tuple(value.shape)} on {value.device.type}"


@contextmanager
def _bounded_memory(more_bytes: int) -> Iterator[None]:
    """Limit the address space of this process to what it has now and twice `more_bytes`.

    An honest file needs half of that: torch reads each part once, into the memory where it stays.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2 * more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes more memory than it has bytes"
    # torch's own message tells how to open the file nevertheless; the error that it was raised from says what is wrong.
    cause = error.__context__ or error
    line = (str(cause).splitlines() or [""])[0].partition(". Please use")[0]
    return f"{type(cause).__name__}: {spelt_out(line, _MOST_WORDS)}"
