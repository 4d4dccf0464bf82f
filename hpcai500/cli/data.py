"""`hpcai500 data ...`: options of the commands that make, read and copy data sets; `hpcai500.data` runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hpcai500.cli.options import JsonDocument, WithPlugins, add_command, command_alone, new_group
from hpcai500.errors import UsageError
from hpcai500.interpreter import module_command
from hpcai500.job_options import (
    AnchorsOptions,
    CheckYearsOptions,
    DataOptions,
    Filter,
    ImageSet,
    IndexOptions,
    MadeLayout,
    MakeOptions,
    RepackOptions,
    SetOptions,
    StageOptions,
    YearSet,
    as_argument,
)
from hpcai500.launch.processes import become

if TYPE_CHECKING:
    from hpcai500.plugins import Found


def _start(command: str, benchmark: str, options: DataOptions, *, reads: Path | None = None) -> NoReturn:
    """Replace this process by the one that does the work, if this container shows the set that it `reads`."""
    if reads is not None:
        from hpcai500.system.doctor import require_visible

        require_visible(reads, benchmark, sys.argv[1:])
    become(module_command("data", command, benchmark, as_argument(options)), hold=True)


# ----------------------------------------------------------------------------------------------------
# Arguments and options of several commands.


_IC = "Image Classification: JPEG files in train/<class>/ and val/<class>/."
_EWA = "Extreme Weather Analytics: climo_YYYY.h5, one file per year."

New = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the set. It is created if missing.")]
Images = Annotated[Path, typer.Argument(metavar="DIR", help="Folder with train/ and val/.")]
Weather = Annotated[Path, typer.Argument(metavar="DIR", help="Folder with climo_YYYY.h5.")]
Years = Annotated[str | None, typer.Option(metavar="A-B", help="First and last year.  [default: all]")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Number of processes.  [default: one per core]")]
Threads = Annotated[int | None, typer.Option(metavar="N", help="Number of threads.  [default: one per core]")]
Seed = Annotated[int, typer.Option(metavar="N", help="Another seed gives other samples.")]


def _range(years: str | None) -> tuple[int, int] | None:
    """`1979` or `1979-1981` -> first and last year."""
    if years is None:
        return None
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", years)
    if match is None:
        raise UsageError(f"--years: expected 1979 or 1979-1981, got {years!r}")
    return int(match[1]), int(match[2] or match[1])


# ----------------------------------------------------------------------------------------------------
# `hpcai500 data make` and `check`, of plug-ins as well.


def make_ic(
    folder: New,
    classes: Annotated[int, typer.Option(metavar="N", help="Classes, 2 to 36.")] = ImageSet.classes,
    train_per_class: Annotated[
        int, typer.Option(metavar="N", help="Training images per class.")
    ] = ImageSet.train_per_class,
    val_per_class: Annotated[
        int, typer.Option(metavar="N", help="Validation images per class.")
    ] = ImageSet.val_per_class,
    seed: Seed = ImageSet.seed,
    workers: Workers = None,
    as_json: JsonDocument = False,
) -> None:
    """Write a synthetic set of JPEG files in ImageNet's layout: textured shapes on noise.

    The same options give the same bytes. A second call only completes the set. Other files in the folder are never
    changed.
    """
    made = ImageSet(classes, train_per_class, val_per_class, seed)
    _start("make", "ic", MakeOptions(folder, made, workers, as_json=as_json))


_SHARES = ",".join(f"{share:g}" for share in YearSet.class_shares)


def make_ewa(
    folder: New,
    years: Annotated[
        str, typer.Option(metavar="A-B", help="First and last year, one file each.")
    ] = f"{YearSet.first_year}-{YearSet.last_year}",
    images_per_year: Annotated[int, typer.Option(metavar="N", help="Images in each file.")] = YearSet.images_per_year,
    height: Annotated[int, typer.Option(metavar="N", help="Rows from pole to pole.")] = YearSet.height,
    width: Annotated[int, typer.Option(metavar="N", help="Columns around the globe.")] = YearSet.width,
    layout: Annotated[
        MadeLayout,
        typer.Option(
            help="image: one uncompressed chunk per image; contiguous: one uncompressed block; shipped: as "
            "ExtremeWeather ships, with gzip and HDF5's default chunks."
        ),
    ] = YearSet.layout,
    class_shares: Annotated[
        str,
        typer.Option(
            metavar="A,B,C,D",
            help="Shares of tropical depression, tropical cyclone, extratropical cyclone and atmospheric river.",
        ),
    ] = _SHARES,
    seed: Seed = YearSet.seed,
    workers: Workers = None,
    as_json: JsonDocument = False,
) -> None:
    """Write a synthetic set of climate years in ExtremeWeather's format: 16 channels, with boxes around storms.

    The same options give the same bytes. A second call only completes the set. Other files in the folder are never
    changed.
    """
    first, last = _range(years) or (YearSet.first_year, YearSet.last_year)
    try:
        shares = tuple(map(float, class_shares.split(",")))
    except ValueError:
        raise UsageError(
            f"--class-shares: expected four numbers such as 0.1,0.4,0.4,0.1, got {class_shares!r}"
        ) from None
    made = YearSet(first, last, images_per_year, height, width, layout, shares, seed)
    _start("make", "ewa", MakeOptions(folder, made, workers, as_json=as_json))


def check_ic(folder: Images, workers: Threads = None, as_json: JsonDocument = False) -> None:
    """Read and decode every file, regardless of earlier checks.

    Exit code 0: a run can train on every file. 64: the set is missing or has broken files, which are listed.
    """
    _start("check", "ic", SetOptions(folder, workers, as_json=as_json), reads=folder)


def check_ewa(
    folder: Weather,
    years: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="Training years, whose channel statistics are shown.  [default: all]"),
    ] = None,
    workers: Workers = None,
    as_json: JsonDocument = False,
) -> None:
    """Read every image and every box of all years.

    The report lists errors, the layout of the files and its effect on speed, boxes, classes, and the mean and deviation
    of each channel. Later runs use these statistics.

    Exit code 0: a run can train on the set. 64: the set is missing or broken; the report lists the errors.
    """
    _start("check", "ewa", CheckYearsOptions(folder, workers, _range(years), as_json=as_json), reads=folder)


class _Made(WithPlugins):
    """`data make`."""

    @staticmethod
    def command_of(found: Found) -> Any:
        def make(folder: New, as_json: JsonDocument = False) -> None:
            _start("make", found.name, SetOptions(folder, as_json=as_json))

        about = f"Write the synthetic set of the {found.title}. An existing set is not changed."
        return _of_plugin(found, make, about)


class _Checked(WithPlugins):
    """`data check`."""

    @staticmethod
    def command_of(found: Found) -> Any:
        def check(
            folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the set.")],
            as_json: JsonDocument = False,
        ) -> None:
            _start("check", found.name, SetOptions(folder, as_json=as_json), reads=folder)

        return _of_plugin(found, check, f"Read and check a whole data set, by the {found.title}.")


def _of_plugin(found: Found, command: Any, about: str) -> Any:
    return command_alone(command, f"Plug-in {found.package} {found.version}.", name=found.name, help=about)


# ----------------------------------------------------------------------------------------------------
# Commands that make a set faster to read: `index`, `anchors`, `repack`.


def index_ic(
    folder: Images,
    cache: Annotated[
        bool, typer.Option("--cache", help="Write the index into your own cache folder, for a read-only DIR.")
    ] = False,
    threads: Threads = None,
    as_json: JsonDocument = False,
) -> None:
    """Write a seek index of the files: positions, every few blocks of pixels, where decoding can begin.

    Runs find the index by themselves. With it they decode only the pixels of a crop, which is faster and gives the same
    pixels. The index takes about 4 % of the set; `data stage` copies it. It changes neither the files nor the data of
    the set in a record. A new index replaces an old one when it is complete.

    If files were changed later, a run decodes them without the index, and warns: run the same command again.
    """
    _start("index", "ic", IndexOptions(folder, cache, threads, as_json=as_json), reads=folder)


def anchors_ewa(
    folder: Weather,
    years: Annotated[str | None, typer.Option(metavar="A-B", help="Training years.  [default: all]")] = None,
    levels: Annotated[int, typer.Option(metavar="N", help="Pyramid levels.")] = AnchorsOptions.levels,
    per_level: Annotated[int, typer.Option(metavar="N", help="Anchors per level.")] = AnchorsOptions.per_level,
    as_json: JsonDocument = False,
) -> None:
    """Fit the anchors of the detector to the boxes of a set, and print them as a line of a recipe.

    The fit is k-means with the distance 1 - IoU; every class has the same weight. Use the training years only:
    otherwise evaluation data leaks into the model.
    """
    _start("anchors", "ewa", AnchorsOptions(folder, _range(years), levels, per_level, as_json=as_json), reads=folder)


def repack_ewa(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder with climo_YYYY.h5. It is not changed.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder of the new files. It is created if missing.")],
    kind: Annotated[
        Filter,
        typer.Option(
            "--filter",
            help="none: 56.6 MB per image of 768 x 1152, read at the speed of the disk; lzf: shuffled, with fast "
            "compression, for a slow or small disk.",
        ),
    ] = "none",
    years: Years = None,
    convert_boxes: Annotated[
        bool,
        typer.Option(
            "--convert-boxes",
            help="If x and y are swapped and classes are 1 to 4, write the boxes as ExtremeWeather ships them.",
        ),
    ] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only print the estimate of bytes and time.")] = False,
    workers: Workers = None,
    as_json: JsonDocument = False,
) -> None:
    """Copy the years of SRC to DST so that each image is one chunk of its file.

    In ExtremeWeather's files, an image is spread over 4096 compressed chunks that it shares with 45 other images: a run
    that reads images in random order spends its time decompressing. Values, boxes, attributes and the fingerprint in a
    record stay the same.

    First it prints an estimate of bytes and time, and refuses if the disk is too small. It writes each year under a
    hidden name, reads it back from the disk, compares it, and then renames it. After a kill, the same command continues
    with the unfinished year.
    """
    given = RepackOptions(source, target, kind, _range(years), convert_boxes, estimate, workers, as_json=as_json)
    _start("repack", "ewa", given, reads=source)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 data stage`: copies on a node's own storage.


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _bytes(text: str) -> int:
    """`200G` -> 200000000000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"--limit: expected bytes such as 200G, 1.5T or a plain number, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _staging(benchmark: str) -> Any:
    """The command `data stage BENCHMARK`."""

    def stage(
        source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of the set, on a shared file system.")],
        dest: Annotated[Path, typer.Argument(metavar="DEST", help="Folder on this node. It is created if missing.")],
        recipe: Annotated[
            list[str] | None,
            typer.Option(metavar="FILE", help="Copy only files that runs of these recipes read.  [default: all]"),
        ] = None,
        name: Annotated[
            str | None, typer.Option("--for", metavar="NAME", help="Keep the copy for NAME, until NAME is released.")
        ] = None,
        release: Annotated[
            bool,
            typer.Option(
                "--release",
                help="Remove files that only NAME needs; without --for, all staged files. An empty DEST is removed.",
            ),
        ] = False,
        limit: Annotated[
            str | None, typer.Option(metavar="BYTES", help="Maximum size of DEST, such as 200G.  [default: no limit]")
        ] = None,
        verify: Annotated[
            bool, typer.Option("--verify", help="Read existing copies, and replace damaged ones.")
        ] = False,
        threads: Annotated[
            int | None,
            typer.Option(min=1, metavar="N", help="Number of threads.  [default: two per core, at least 4]"),
        ] = None,
        as_json: JsonDocument = False,
    ) -> None:
        """Copy the set at SOURCE into the folder DEST on this node's own storage.

        A run reads the copy as the same set: the same samples, numbers and fingerprint. With --recipe, the copy has
        only the files that a run of that recipe reads: all evaluation samples, and the training samples that a member
        of an ensemble draws or is evaluated on. Climate years of a recipe are copied completely.

        Several members may stage into one DEST, also at the same time, each with its own name (--for). Samples that
        they share are stored once. After a kill, the same command continues.
        """
        size = None if limit is None else _bytes(limit)
        given = StageOptions(source, dest, tuple(recipe or ()), name, release, size, verify, threads, as_json=as_json)
        _start("stage", benchmark, given, reads=source)

    return stage


# ----------------------------------------------------------------------------------------------------
# The group `data`: a group for each command, with one command for each benchmark.


app = new_group(
    "Make, check and prepare the data sets that the benchmarks train on.",
    "hpcai500 data make ewa /tmp/weather && hpcai500 data check ewa /tmp/weather",
)


def _group(name: str, summary: str, about: str, example: str, **rest: Any) -> typer.Typer:
    group = new_group(about, example, **rest)
    app.add_typer(group, name=name, short_help=summary)
    return group


_make = _group(
    "make",
    "Write a synthetic set in the real format.",
    "Write a synthetic data set in the real format, which a model can learn from.",
    "hpcai500 data make ic /tmp/smoke --classes 10",
    cls=_Made,
)
_check = _group(
    "check",
    "Read every file; find broken ones.",
    "Read every file of a data set: count, fingerprint, find broken ones.",
    "hpcai500 data check ic /data/imagenet",
    cls=_Checked,
)
_index = _group(
    "index",
    "Make crops of JPEG files cheaper to decode (ic).",
    "Write an index of positions where decoding can begin, so that runs decode only the pixels of a crop.",
    "hpcai500 data index ic /data/imagenet",
)
_anchors = _group(
    "anchors",
    "Fit a detector's anchors to a set (ewa).",
    "Fit the anchors of the detector to the boxes of a data set.",
    "hpcai500 data anchors ewa /data/weather --years 1979-1987",
)
_repack = _group(
    "repack",
    "Rewrite a set so that runs read it faster (ewa).",
    "Rewrite a data set so that runs read it faster. JPEG files (ic) would not benefit.",
    "hpcai500 data repack ewa /data/extremeweather /scratch/ewa --estimate",
)
_stage = _group(
    "stage",
    "Copy a set to a node's own storage; release it.",
    "Copy a data set, or the part that a run reads, to the storage of a node; release it.",
    "hpcai500 data stage ic /data/imagenet /local/set",
)

add_command(
    _make,
    make_ic,
    _IC,
    "hpcai500 data make ic /tmp/smoke --classes 10 && hpcai500 ic --recipe ic/smoke --data /tmp/smoke",
    name="ic",
)
add_command(
    _make,
    make_ewa,
    _EWA,
    "hpcai500 data make ewa /tmp/weather --years 1979-1981 --images-per-year 46 --layout shipped",
    name="ewa",
)
add_command(_check, check_ic, _IC, "hpcai500 data check ic /data/imagenet --json > check.json", name="ic")
add_command(
    _check,
    check_ewa,
    _EWA,
    "hpcai500 data check ewa /data/extremeweather --years 1979-1989 --json > check.json",
    name="ewa",
)
add_command(_index, index_ic, _IC, "hpcai500 data index ic /data/imagenet", name="ic")
add_command(_anchors, anchors_ewa, _EWA, "hpcai500 data anchors ewa /data/weather --years 1979-1987", name="ewa")
add_command(
    _repack,
    repack_ewa,
    _EWA,
    "hpcai500 data repack ewa /data/extremeweather /scratch/ewa --estimate",
    "hpcai500 data repack ewa /data/extremeweather /scratch/ewa && hpcai500 ewa --data /scratch/ewa",
    name="ewa",
)
for _benchmark, _set, _about in (("ic", "imagenet", _IC), ("ewa", "extremeweather", _EWA)):
    _line = f"hpcai500 data stage {_benchmark} /data/{_set} /local/set"
    add_command(
        _stage,
        _staging(_benchmark),
        _about,
        f"{_line} --recipe member.toml --for member-3",
        f"{_line} --for member-3 --release",
        name=_benchmark,
    )
