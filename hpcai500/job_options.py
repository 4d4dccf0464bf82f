"""Options of the commands of the job, each sent as one JSON argument.

The login half starts `python -m hpcai500.MODULE JSON`, and the command reads its options back. `hpcai500.data` takes
two arguments before the JSON: command and benchmark. `hpcai500.train` has its own command line instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from hpcai500.errors import UsageError

T = TypeVar("T")
Own = TypeVar("Own")


# ----------------------------------------------------------------------------------------------------
# Options as JSON: dataclasses of paths, numbers and texts, and of tuples and dicts of these.


def as_argument(options: Any) -> str:
    """The argument of a command; in ASCII, so that paths of any bytes are preserved."""
    return json.dumps(asdict(options), default=str)


def read_options(kind: type[T], arguments: Sequence[str] | None = None) -> T:
    """The options that this process was started with.

    Raises:
        UsageError: the arguments are something else, for example because it was started by hand.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        (text,) = words
        options: T = _restored(kind, json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        name = (get_origin(kind) or kind).__name__
        raise UsageError(
            f"expected one argument, {name} as JSON: only other hpcai500 commands start this one"
        ) from error
    return options


def _restored(kind: Any, value: Any) -> Any:
    """The `kind` that the JSON value `value` stands for."""
    if isinstance(kind, UnionType):  # `X | None`
        return None if value is None else _restored(get_args(kind)[0], value)
    form = get_origin(kind) or kind
    if is_dataclass(form):
        hints = get_type_hints(form)
        # `Own` is the type argument of the Measurement that is read.
        hints |= {name: get_args(kind)[0] for name, hint in hints.items() if hint is Own}
        return form(**{name: _restored(hints[name], one) for name, one in value.items()})  # type: ignore[operator]
    if form is tuple:
        return tuple(_restored(get_args(kind)[0], one) for one in value)
    if form is dict:
        return {name: _restored(get_args(kind)[1], one) for name, one in value.items()}
    return Path(value) if kind is Path else value


# ----------------------------------------------------------------------------------------------------
# Measurements on all ranks: `launch.measuring.measure` starts them, `engine.measurement.run_measurement` runs them.


@dataclass(frozen=True)
class Measurement(Generic[Own]):
    """A measurement of any kind.

    Attributes:
        recipe: a TOML file, or a shipped recipe.
        overrides: `table.key=value` each.
        result: file that rank 0 writes, one JSON document.
        doing: file in which rank 0 notes what it is measuring.
        options: those of this kind of measurement.
    """

    recipe: str
    overrides: tuple[str, ...]
    result: Path
    doing: Path
    options: Own


@dataclass(frozen=True)
class StepOptions:
    """Options of `measure.step_command`.

    Attributes:
        steps: steps to time; 0: count operations only.
        seconds: start no step after this time.
        classes: outputs of a classifier; None: those of the edition's data set.
    """

    steps: int = 0
    seconds: float = 0.0
    classes: int | None = None


# Collectives that `hpcai500 micro` measures, and everything that it measures, in this order.
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")
MICRO_KINDS = ("gemm", "conv", "copy", *COLLECTIVES, "pairs", "device", "input")


@dataclass(frozen=True)
class MicroOptions:
    """Options of `measure.micro_command`: kinds, seconds of each measurement, and folders of data by benchmark."""

    kinds: tuple[str, ...]
    seconds: float
    data: dict[str, Path]


@dataclass(frozen=True)
class StorageOptions:
    """Options of `measure.storage_command`.

    Attributes:
        folder: an empty folder, which the command that started the ranks removes.
        dir: the folder that the user named, in which it is; other hosts may have another one of this name.
        kinds: of `storage_command.KINDS`.
        models: whose checkpoints are saved and restored.
        seconds: of all measurements together, about.
        space: bytes that all ranks may write at once; None: as much as is sensible.
    """

    folder: Path
    dir: Path
    kinds: tuple[str, ...]
    models: tuple[str, ...]
    seconds: float
    space: int | None


@dataclass(frozen=True)
class ProfileOptions:
    """Options of `measure.profile_command`.

    Attributes:
        data: folder of the data set.
        trace: file of the trace (.json.gz).
        steps: None: as many as fit in a minute.
    """

    data: Path
    trace: Path
    steps: int | None = None


@dataclass(frozen=True)
class SystemOptions:
    """Options of `measure.system_command`: folders whose file systems are described, by name."""

    places: dict[str, Path | None]


@dataclass(frozen=True)
class PreflightOptions:
    """Options of `measure.preflight_command`, for `hpcai500 doctor`.

    Attributes:
        recipe: a TOML file, or a shipped recipe.
        log: file that rank 0 writes (`system.checks`).
        checks: names of the checks to make, in order.
        out: folder of the record.
        machine: machine whose ceilings the measured speeds are compared with.
        limit_seconds: time limit of each check.
    """

    recipe: str
    overrides: tuple[str, ...]
    log: Path
    checks: tuple[str, ...]
    data: Path | None
    out: Path
    machine: str | None
    limit_seconds: float


# ----------------------------------------------------------------------------------------------------
# Commands of one process.


@dataclass(frozen=True)
class ReplayOptions:
    """Options of `engine.replay_command`.

    Attributes:
        recipe: recipe.toml of the record.
        checkpoint: its last one.
        data: folder of the data set.
        result: file that the result is written to, one JSON document.
        at_target: the checkpoint with which it reached its target.
        held_back: folder of another data set to evaluate on as well.
        device: `cpu` or `cuda`, instead of the recipe's.
    """

    recipe: Path
    checkpoint: Path
    data: Path
    result: Path
    at_target: Path | None = None
    held_back: Path | None = None
    device: str | None = None


@dataclass(frozen=True)
class VoteOptions:
    """Options of `engine.vote_command`.

    Attributes:
        recipe: recipe.toml of the ensemble.
        records: list of members, a line each: number, tab, folder of the record, relative to that of the recipe.
        result: file for the vote.
        refused: file for the first member that cannot vote, {member, reason}.
    """

    recipe: Path
    records: Path
    result: Path
    refused: Path


@dataclass(frozen=True)
class FlopsOptions:
    """Options of `measure.flops_command`; `classes` as in StepOptions, `as_json`: print JSON instead of a table."""

    recipe: str
    overrides: tuple[str, ...] = ()
    classes: int | None = None
    as_json: bool = False


# ----------------------------------------------------------------------------------------------------
# Commands of `hpcai500.data`, which print their result themselves.


# How a file stores a synthetic year of images, and how a repacked one compresses them.
MadeLayout = Literal["image", "contiguous", "shipped"]
Filter = Literal["none", "lzf"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of all of these commands: whether to print a JSON document instead of text."""

    as_json: bool = False


@dataclass(frozen=True)
class ImageSet:
    """The set that `data make ic` makes. The same options give the same bytes."""

    classes: int = 20
    train_per_class: int = 150
    val_per_class: int = 25
    seed: int = 0


@dataclass(frozen=True)
class YearSet:
    """The set that `data make ewa` makes. The same options give the same bytes.

    Attributes:
        last_year: inclusive; each year is one file.
        class_shares: relative frequencies of the classes of storms.
    """

    first_year: int = 1979
    last_year: int = 1982
    images_per_year: int = 200
    height: int = 128
    width: int = 192
    layout: MadeLayout = "image"
    class_shares: tuple[float, ...] = (0.06, 0.43, 0.46, 0.05)
    seed: int = 0


@dataclass(frozen=True)
class MakeOptions(DataOptions, Generic[Own]):
    """Options of `data make ic` and `ewa`: folder, set to make, and number of processes; None: one per core."""

    dir: Path
    wanted: Own
    workers: int | None = None


@dataclass(frozen=True)
class SetOptions(DataOptions):
    """Options of `data check ic`, and of `make` and `check` of plug-ins: the folder; `workers` as in MakeOptions."""

    dir: Path
    workers: int | None = None


@dataclass(frozen=True)
class CheckYearsOptions(SetOptions):
    """Options of `data check ewa`: first and last training year; None: all."""

    years: tuple[int, int] | None = None


@dataclass(frozen=True)
class IndexOptions(DataOptions):
    """Options of `data index ic`: folder, whether to write to the user's cache, threads; None: one per core."""

    dir: Path
    cache: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class AnchorsOptions(DataOptions):
    """Options of `data anchors ewa`: `years` as in CheckYearsOptions."""

    dir: Path
    years: tuple[int, int] | None = None
    levels: int = 5
    per_level: int = 3


@dataclass(frozen=True)
class RepackOptions(DataOptions):
    """Options of `data repack ewa`: `years` and `workers` as in CheckYearsOptions; `estimate`: only estimate."""

    source: Path
    target: Path
    kind: Filter = "none"
    years: tuple[int, int] | None = None
    convert_boxes: bool = False
    estimate: bool = False
    workers: int | None = None


@dataclass(frozen=True)
class StageOptions(DataOptions):
    """Options of `data stage`.

    Attributes:
        dest: folder of the node; may contain $VARIABLES if `expand` is given.
        recipes: TOML files: copy only what their runs read; empty: all.
        name: of the user of the copy; None: anybody.
        threads: None: two per core, at least 4.
        owner: process whose end releases the copy (`system.process.owner_of`).
        expand: `dest` as rank 0 expanded it.
    """

    source: Path
    dest: Path
    recipes: tuple[str, ...] = ()
    name: str | None = None
    release: bool = False
    limit_bytes: int | None = None
    verify: bool = False
    threads: int | None = None
    owner: str | None = None
    expand: Path | None = None
