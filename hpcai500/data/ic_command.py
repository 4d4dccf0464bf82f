"""`hpcai500 data make|check|index|stage ic`: options, and how results are shown."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from hpcai500.data.imagenet.check import as_document, check_images, report_lines
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.seek_index import SeekIndexReport, make_seek_index
from hpcai500.data.imagenet.synthetic import CLASSES, SyntheticSet, make_images
from hpcai500.data.stage_command import add_staging
from hpcai500.errors import ExitCode
from hpcai500.progress import track
from hpcai500.streams import show
from hpcai500.text import size, text_table

NAME = "ic"
HELP = "Image Classification: JPEG files in train/<class>/ and val/<class>/"

# Most files without an index that are shown; --json lists all.
_LISTED = 5


def add_make(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a synthetic set of JPEG files, textured shapes on noise, in ImageNet's layout. The same options give "
        "the same bytes. A second call completes the set and writes nothing twice; files of others are never touched."
    )
    parser.epilog = (
        "Example: hpcai500 data make ic /tmp/smoke --classes 10, then hpcai500 ic --recipe ic/smoke --data /tmp/smoke"
    )
    defaults = SyntheticSet()
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder of the set; made when missing")
    for flag, default, meaning in (
        ("--classes", defaults.classes, f"classes, 2 to {len(CLASSES)}"),
        ("--train-per-class", defaults.train_per_class, "training images a class"),
        ("--val-per-class", defaults.val_per_class, "validation images a class"),
        ("--seed", defaults.seed, "another seed gives other images"),
    ):
        parser.add_argument(flag, metavar="N", type=int, default=default, help=f"{meaning} (default: {default})")
    _add_workers(parser, "processes")
    parser.set_defaults(run=_make)


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read and decode every file, whatever earlier checks found. Exit code 0: every file can be trained on. "
        "64: the set is missing or has broken files, which are listed."
    )
    parser.epilog = "Example: hpcai500 data check ic /data/imagenet --json > check.json"
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder with train/ and val/")
    _add_workers(parser, "threads")
    parser.set_defaults(run=_check)


def _add_workers(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--workers", metavar="N", type=int, help=f"{what} that share the work (default: one a core)")


def _make(chosen: argparse.Namespace) -> int:
    wanted = SyntheticSet(
        classes=chosen.classes,
        train_per_class=chosen.train_per_class,
        val_per_class=chosen.val_per_class,
        seed=chosen.seed,
    )
    written = make_images(chosen.dir, wanted, workers=chosen.workers, progress=track)
    index = load_index(chosen.dir, progress=track)
    document = {
        "fingerprint": index.fingerprint,
        "samples": {"train": len(index.train), "val": len(index.val)},
        "classes": len(index.classes),
        "written": written,
    }
    sentence = (
        f"{chosen.dir}: {len(index.train)} training and {len(index.val)} validation images of "
        f"{len(index.classes)} classes ({written} written now)"
    )
    show(document if chosen.json else sentence, indent=1)
    return ExitCode.PASS


def _check(chosen: argparse.Namespace) -> int:
    report = check_images(chosen.dir, workers=chosen.workers, progress=track)
    show(as_document(report) if chosen.json else report_lines(report), indent=1)
    return ExitCode.PASS if report.passed else ExitCode.USAGE


def add_index(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read every file, and write beside them a seek index: the places, every few blocks of pixels, where decoding "
        "can begin. It takes about 4 % of the set. Runs find it by themselves and give the same pixels, faster; `data "
        "stage` copies it. The files, and what a record says of the set, stay as they are. An index that is there is "
        "replaced when the new one is whole. Files that were changed later are decoded without it, with a warning: run "
        "the same command again."
    )
    parser.epilog = "Example: hpcai500 data index ic /data/imagenet"
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder with train/ and val/")
    parser.add_argument(
        "--cache", action="store_true", help="keep it in your own cache folder, where DIR cannot be written"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="threads that share the work (default: one a core)")
    parser.set_defaults(run=_index, kept="an index that was there is as it was; the same command begins anew")


def _index(chosen: argparse.Namespace) -> int:
    report = make_seek_index(chosen.dir, threads=chosen.threads, in_cache=chosen.cache, progress=track)
    show(_index_document(report) if chosen.json else _index_lines(report), indent=1)
    return ExitCode.PASS


def _index_document(report: SeekIndexReport) -> dict[str, Any]:
    """Bytes and seconds are plain numbers; `share` is of the data's bytes."""
    return {
        "index": str(report.path),
        "files": report.files,
        "with_points": report.with_points,
        "without_points": report.without_points,
        "unreadable": [{"path": path, "reason": reason} for path, reason in report.unreadable],
        "data_bytes": report.data_bytes,
        "index_bytes": report.index_bytes,
        "share": report.share,
        "seconds": report.seconds,
    }


def _index_lines(report: SeekIndexReport) -> list[str]:
    without = ", ".join(f"{count} {reason}" for reason, count in report.without_points.items())
    rows = [
        ("index", str(report.path)),
        ("images", f"{report.files}, {report.with_points} with seek points"),
        ("without", without or "none"),
        ("data", size(report.data_bytes)),
        ("size of the index", f"{size(report.index_bytes)}, {100 * report.share:.1f} % of the data"),
        ("time", f"{report.seconds:.1f} s, {size(int(report.data_bytes / max(report.seconds, 1e-9)))}/s"),
    ]
    unreadable = list(report.unreadable[:_LISTED])
    if len(report.unreadable) > _LISTED:
        unreadable.append((f"and {len(report.unreadable) - _LISTED} more", "--json lists all"))
    return [*text_table("", rows), *(["", *text_table("not in the index", unreadable)] if unreadable else [])]


add_stage = partial(add_staging, benchmark=NAME, example="/data/imagenet")
