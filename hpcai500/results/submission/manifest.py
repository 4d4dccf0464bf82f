"""`manifest.json` of a submission: the only signed file, which holds the hashes of all others.

SUBMISSION.zip
    manifest.json        this
    manifest.json.sig    its SSH signature, namespace `hpcai500`
    campaign/            the campaign's folder: recipe, journal, records with checkpoints to be replayed
    code/hpcai500/       the Python sources that ran
    accounting/JOB.json  Slurm's accounting of each job
    logs/                logs that the submitter added
    README.txt           how to check the file with standard tools
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

# ----------------------------------------------------------------------------------------------------
# The schema. Its descriptions go into docs/submission-format.md.


SCHEMA: Final = "hpcai500-submission-1"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
NAMESPACE = "hpcai500"
CAMPAIGN = "campaign"
CODE = "code/hpcai500"
ACCOUNTING = "accounting"
LOGS = "logs"
README = "README.txt"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=1000)]


class _Part(BaseModel):
    """Unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class FileEntry(_Part):
    """One file of the submission other than the manifest and its signature."""

    path: Annotated[str, Field(max_length=500, description="with `/` between its parts")]
    bytes: Annotated[int, Field(ge=0, description="length")]
    sha256: Sha256 = Field(description="hash of the content")


class LeftOut(_Part):
    """A file of the campaign that is not in the submission."""

    path: Text = Field(description="its path")
    reason: Text = Field(description="why it is left out")


class Metric(_Part):
    """One metric over all trials (V2.0 section 5.3.2); numbers in the metric's unit."""

    runs: Annotated[int, Field(ge=1, description="finished runs")]
    mean: float = Field(description="mean without the highest and the lowest run")
    dropped_lowest: float | None = Field(description="lowest run; null for fewer than three runs")
    dropped_highest: float | None = Field(description="highest run")
    variation: float | None = Field(description="standard deviation / mean of all runs")


class Claim(_Part):
    """The claim, which verification computes again."""

    level: Literal["hardware", "system", "free"] | None = Field(description="null: no level allows the changes")
    rankable: bool = Field(description="whether the edition's rules hold")
    reasons: Annotated[list[Text], FailFast()] = Field(description="why it is not rankable")
    metrics: dict[str, Metric] = Field(description="metrics over the trials, named as in `result.json`")


class Code(_Part):
    """The software that ran."""

    version: Text = Field(description="version of hpcai500")
    code_sha256: Sha256 | None = Field(description="hash of the Python files")
    core_sha256: Sha256 | None = Field(description="hash of the compiled core")
    image_sha256: Sha256 | None = Field(description="hash of the image; null without one")


class Anonymised(_Part):
    """That host names were replaced, with the hashes from before."""

    original_campaign: Sha256 = Field(description="original identity")
    hosts: Annotated[int, Field(ge=0, description="replaced host names")]
    original_heads: dict[str, Sha256] = Field(description="hash of the last event of each original log")


class Manifest(_Part):
    """`manifest.json`."""

    schema_: Literal["hpcai500-submission-1"] = Field(alias="schema", description="this format")
    created: Text = Field(description="time of packing, UTC, ISO 8601")
    system: Text = Field(description="name of the system, for rankings")
    organisation: Text = Field(description="submitter")
    contact: Text | None = Field(description="contact of the submitter")
    accelerators: Text = Field(description="number and type, for rankings")
    framework: Text = Field(description="AI framework and version")
    benchmark: Text = Field(description="`ic` or `ewa`")
    edition: Text = Field(description="edition of the claim")
    campaign: Sha256 = Field(description="identity: hash of the journal's first line")
    trials: Annotated[int, Field(ge=1, description="planned runs")]
    attempts: Annotated[int, Field(ge=0, description="started runs")]
    claim: Claim = Field(description="claimed result")
    code: Code = Field(description="software")
    anonymised: Anonymised | None = Field(description="null: not anonymised")
    left_out: Annotated[list[LeftOut], FailFast()] = Field(description="files left out")
    files: Annotated[list[FileEntry], FailFast()] = Field(description="all other files, by path")

    @property
    def accelerators_in_words(self) -> str:
        """The accelerators in words. Without accelerators, the manifest says `none (2 x AMD EPYC)`."""
        alone = re.fullmatch(r"none \((.*)\)", self.accelerators)
        return f"no accelerators; processors: {alone[1]}" if alone else self.accelerators


# ----------------------------------------------------------------------------------------------------
# Limits: how much of a submission is read. It is untrusted input; no honest one comes near these numbers.
#
# Sizes and counts are checked before content is read, so that each limit bounds memory and time.


KIB, MIB, GIB = 2**10, 2**20, 2**30

MOST_ENTRIES = 65_535
"""Number of files: the most that ZIP counts without its 64-bit form; ten runs on 6,000 metered nodes have fewer."""
LONGEST_PATH = 500
"""Characters of a path: the manifest's own limit."""
MOST_EXTRACTED_BYTES = 4 * GIB
"""All files except checkpoints: ten records of a thousand nodes take 1 GB."""
HIGHEST_RATIO = 400
"""Of extracted to packed bytes, over all deflated files: descriptions of a thousand equal nodes reach 136."""
RATIO_FREE_BYTES = 16 * MIB
"""Less is not a bomb at any ratio."""

MANIFEST_BYTES = 16 * MIB
"""256 bytes for each of the most files."""
MANIFEST_VALUES = 1_000_000
"""Seven for each of the most files, and as many again for files that were left out."""
SIGNATURE_BYTES = 64 * KIB
"""An RSA signature of 16,384 bits is 6 KB."""
TEXT_BYTES = 1 * MIB
"""The longest source file has 20 KB."""
RECIPE_BYTES = 64 * KIB
"""A recipe has 3 KB."""
SYSTEM_BYTES = 64 * MIB
"""`system.json`: 1,024 nodes of 60 KB each, indented."""
LOG_BYTES = 128 * MIB
"""A log of events: twice the description of such a system (a resumed run repeats it), and 40 MB for the rest."""
LINE_BYTES = 64 * MIB
"""One event: such a description."""
MOST_EVENTS = 100_000
"""In one log: 90 epochs of 9 events and a hundred resumptions have fewer than 10,000."""
POWER_BYTES = 128 * MIB
"""A day of samples of eight devices, ten a second."""
POWER_ROWS = 2_000_000
"""Such a day has 864,000 rows; two days have fewer."""
CELL_BYTES = 64 * KIB
"""A row of samples: 8 devices take 200 bytes."""
PICTURE_BYTES = 64 * MIB
"""A picture of detections has 2 MB."""
PREDICTION_BYTES = 512 * MIB
"""A member's predictions for the 50,000 images of ImageNet's evaluation set: 200 MB."""
TRACE_BYTES = 512 * MIB
"""A timeline of 4,096 ranks."""
ATTACHED_LOG_BYTES = 256 * MIB
"""A log given with --log."""

MOST_VALUES = 4_000_000
"""JSON values of one file: twice 1,024 nodes of 1,500 values each; this takes about 0.5 GB of memory in Python."""
MOST_VALUES_IN_ALL = 40_000_000
"""JSON values of all files: ten such records."""
DEEPEST = 60
"""Levels of JSON: an honest event has 8."""
LARGEST_INTEGER = 2**64
"""No counter of a computer is larger; an integer over 2**1024 cannot become a float."""


# ----------------------------------------------------------------------------------------------------
# The files that a submission may hold, by path, with their largest sizes. Any other file is refused.


Form = Literal["json", "json lines", "toml", "csv", "text", "bytes", "checkpoint"]

# ASCII only, and nothing with a special meaning to a shell or a file system.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+=@,-]{0,199}"
_RECORD = r"trial-[0-9]{1,6}(?:-attempt-[0-9]{1,6})?"
RECORD_NAME = re.compile(_RECORD)
FILE_NAME = re.compile(_NAME)


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        shown: path with placeholders, for documents.
        most_bytes: of one file; None for checkpoints, which are not compressed.
        meaning: one line for docs/submission-format.md.
    """

    shown: str
    pattern: re.Pattern[str]
    form: Form
    most_bytes: int | None
    meaning: str


def _kind(shown: str, form: Form, most_bytes: int | None, meaning: str, **parts: str) -> Kind:
    """Make a kind: `RECORD`, `NAME` and the names of `parts` in `shown` are placeholders for patterns."""
    pattern = re.escape(shown)
    for word, part in {"RECORD": _RECORD, "NAME": _NAME, **parts}.items():
        pattern = pattern.replace(word, part)
    return Kind(shown, re.compile(pattern), form, most_bytes, meaning)


_RUN = f"{CAMPAIGN}/RECORD"
# Limited in length and depth, so that a file system can hold it and does not fill with folders.
_MODULES = r"(?:[A-Za-z0-9_]{1,100}/){0,9}[A-Za-z0-9_]{1,100}"
KINDS = (
    _kind(MANIFEST, "json", MANIFEST_BYTES, "the claim, and the hash of every file"),
    _kind(SIGNATURE, "text", SIGNATURE_BYTES, "its signature"),
    _kind(README, "text", TEXT_BYTES, "how to check it with standard tools"),
    _kind(f"{CAMPAIGN}/recipe.toml", "toml", RECIPE_BYTES, "the resolved recipe"),
    _kind(f"{CAMPAIGN}/campaign.jsonl", "json lines", LOG_BYTES, "the journal"),
    _kind(f"{_RUN}/recipe.toml", "toml", RECIPE_BYTES, "the run's recipe"),
    _kind(f"{_RUN}/system.json", "json", SYSTEM_BYTES, "all nodes"),
    _kind(f"{_RUN}/events.jsonl", "json lines", LOG_BYTES, "events, chained by hashes"),
    _kind(f"{_RUN}/result.json", "json", TEXT_BYTES, "results"),
    _kind(f"{_RUN}/DONE", "text", TEXT_BYTES, "hash of the last event"),
    _kind(f"{_RUN}/ERROR", "text", TEXT_BYTES, "why the run failed"),
    _kind(f"{_RUN}/power/NAME", "csv", POWER_BYTES, "power samples of a node"),
    _kind(f"{_RUN}/pictures/NAME", "bytes", PICTURE_BYTES, "pictures of the last evaluation"),
    _kind(f"{_RUN}/predictions/NAME", "bytes", PREDICTION_BYTES, "an ensemble member's predictions"),
    _kind(f"{_RUN}/trace/NAME", "bytes", TRACE_BYTES, "communication timeline"),
    _kind(f"{_RUN}/checkpoints/NAME", "checkpoint", None, "the last, and the first at the target"),
    _kind(f"{CODE}/MODULE.py", "text", TEXT_BYTES, "Python sources", MODULE=_MODULES),
    _kind(f"{ACCOUNTING}/JOB.json", "json", TEXT_BYTES, "accounting of a job", JOB="[A-Za-z0-9_.+-]{1,60}"),
    _kind(f"{LOGS}/NAME", "text", ATTACHED_LOG_BYTES, "added logs"),
)


def kind_of(path: str) -> Kind | None:
    """Return the kind of the file `path`; None if a submission may not hold it."""
    return next((kind for kind in KINDS if kind.pattern.fullmatch(path)), None)
