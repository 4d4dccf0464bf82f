"""Weights from an untrusted checkpoint, and sketches for comparing models.

`replay_command` imports this module after it has set OpenMP's variables.
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
from hpcai500.streams import escaped

# Space for names, shapes and the directory of a checkpoint, which is a ZIP file.
_SLACK_BYTES = 16 << 20
_MOST_CHARACTERS = 200
# Length of a sketch; it includes matrices and convolutions.
_SUMS = 4096
_LEAST_DIMENSIONS = 2
_CONVOLUTION_DIMENSIONS = 4
# After eight rounds, factors of up to e^3 on all rows and columns leave less than 1e-6 in a trained net.
_ROUNDS = 8
_LEAST_DEVIATION = 1e-6


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of the untrusted checkpoint `path` into `model`.

    No code in the file is run (`weights_only`), its size is bounded by the model's, and names, shapes and types must be
    exactly the model's.

    Raises:
        WrongAnswerError: it is not a checkpoint of this model.
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
    except Exception as error:  # a hostile file can raise any error
        raise WrongAnswerError(f"{path}: not a checkpoint of weights: {_reason(error)}") from error


def sketch_of(model: nn.Module) -> list[float]:
    """4096 numbers for comparing the weights of two models without having both.

    Each weight is added, with a sign, to one of the sums, both drawn from one seed (count sketch: Charikar, Chen and
    Farach-Colton 2002), so that the cosine of two sketches is that of the weights to within about 1/64. The weights are
    the balanced magnitudes of matrices and convolutions, less their mean, with each tensor scaled to norm 1, so that
    none outweighs another. Biases and parameters of norms are left out: they start with the same values in every run.
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
        # Balancing turns a matrix with one row or column into ones with rounding errors.
        if norm > _LEAST_DEVIATION * len(values) ** 0.5:
            sums.index_add_(0, places, signs * values / norm)
    return [float(value) for value in sums]


def _balanced(weight: Tensor) -> Tensor:
    """Magnitudes of the weights (outputs, inputs, places in the filter), scaled until each of these has a mean of 1.

    A copied net can be disguised by scaling its filters (before a batch norm also by -1) and the next layer inversely,
    which does not change its function. Balanced magnitudes do not depend on such factors of rows and columns (Sinkhorn
    and Knopp 1967). Places are balanced, too, because the middle of a filter has the largest weights in all nets.
    """
    magnitudes = weight.detach().to("cpu", torch.float64, copy=True).nan_to_num_().abs_()
    magnitudes = magnitudes.reshape(*weight.shape[:_LEAST_DIMENSIONS], -1)
    for _ in range(_ROUNDS):
        for others in ((1, 2), (0, 2), (0, 1)):
            mean = magnitudes.mean(others, keepdim=True)
            magnitudes /= torch.where(mean > 0, mean, 1.0)
    return magnitudes


def first_filters(model: nn.Module) -> list[list[float]]:
    """The filters of a model's first convolution, each of norm 1; empty if it has no convolution.

    A copy may permute a net's inner channels, but the channels of its input images have a fixed order.
    """
    weight = next((one for one in model.parameters() if one.dim() == _CONVOLUTION_DIMENSIONS), None)
    if weight is None:
        return []
    rows = weight.detach().to("cpu", torch.float64).nan_to_num().flatten(1)
    filters: list[list[float]] = nn.functional.normalize(rows).tolist()
    return filters


def _require_plain(path: Path, most_bytes: int) -> None:
    """Refuse, before torch reads it, a file that is not a ZIP, is too large, or would unpack to more than its size."""
    size = path.stat().st_size
    if size > most_bytes:
        raise WrongAnswerError(f"{path}: {size} bytes; a checkpoint of this model has at most {most_bytes}")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise WrongAnswerError(f"{path}: is compressed; checkpoints are not")
    if sum(entry.file_size for entry in entries) > size:
        raise WrongAnswerError(f"{path}: its parts claim more than the file's {size} bytes")


def _require_fit(state: Any, model: nn.Module) -> None:
    weights = state.get("model") if isinstance(state, Mapping) else None
    if not isinstance(weights, Mapping):
        raise WrongAnswerError("the checkpoint has no table `model` of weights")
    expected = model.state_dict()
    for name in [*expected, *weights]:
        if name not in weights:
            raise WrongAnswerError(f"the checkpoint lacks {name}, which the recipe's model has")
        if name not in expected:
            raise WrongAnswerError(
                f"the checkpoint has {str(name)[:_MOST_CHARACTERS]!r}, which the recipe's model does not have"
            )
        if _described(weights[name]) != _described(expected[name]):
            raise WrongAnswerError(
                f"{name}: the recipe's model has {_described(expected[name])}, the checkpoint "
                f"{_described(weights[name])}"
            )


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__} {value.layout} {value.dtype} {tuple(value.shape)} on {value.device.type}"


@contextmanager
def _bounded_memory(more_bytes: int) -> Iterator[None]:
    """Limit the address space of this process to its current size plus twice `more_bytes`.

    A valid file needs half of that: torch reads each part once, into its final memory.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2 * more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "loading it takes more memory than its size"
    # torch's own message explains how to open the file nevertheless; its cause says what is wrong.
    cause = error.__context__ or error
    line = (str(cause).splitlines() or [""])[0].partition(". Please use")[0]
    return f"{type(cause).__name__}: {escaped(line, _MOST_CHARACTERS)}"
