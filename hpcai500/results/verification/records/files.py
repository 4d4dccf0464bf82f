"""Pictures, traces and predictions of a record are those that its events name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from hpcai500.chain import iterate
from hpcai500.methodology.member_predictions import FOLDER
from hpcai500.methodology.result import Result
from hpcai500.record import Record
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, skipped

_NAME = "files"
_FOLDERS = {"picture": "pictures", "trace": "trace", "predictions": FOLDER}


def check_files(record: Record, result: Result | None, rules: Mapping[str, Any]) -> Iterator[Finding]:
    """The hash of each file that the chain vouches for.

    A picture or a trace that is not here says nothing of the result; without its predictions no member can vote.
    """
    del result, rules
    for key, folder in _FOLDERS.items():
        # A file that was made again has the last hash that is told of it.
        told = {event["value"]["file"]: event["value"]["sha256"] for event in iterate(record.events, key)}
        for file, sha256 in told.items():
            parts = PurePosixPath(file).parts
            if len(parts) != 2 or parts[0] != folder or parts[1] == ".." or "\0" in file:
                yield fail(_NAME, f"{file}: not a file in {folder}/")
                continue
            path = record.path / folder / parts[1]
            if not path.is_file():
                missing = fail if folder == FOLDER else skipped
                yield missing(_NAME, f"{file} is not here")
                continue
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != sha256:
                yield fail(_NAME, f"{file}: has the hash {found}, the events name {sha256}")
