"""Which files a submission may hold, by their paths, and how large each may be. What is not named here is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hpcai500.results.submission import limits
from hpcai500.results.submission.manifest import ACCOUNTING, CAMPAIGN, CODE, LOGS, MANIFEST, README, SIGNATURE

Form = Literal["json", "json lines", "toml", "csv", "text", "bytes", "checkpoint"]

# ASCII only, and nothing that a shell or a file system could take for something else.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+=@,-]{0,199}"
_RECORD = r"trial-[0-9]{1,6}(?:-attempt-[0-9]{1,6})?"
RECORD_NAME = re.compile(_RECORD)
FILE_NAME = re.compile(_NAME)


@dataclass(frozen=True)
class Kind:
    """Files of one sort.

    Attributes:
        shown: their paths, for people.
        pattern: of their paths.
        form: what they hold.
        most_bytes: how large one may be; None for checkpoints, which are stored as they are.
        meaning: one line for docs/submission-format.md.
    """

    shown: str
    pattern: re.Pattern[str]
    form: Form
    most_bytes: int | None
    meaning: str


def _kind(shown: str, form: Form, most_bytes: int | None, meaning: str, **parts: str) -> Kind:
    """`RECORD` and `NAME` in `shown` stand for what such names may be, and each of `parts` for its pattern."""
    pattern = re.escape(shown)
    for word, part in {"RECORD": _RECORD, "NAME": _NAME, **parts}.items():
        pattern = pattern.replace(word, part)
    return Kind(shown, re.compile(pattern), form, most_bytes, meaning)


_RUN = f"{CAMPAIGN}/RECORD"
# Not so long or deep that a file system here could not hold it, or would fill with folders.
_MODULES = r"(?:[A-Za-z0-9_]{1,100}/){0,9}[A-Za-z0-9_]{1,100}"
KINDS = (
    _kind(
        MANIFEST, "json", limits.MANIFEST_BYTES, "what is claimed, and the hash of every file; the one that is signed"
    ),
    _kind(SIGNATURE, "text", limits.SIGNATURE_BYTES, "its signature; not there where nobody signed"),
    _kind(README, "text", limits.TEXT_BYTES, "how a person checks it with standard tools"),
    _kind(f"{CAMPAIGN}/recipe.toml", "toml", limits.RECIPE_BYTES, "the recipe, resolved"),
    _kind(f"{CAMPAIGN}/campaign.jsonl", "json lines", limits.LOG_BYTES, "the journal: plan, attempts, ends"),
    _kind(f"{_RUN}/recipe.toml", "toml", limits.RECIPE_BYTES, "the recipe of this run"),
    _kind(f"{_RUN}/system.json", "json", limits.SYSTEM_BYTES, "each node, as the job saw it"),
    _kind(f"{_RUN}/events.jsonl", "json lines", limits.LOG_BYTES, "what happened, line by line, chained"),
    _kind(f"{_RUN}/result.json", "json", limits.TEXT_BYTES, "derived from the events"),
    _kind(f"{_RUN}/DONE", "text", limits.TEXT_BYTES, "hash of the last event of a run that is complete"),
    _kind(f"{_RUN}/ERROR", "text", limits.TEXT_BYTES, "why a run ended without a result"),
    _kind(f"{_RUN}/power/NAME", "csv", limits.POWER_BYTES, "power samples of a node"),
    _kind(f"{_RUN}/pictures/NAME", "bytes", limits.PICTURE_BYTES, "what the last evaluation saw"),
    _kind(f"{_RUN}/predictions/NAME", "bytes", limits.PREDICTION_BYTES, "what a member of an ensemble says"),
    _kind(f"{_RUN}/trace/NAME", "bytes", limits.TRACE_BYTES, "timeline of the communication"),
    _kind(
        f"{_RUN}/checkpoints/NAME",
        "checkpoint",
        None,
        "the last and the first at the target, of a run that is done; stored",
    ),
    _kind(f"{CODE}/MODULE.py", "text", limits.TEXT_BYTES, "the Python sources that ran", MODULE=_MODULES),
    _kind(
        f"{ACCOUNTING}/JOB.json", "json", limits.TEXT_BYTES, "Slurm's accounting of a job", JOB="[A-Za-z0-9_.+-]{1,60}"
    ),
    _kind(f"{LOGS}/NAME", "text", limits.ATTACHED_LOG_BYTES, "logs that the submitter added"),
)


def kind_of(path: str) -> Kind | None:
    """What sort of file `path` is; None if a submission may not hold it."""
    return next((kind for kind in KINDS if kind.pattern.fullmatch(path)), None)
