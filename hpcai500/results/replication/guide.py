"""The guide to a replication: a page for the team that repeats a submission. All that it quotes is a stranger's."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.campaign.company import company
from hpcai500.campaign.reading import Campaign
from hpcai500.layers import Recipe
from hpcai500.results.replication.data import data_facts, fingerprints_of, make_line
from hpcai500.results.replication.side import Side
from hpcai500.results.replication.system_table import Beside
from hpcai500.results.submission.claim import accelerators_of, framework_of, image_of, package_of, plain

_MOST_LINES = 20


@dataclass(frozen=True)
class Guide:
    """What the page is about.

    Attributes:
        original: the submission.
        campaign: the new one.
        recipe: of the new one.
        data: folder of the data set here, where that is known.
        same_seeds: whether the seeds are the original's.
        systems: the original's system beside this machine.
        launch_line: (launcher, nodes, ranks a node, campaign's folder) -> the line that runs a campaign.
    """

    original: Side
    campaign: Campaign
    recipe: Recipe
    data: Path | None
    same_seeds: bool
    systems: Sequence[Beside]
    launch_line: Callable[[str, int, int, Path], str]


def guide_text(guide: Guide) -> str:
    """The page, in Markdown."""
    parts = [_head(guide), _software(guide), _data(guide), _launch(guide), _systems(guide), _comparison(guide)]
    return "\n".join(line for part in parts for line in [*part, ""])


def _head(guide: Guide) -> Iterator[str]:
    side, manifest = guide.original, guide.original.manifest
    assert manifest is not None
    yield f"# To repeat: {_cell(manifest.system)} ({_cell(manifest.organisation)})"
    yield ""
    yield f"- Submission: `{shlex.quote(str(side.path))}`, verified; signed by {_cell(_signer(side))}"
    yield f"- Benchmark: {_cell(manifest.benchmark)}, edition {_cell(manifest.edition)}, level {side.level or 'none'}"
    yield f"- System: {_cell(accelerators_of(side.records[0]))}; {_cell(framework_of(side.records[0]))}"
    yield f"- Runs: {len(side.results)} of {len(side.campaign.trials)} planned, {len(side.campaign.attempts)} attempts"
    yield f"- Recipe as submitted: `submitted-recipe.toml`, SHA-256 of its values {side.campaign.start['recipe_hash']}"
    yield ""
    yield "What is quoted below comes from the submission: read a line before you run it."


def _signer(side: Side) -> str:
    return (side.verification.signer if side.verification else None) or "nobody"


def _software(guide: Guide) -> Iterator[str]:
    record = guide.original.records[0]
    package, image = package_of(record), image_of(record)
    yield "## 1. The software"
    yield ""
    if image:
        yield "The runs took place in an image. Fetch or build the one whose content has the hash"
        yield ""
        yield f"    {plain(image)}"
        yield ""
        yield "and see by `apptainer run IMAGE.sif version` that it is this one."
    else:
        yield "The runs took place in no image: install the same version."
    yield ""
    yield f"    hpcai500 {plain(str(package.get('version')))}"
    yield f"    code     {plain(str(package.get('code_sha256')))}"
    yield f"    core     {plain(str(package.get('core_sha256')))}"
    yield ""
    yield "`hpcai500 version` prints the same of yours. The Python sources that ran lie in the submission:"
    yield ""
    yield f"    unzip {shlex.quote(str(guide.original.path))} 'code/*'"


def _data(guide: Guide) -> Iterator[str]:
    record = guide.original.records[0]
    facts = data_facts(record)
    folder = shlex.quote(str(guide.data)) if guide.data else "DATA"
    yield "## 2. The data"
    yield ""
    samples, others = (_cell(str(facts.get(key))) for key in ("training_samples", "evaluation_samples"))
    yield f"`{plain(guide.recipe.problem.dataset)}`: {samples} samples to train on, {others} to evaluate on, known by"
    yield "the fingerprint of its"
    yield ""
    yield from (f"    {kind:14} {plain(text)}" for kind, text in fingerprints_of(record).items())
    yield ""
    if line := make_line(record, guide.original.tables, folder):
        yield "hpcai500 has made it, and makes it again (another `--seed` or layout, which no record tells, would show"
        yield "in the fingerprint):"
        yield ""
        yield f"    {line}"
        yield ""
    yield "Yours must be the same set, by the fingerprint that this prints; other data are no repetition:"
    yield ""
    yield f"    hpcai500 data check {guide.recipe.benchmark} {folder}"


def _launch(guide: Guide) -> Iterator[str]:
    side, started = guide.original, company(guide.original.records[0])
    launchers = _launchers(side.campaign)
    folder = guide.campaign.path
    yield "## 3. The runs"
    yield ""
    yield f"The original ran on {started.get('nodes')} node(s) with {started.get('world_size')} ranks, backend"
    yield f"{_cell(str(started.get('backend')))} ({_cell(str(started.get('library')))}), started by:"
    yield ""
    yield from (f"    {line}" for line in _commands(side.campaign))
    yield ""
    yield f"(launcher: {', '.join(map(_cell, launchers)) or 'unknown'})"
    yield ""
    seeds = [trial.seed for trial in guide.campaign.trials]
    yield f"A campaign of {len(seeds)} runs is planned in `{folder.name}/`, with the seeds {seeds[0]} to {seeds[-1]}:"
    if guide.same_seeds:
        yield "those of the original (--same-seeds). Runs that begin alike are no independent draws: this shows that"
        yield "the submitted runs can be done again, less so that others would come out the same."
    else:
        yield "your own, not those of the original. Other seeds are independent draws, as the comparison assumes, and"
        yield "they show whether the original's were lucky ones (`--same-seeds` takes those)."
    yield f"Its identity, to register before the first run: `{guide.campaign.identity}`"
    yield ""
    hardware = guide.recipe.hardware
    launcher = launchers[0] if launchers else "none"
    line = guide.launch_line(launcher, hardware.nodes, hardware.accelerators_per_node, folder)
    yield f"    {line}{'' if guide.data else ' --data DATA'}"
    yield ""
    yield "Every attempt counts and stays in its journal; the same line goes on after whatever has stopped it"
    yield "(docs/launching.md has the other launchers, and images)."


def _launchers(campaign: Campaign) -> list[str]:
    found = [event["value"].get("launcher") for event in campaign.events if event["key"].startswith("attempt_st")]
    return list(dict.fromkeys(plain(str(one)) for one in found if one))


def _commands(campaign: Campaign) -> list[str]:
    """Each line that started or went on with a run, once."""
    lines = (shlex.join(map(str, command)) for attempt in campaign.attempts for command in attempt.commands)
    found = list(dict.fromkeys(plain(line) for line in lines))
    left_out = len(found) - _MOST_LINES
    return [*found[:_MOST_LINES], *([f"… and {left_out} more"] if left_out > 0 else [])]


def _systems(guide: Guide) -> Iterator[str]:
    yield "## 4. The system, beside the machine on which this page was written"
    yield ""
    yield "| | the submission's | here | |"
    yield "|---|---|---|---|"
    for one in guide.systems:
        yield f"| {one.what} | {_cell(one.theirs)} | {_cell(one.here)} | {'differs' if one.differs else ''} |"
    yield ""
    yield "On other processors or accelerators, or another number of them, it is another system: quality and level must"
    yield "come out the same, speed is only told. Plan for it with `--set hardware.nodes=…` and the like; an update"
    yield "must stay over as many samples (`--set hyperparameters.batch_size=…`)."


def _comparison(guide: Guide) -> Iterator[str]:
    yield "## 5. The verdict"
    yield ""
    submission, folder = (shlex.quote(str(path)) for path in (guide.original.path, guide.campaign.path))
    yield f"    hpcai500 replicate {submission} --with {folder}"
    yield ""
    yield "docs/replication.md says how it is found."


def _cell(text: str) -> str:
    """`text` for a line or a cell of Markdown, in which it is only text."""
    shown = html.escape(plain(text), quote=False)
    return "".join(f"\\{letter}" if letter in "\\|`*_[]" else letter for letter in shown)
