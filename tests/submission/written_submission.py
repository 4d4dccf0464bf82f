"""Small submissions that nobody submits: built file by file, so that a test can have any of them otherwise."""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from written_campaign import SHORT, write_campaign

from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission.archive import Submission, open_submission

CREATED = "2026-11-22T03:00:00Z"
EVENTS = "campaign/trial-01/events.jsonl"
CHECKPOINT = "campaign/trial-01/checkpoints/epoch-0004-step-0000000.pt"


@dataclass(frozen=True)
class Member:
    """One entry of a ZIP, with what a hostile one would have otherwise."""

    path: str
    content: bytes
    method: int = zipfile.ZIP_DEFLATED
    mode: int = stat.S_IFREG | 0o644


@cache
def small_files() -> Mapping[str, bytes]:
    """The content of a submission of one short run; no manifest."""
    with tempfile.TemporaryDirectory() as folder:
        campaign = write_campaign(Path(folder) / "campaign", *SHORT, trials=1, watts=500.0, images_per_second=4e6)
        found = {
            f"campaign/{path.relative_to(campaign)}": path.read_bytes()
            for path in sorted(campaign.rglob("*"))
            if path.is_file() and "epoch-0003" not in path.name
        }
    return {"README.txt": b"a test\n", "code/hpcai500/__init__.py": b"# no code\n", **found}


def manifest_of(files: Mapping[str, bytes], **changes: Any) -> dict[str, Any]:
    """A manifest that vouches for `files`."""
    document: dict[str, Any] = {
        "schema": "hpcai500-submission-1", "created": CREATED, "system": "A", "organisation": "B", "contact": None,
        "accelerators": "none", "framework": "PyTorch 2.13.0", "benchmark": "ic", "edition": "v2.0",
        "campaign": "0" * 64, "trials": 1, "attempts": 1,
        "claim": {"level": None, "rankable": False, "reasons": ["a test"], "metrics": {}},
        "code": {"version": "0.1.0", "code_sha256": None, "core_sha256": None, "image_sha256": None},
        "anonymised": None, "left_out": [],
        "files": [
            {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in sorted(files.items())
        ],
    }  # fmt: skip
    return {**document, **changes}


def members_of(files: Mapping[str, bytes], **changes: Any) -> list[Member]:
    """The entries of a good submission of `files`, its manifest last."""
    manifest = json.dumps(manifest_of(files, **changes)).encode()
    return [
        *(
            Member(path, content, zipfile.ZIP_STORED if "/checkpoints/" in path else zipfile.ZIP_DEFLATED)
            for path, content in sorted(files.items())
        ),
        Member("manifest.json", manifest),
    ]


def write_zip(path: Path, members: Sequence[Member], *, wide: bool = False) -> Path:
    """A ZIP of `members`, as the standard library writes it: links, twins and all; `wide`: in 64 bits."""
    with zipfile.ZipFile(path, "w") as target:
        for member in members:
            info = zipfile.ZipInfo(member.path, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr, info.compress_type = 3, member.mode << 16, member.method
            with target.open(info, "w", force_zip64=wide) as stream:
                stream.write(member.content)
    return path


def write_submission(path: Path, files: Mapping[str, bytes] | None = None, **changes: Any) -> Path:
    """A submission of `files` (those of `small_files`), whose manifest vouches for them."""
    return write_zip(path, members_of(small_files() if files is None else files, **changes))


def with_file(name: str, content: bytes) -> dict[str, bytes]:
    """The small files with one exchanged or added."""
    return {**small_files(), name: content}


def opened(path: Path, folder: Path) -> Submission:
    """What `open_submission` makes of it."""
    return open_submission(path, folder)


def central_directory(content: bytes) -> int:
    """Where the directory of a ZIP begins."""
    return int(struct.unpack_from("<I", content, len(content) - 6)[0])


def refusal(path: Path, folder: Path) -> str:
    """The one line that says why `path` is refused."""
    with pytest.raises(WrongAnswerError) as caught:
        opened(path, folder)
    told = str(caught.value)
    assert "\n" not in told
    assert told.isprintable()
    assert not any(file.is_symlink() for file in folder.rglob("*")) if folder.exists() else True
    return told
