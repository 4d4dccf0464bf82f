"""Writes the demonstration: unpacks the shipped records, and makes reports, a ranking and verdicts of them.

Nothing in it can be ranked. The runs are short and on synthetic data, which no edition allows. The submission is
unsigned, and contains the installed sources instead of those of the runs, so verification refuses it.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from hpcai500.ensemble.status import Watch
from hpcai500.errors import UsageError
from hpcai500.progress import Tracker, silent
from hpcai500.results.acceptance.contract import load_contract
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.verdict import Request, accept
from hpcai500.results.compare import compare_records, comparison_page
from hpcai500.results.ranking.pages import make_ranking
from hpcai500.results.report.page import make_report, write_page
from hpcai500.results.submission.pack import SubmitRequest, pack

_NOTE = (
    "Demonstration: real runs of the smoke recipes, a few minutes on two cores, on synthetic data. They do not measure "
    "any system, and cannot be ranked."
)
_WHY = (
    "Nothing here can be ranked: the data set is synthetic and the recipes are smaller than the edition's. The "
    "submission is not signed, and it contains the sources of this installation instead of those of the runs: hpcai500 "
    "verify refuses it."
)
_CONTRACT = """\
# {title}
title = "{title}"
[require]
rankable = false
[[criteria]]
metric = "images_per_second"
reference = {rate}
unit = "images/s"
lower = -0.10
[[criteria]]
metric = "time_to_quality_seconds"
reference = {seconds}
unit = "s"
upper = 0.10
"""
# The runs of the campaign reached 830 images a second, and the target quality in 51 s.
_CONTRACTS = {"pass": ("A contract that is met", 100, 300), "miss": ("A contract that is missed", 5000, 10)}


@dataclass(frozen=True)
class Made:
    """One file of the demonstration.

    Attributes:
        path: relative to the folder.
        sentence: what it shows.
        command: the command that makes it.
    """

    path: str
    sentence: str
    command: str


Maker = Callable[[Path, Path], None]


def lay_out(folder: Path, tracker: Tracker = silent) -> Sequence[Made]:
    """Write the demonstration into `folder`; returns its files.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder}: not empty; give a new folder: hpcai500 demo DIR")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(files(__package__).joinpath("records.tar.xz").read_bytes())) as archive:
            # Python before 3.11.4, such as that of Debian 12, has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)  # noqa: S202 - our own archive
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}; give another DIR") from error
    with tracker(len(_STEPS), "writing pages", "pages") as progress:
        made = []
        for what, make in _STEPS:
            make(folder, folder / what.path)
            made.append(what)
            progress.advance()
    index = Made("index.html", "All of these, with a sentence each", "hpcai500 demo")
    write_page(folder / index.path, _index(made))
    for page in sorted(folder.rglob("*.html")):
        write_page(page, _marked(page.read_text(encoding="utf-8")))
    return [index, *made]


# Each of these writes one file, `target`, from the records in `folder`.


def _report(name: str) -> Maker:
    def make(folder: Path, target: Path) -> None:
        write_page(target, make_report([folder / name]).html)

    return make


def _compare(folder: Path, target: Path) -> None:
    write_page(target, comparison_page(compare_records(folder / "campaign" / "trial-01", folder / "ic")))


def _submit(folder: Path, target: Path) -> None:
    request = SubmitRequest(
        folder / "campaign",
        target,
        "Demonstration",
        "nobody (hpcai500 demo)",
        checkpoints=False,
        demonstration=True,
    )
    pack(request)


def _rank(folder: Path, target: Path) -> None:
    make_ranking([folder / "submission.zip"], site=target.parent)


def _accept(name: str) -> Maker:
    def make(folder: Path, target: Path) -> None:
        title, rate, seconds = _CONTRACTS[name]
        contract = folder / f"contract-{name}.toml"
        contract.write_text(_CONTRACT.format(title=title, rate=rate, seconds=seconds), encoding="utf-8")
        verdict = accept(Request(load_contract(contract), (folder / "campaign",)))
        write_page(target, acceptance_page(verdict))

    return make


def _ensemble(folder: Path, target: Path) -> None:
    lines = [line for line in Watch(folder / "ensemble", {}).look_at_all().lines() if not line.startswith("looked at")]
    target.write_text("\n".join(["Demonstration", *lines, ""]), encoding="utf-8")


_STEPS: Sequence[tuple[Made, Maker]] = (
    (
        Made("ic.html", "The report of one run of Image Classification", "hpcai500 report ic -o ic.html"),
        _report("ic"),
    ),
    (
        Made("ewa.html", "The report of one run of Extreme Weather Analytics", "hpcai500 report ewa -o ewa.html"),
        _report("ewa"),
    ),
    (
        Made("campaign.html", "The report of a campaign of three runs", "hpcai500 report campaign -o campaign.html"),
        _report("campaign"),
    ),
    (
        Made(
            "compare.html",
            "Two runs side by side: half the learning rate",
            "hpcai500 compare campaign/trial-01 ic -o compare.html",
        ),
        _compare,
    ),
    (
        Made(
            "submission.zip",
            "A submission: the campaign in one file, which verification refuses on purpose",
            "hpcai500 verify submission.zip",
        ),
        _submit,
    ),
    (
        Made(
            "ranking/index.html",
            "The web site of a ranking; the submission is listed without a rank",
            "hpcai500 rank submission.zip --html ranking",
        ),
        _rank,
    ),
    (
        Made(
            "acceptance-pass.html",
            "The page of an acceptance test that passes",
            "hpcai500 accept contract-pass.toml campaign --html acceptance-pass.html",
        ),
        _accept("pass"),
    ),
    (
        Made(
            "acceptance-miss.html",
            "The same runs against a contract that they miss",
            "hpcai500 accept contract-miss.toml campaign --html acceptance-miss.html",
        ),
        _accept("miss"),
    ),
    (
        Made("ensemble-status.txt", "The status of an ensemble of two members", "hpcai500 ensemble status ensemble"),
        _ensemble,
    ),
)


def _marked(page: str) -> str:
    """The page with the note at the top."""
    # Styled by a class that all pages have, because the pages of a ranking forbid inline styles.
    note = f'<section class="banner" role="note"><strong>{escape(_NOTE)}</strong></section>'
    return re.sub(r"<body[^>]*>", lambda found: f"{found[0]}\n{note}", page, count=1)


def _index(made: Sequence[Made]) -> str:
    rows = "\n".join(
        f'<li><a href="{escape(one.path)}">{escape(one.path)}</a>: {escape(one.sentence)}.<br>'
        f"<code>{escape(one.command)}</code></li>"
        for one in made
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>hpcai500 demonstration</title>
<style>
body {{ margin: 0; font: 1rem/1.5 sans-serif }}
main {{ max-width: 48em; margin: 0 auto; padding: 1em }}
li {{ margin: .8em 0 }}
.banner {{ padding: 1em; border-left: 6px solid }}
</style>
</head>
<body>
<main>
<h1>hpcai500 demonstration</h1>
<p>The output of hpcai500 for a few runs, each with the command that wrote it, to be typed in this folder.</p>
<ul>
{rows}
</ul>
<h2>Why nothing here can be ranked</h2>
<p>{escape(_WHY)}</p>
</main>
</body>
</html>
"""
