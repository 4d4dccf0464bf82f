"""What a submission says of itself: `manifest.json`, the one file that is signed; it holds the hashes of all others.

SUBMISSION.zip
    manifest.json        this
    manifest.json.sig    its SSH signature, namespace `hpcai500`
    campaign/            the campaign's folder: recipe, journal, records with checkpoints to be replayed
    code/hpcai500/       the Python sources that ran
    accounting/JOB.json  what Slurm's accounting says of each job
    logs/                logs that were given by hand
    README.txt           how a person checks all this
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

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

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileEntry(_Part):
    """One file of the submission, the manifest and its signature aside."""

    path: Annotated[str, Field(max_length=500, description="within the submission, with `/` between its parts")]
    bytes: Annotated[int, Field(ge=0, description="its length")]
    sha256: Sha256 = Field(description="of its content")


class LeftOut(_Part):
    """A file that the campaign has and the submission has not."""

    path: Text = Field(description="as it would be named")
    reason: Text = Field(description="why it is not here")


class Metric(_Part):
    """One metric over all trials (V2.0 section 5.3.2); numbers in the metric's unit."""

    runs: Annotated[int, Field(ge=1, description="finished runs")]
    mean: float = Field(description="arithmetic mean without the highest and the lowest run")
    dropped_lowest: float | None = Field(description="the lowest run; null where fewer than three leave none to drop")
    dropped_highest: float | None = Field(description="the highest run")
    variation: float | None = Field(description="standard deviation over mean, of all runs")


class Claim(_Part):
    """What is claimed, to be computed again by who verifies."""

    level: Literal["hardware", "system", "free"] | None = Field(description="null: no level allows what was changed")
    rankable: bool = Field(description="whether the rules of the edition are kept")
    reasons: Annotated[list[Text], FailFast()] = Field(description="why it is not rankable")
    metrics: dict[str, Metric] = Field(description="each metric over the trials, by its name in result.json")


class Code(_Part):
    """The software that ran."""

    version: Text = Field(description="of hpcai500")
    code_sha256: Sha256 | None = Field(description="over its Python files, as records name it")
    core_sha256: Sha256 | None = Field(description="of the compiled core")
    image_sha256: Sha256 | None = Field(description="of the image's content; null where it ran in none")


class Anonymised(_Part):
    """That names of hosts were replaced, and what they were hashed as before."""

    original_campaign: Sha256 = Field(description="identity of the campaign before that, as it may be registered")
    hosts: Annotated[int, Field(ge=0, description="names that were replaced")]
    original_heads: dict[str, Sha256] = Field(
        description="hash of the last event of each log before that, so that the originals can be shown when asked for"
    )


class Manifest(_Part):
    """`manifest.json`."""

    schema_: Literal["hpcai500-submission-1"] = Field(alias="schema", description="this format")
    created: Text = Field(description="when it was made, UTC, ISO 8601")
    system: Text = Field(description="name of the system under test, as a ranking shows it")
    organisation: Text = Field(description="who submits")
    contact: Text | None = Field(description="whom the committee asks")
    accelerators: Text = Field(description="how many of what, as a ranking shows it")
    framework: Text = Field(description="AI framework and version")
    benchmark: Text = Field(description="ic or ewa")
    edition: Text = Field(description="edition of the rules that it is claimed under")
    campaign: Sha256 = Field(description="identity of the campaign: hash of the first line of its journal")
    trials: Annotated[int, Field(ge=1, description="planned runs")]
    attempts: Annotated[int, Field(ge=0, description="begun runs")]
    claim: Claim = Field(description="the result")
    code: Code = Field(description="the software")
    anonymised: Anonymised | None = Field(description="null: nothing was replaced")
    left_out: Annotated[list[LeftOut], FailFast()] = Field(description="files that are not here")
    files: Annotated[list[FileEntry], FailFast()] = Field(description="all other files, in order of their paths")
