"""What the commands of the job are told: the options of each, sent as one JSON argument.

The login half starts `python -m hpcai500.MODULE JSON`, and the command reads its options back. `hpcai500.data` has two
words before that: which command, and of which benchmark. Only `hpcai500.train` has a command line of its own.
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
    """The one argument of a command; in ASCII, so that a path of any bytes comes through."""
    return json.dumps(asdict(options), default=str)


def read_options(kind: type[T], arguments: Sequence[str] | None = None) -> T:
    """The options that this process was started with.

    Raises:
        UsageError: it was started by hand.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        (text,) = words
        options: T = _restored(kind, json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        name = (get_origin(kind) or kind).__name__
        raise UsageError(f"expected one argument, {name} as JSON: other commands of hpcai500 start this one") from error
    return options


def _restored(kind: Any, value: Any) -> Any:
    """`value`, as JSON has it, made a `kind` again."""
    if isinstance(kind, UnionType):  # `X | None`
        return None if value is None else _restored(get_args(kind)[0], value)
    form = get_origin(kind) or kind
    if is_dataclass(form):
        hints = get_type_hints(form)
        # A measurement's own options are of the kind that the reader asked for.
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
        doing: file where rank 0 notes what it measures now.
        options: those of this kind of measurement.
    """

    recipe: str
    overrides: tuple[str, ...]
    result: Path
    doing: Path
    options: Own


@dataclass(frozen=True)
class StepOptions:
    """Of `measure.step_command`.

    Attributes:
        steps: to time; 0: count only.
        seconds: no step begins after that.
        classes: outputs of a classifier; None: those of the edition's data set.
    """

    steps: int = 0
    seconds: float = 0.0
    classes: int | None = None


@dataclass(frozen=True)
class MicroOptions:
    """Of `measure.micro_command`: which kinds, seconds of each measurement, and folders of data by benchmark."""

    kinds: tuple[str, ...]
    seconds: float
    data: dict[str, Path]


@dataclass(frozen=True)
class ProfileOptions:
    """Of `measure.profile_command`: data set, file of the trace (.json.gz), and steps; None: what fits a minute."""

    data: Path
    trace: Path
    steps: int | None = None


@dataclass(frozen=True)
class SystemOptions:
    """Of `measure.system_command`: folders whose file systems are described, by name."""

    places: dict[str, Path | None]


@dataclass(frozen=True)
class PreflightOptions:
    """Of `measure.preflight_command`, which is told all it needs for `hpcai500 doctor`.

    Attributes:
        recipe: a TOML file, or a shipped recipe.
        log: file that rank 0 writes (`system.checks`).
        checks: names of the checks to make, in order.
        out: folder of the record.
        machine: what speeds are held against.
        limit_seconds: that one check may take.
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
    """Of `engine.replay_command`.

    Attributes:
        recipe: recipe.toml of the record.
        checkpoint: its last one.
        data: folder of the data set.
        result: file that the result is written to, one JSON document.
        at_target: the checkpoint with which it reached its target.
        held_back: folder of another data set, to be evaluated on, too.
        device: `cpu` or `cuda`, where the recipe's own is not here.
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
    """Of `engine.vote_command`.

    Attributes:
        recipe: recipe.toml of the ensemble.
        records: list of members, a line each: number, tab, folder of the record, relative to that of the recipe.
        result: file that the vote is written to.
        refused: file that the first member that cannot vote is written to, {member, reason}.
    """

    recipe: Path
    records: Path
    result: Path
    refused: Path


@dataclass(frozen=True)
class FlopsOptions:
    """Of `measure.flops_command`; `classes` as in StepOptions, `as_json`: print a document instead of a table."""

    recipe: str
    overrides: tuple[str, ...] = ()
    classes: int | None = None
    as_json: bool = False


# ----------------------------------------------------------------------------------------------------
# Commands of `hpcai500.data`, which print their result themselves.


# How a file stores a year of images that are made, and how it compresses those that are repacked.
MadeLayout = Literal["image", "contiguous", "shipped"]
Filter = Literal["none", "lzf"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Of each of them: whether it prints a document instead of text."""

    as_json: bool = False


@dataclass(frozen=True)
class ImageSet:
    """What `data make ic` makes: options that together decide every byte of it."""

    classes: int = 20
    train_per_class: int = 150
    val_per_class: int = 25
    seed: int = 0


@dataclass(frozen=True)
class YearSet:
    """What `data make ewa` makes: options that together decide every byte of it.

    Attributes:
        last_year: is included; each year is one file.
        class_shares: of the storms, by class, in any scale.
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
    """Of `data make ic` and `ewa`: the folder, what is made there, and by how many processes; None: one a core."""

    dir: Path
    wanted: Own
    workers: int | None = None


@dataclass(frozen=True)
class SetOptions(DataOptions):
    """Of `data check ic`, and of what a plug-in's benchmark has: the folder; `workers` as in MakeOptions."""

    dir: Path
    workers: int | None = None


@dataclass(frozen=True)
class CheckYearsOptions(SetOptions):
    """Of `data check ewa`: first and last training year; None: all."""

    years: tuple[int, int] | None = None


@dataclass(frozen=True)
class IndexOptions(DataOptions):
    """Of `data index ic`: the folder, whether the index goes into the user's cache, and threads; None: one a core."""

    dir: Path
    cache: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class AnchorsOptions(DataOptions):
    """Of `data anchors ewa`: `years` as in CheckYearsOptions."""

    dir: Path
    years: tuple[int, int] | None = None
    levels: int = 5
    per_level: int = 3


@dataclass(frozen=True)
class RepackOptions(DataOptions):
    """Of `data repack ewa`: `years` and `workers` as in CheckYearsOptions; `estimate`: do nothing else."""

    source: Path
    target: Path
    kind: Filter = "none"
    years: tuple[int, int] | None = None
    convert_boxes: bool = False
    estimate: bool = False
    workers: int | None = None


@dataclass(frozen=True)
class StageOptions(DataOptions):
    """Of `data stage`.

    Attributes:
        dest: folder of the node; may name $VARIABLES where `expand` is given.
        recipes: TOML files: what runs of them read; none: all.
        name: who needs it; None: anybody.
        threads: None: two a core, at least 4.
        owner: the process at whose end the need ends (`system.process.owner_of`).
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
