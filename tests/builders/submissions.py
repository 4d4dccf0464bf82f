"""Submissions that nobody submits: file by file, opened and changed, and as verification leaves them."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from builders.campaigns import SHORT, write_campaign
from hpcai500.campaign.journal import read_campaign
from hpcai500.errors import WrongAnswerError
from hpcai500.methodology.result import Quality, Result
from hpcai500.results.ranking.entries import Examined, facts_of
from hpcai500.results.score import summarise_trials
from hpcai500.results.submission import claim as facts
from hpcai500.results.submission.archive import Submission, open_submission
from hpcai500.results.submission.manifest import FileEntry, Manifest
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.context import Context, Question, read_context
from hpcai500.results.verification.copies import Runs
from hpcai500.results.verification.finding import Finding, Verification, guarded
from hpcai500.results.verification.verify import CHECKS
from hpcai500.system.software import package_code_hash

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


def write_zip(path: Path, members: Sequence[Member], *, wide_bytes: int = sys.maxsize) -> Path:
    """A ZIP of `members`, as the standard library writes it: links, twins and all; above `wide_bytes`, in 64 bits."""
    with zipfile.ZipFile(path, "w") as target:
        for member in members:
            info = zipfile.ZipInfo(member.path, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr, info.compress_type = 3, member.mode << 16, member.method
            with target.open(info, "w", force_zip64=len(member.content) > wide_bytes) as stream:
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


# ----------------------------------------------------------------------------------------------------
Change = Callable[[Path], object]


def honest_submission(folder: Path, *settings: str, short: bool = True, **story: Any) -> Submission:
    """A campaign of three trials, packed unsigned and opened again.

    Args:
        folder: an empty one.
        settings: as given to --set.
        short: three epochs, which no level allows, instead of ninety.
        story: as `write_campaign` has it.
    """
    # Computed now: sources may be edited while tests run.
    story = {"trials": 3, "package_code": package_code_hash(), **story}
    campaign = write_campaign(folder / "campaign", *(SHORT if short else ()), *settings, **story)
    pack(SubmitRequest(campaign, folder / "submission.zip", "System", "Organisation"))
    return open_submission(folder / "submission.zip", folder / "opened")


def changed_submission(
    base: Submission,
    folder: Path,
    change: Change = lambda opened: None,
    *,
    question: Question | None = None,
    claim: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Context:
    """What a check sees of `base` after `change`, which is given the folder of the opened submission.

    The manifest claims what the changed campaign gives, as long as `claim` and `manifest` do not say otherwise.
    """
    opened = folder / "opened"
    shutil.copytree(base.folder, opened)
    change(opened)
    told: dict[str, Any] = {}
    try:
        campaign = read_campaign(opened / "campaign")
        told = {"campaign": campaign.identity, "claim": facts.claim_of(campaign)}
    except Exception:  # noqa: BLE001 - then the old claim stays
        told = {"claim": base.manifest.claim}
    told["claim"] = told["claim"].model_copy(update=dict(claim or {}))
    files = {**{path: entry for path, entry in base.entries.items() if "/checkpoints/" in path}, **_listed(opened)}
    entries = dict(sorted(files.items()))
    whole = base.manifest.model_copy(update={**told, "files": list(entries.values()), **manifest})
    submission = Submission(base.path, opened, whole, b"", None, entries)
    return read_context(submission, question or Question(), lambda: None)


def all_findings(context: Context) -> list[Finding]:
    """What the checks of the submission as a whole say; records are not looked into."""
    return [finding for check in CHECKS for finding in guarded(check.__name__, partial(check, context))]


def failed_checks(findings: Iterable[Finding]) -> set[str]:
    """Names of those that refuse."""
    return {finding.name for finding in findings if finding.severity == "fail"}


def evidence_under(findings: Iterable[Finding], name: str, severity: str = "fail") -> str:
    """All that is told under one name."""
    return "\n".join(one.evidence for one in findings if (one.name, one.severity) == (name, severity))


def _listed(folder: Path) -> dict[str, FileEntry]:
    return {
        path.relative_to(folder).as_posix(): FileEntry(
            path=path.relative_to(folder).as_posix(),
            bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


# ----------------------------------------------------------------------------------------------------
TARGETS = {"ic": ("top1", 0.763), "ewa": ("map50", 0.35)}


def a_result(vflops: float, /, *, benchmark: str = "ic", quality: float | None = None, **changes: Any) -> Result:
    """A run of `vflops` FLOPS; its time follows from them."""
    metric, target = TARGETS[benchmark]
    achieved = target if quality is None else quality
    flops = vflops / (achieved / target) ** 5
    seconds = 90 * 1_281_167 * 24_299_077_632 / flops
    values: dict[str, Any] = {
        "benchmark": benchmark, "edition": "v2.0", "rankable": True, "reasons": [], "world_size": 16, "nodes": 2,
        "images": 90 * 1_281_167, "padded_images": 0, "seconds": seconds, "evaluation_seconds": seconds / 20,
        "images_per_second": 90 * 1_281_167 / seconds, "flops_per_image": 24_299_077_632.0,
        "flops_convention": "analytic", "flops": flops,
        "quality": Quality(metric=metric, achieved=achieved, target=target),
        "penalty_coefficient": vflops / flops, "vflops": vflops,
        "time_to_quality_seconds": 0.96 * seconds if achieved >= target else None,
        "energy_joules": 5000.0 * seconds, "watts": 5000.0, "flops_per_watt": flops / 5000,
        "vflops_per_watt": vflops / 5000,
        "input": "real", "data_wait_fraction": 0.01, "backend": "torch", "restarts": 0, "downtime_seconds": 0.0,
    }  # fmt: skip
    return Result(**(values | changes))


def a_manifest(**changes: Any) -> Manifest:
    """What a submission says of itself."""
    campaign = hashlib.sha256(str(changes.get("system", "Aurora")).encode()).hexdigest()
    values: dict[str, Any] = {
        "schema": "hpcai500-submission-1", "created": "2026-11-20T10:00:00Z", "system": "Aurora",
        "organisation": "A laboratory", "contact": "someone@lab.example", "accelerators": "16 x accelerator",
        "framework": "torch 2.12", "benchmark": "ic", "edition": "v2.0", "campaign": campaign, "trials": 12,
        "attempts": 12,
        "claim": {"level": "hardware", "rankable": True, "reasons": [], "metrics": {}},
        "code": {"version": "0.1.0", "code_sha256": "a" * 64, "core_sha256": "b" * 64, "image_sha256": None},
        "anonymised": None,
        "left_out": [{"path": "campaign/trial-01/checkpoints/epoch-89.pt", "reason": "only the last one is needed"}],
        "files": [{"path": "campaign/campaign.jsonl", "bytes": 9000, "sha256": "c" * 64}],
    }  # fmt: skip
    return Manifest(**(values | changes))


def verified(
    vflops: float = 600e12,
    *,
    level: str | None = "hardware",
    spread: float = 0.01,
    trials: int = 12,
    precision: str = "bf16",
    compression: str = "none",
    findings: tuple[Finding, ...] = (Finding("signature", "note", "signed by SHA256:abc, which is vouched for"),),
    reasons: tuple[str, ...] = (),
    file: str | None = None,
    result: dict[str, Any] | None = None,
    report: str | None = None,
    signer: str = "SHA256:abc (someone@lab.example)",
    runs: Runs | None = None,
    **manifest: Any,
) -> Examined:
    """A file that was verified: `result` changes its results, `runs` are what they tell, all else is its manifest's."""
    said = a_manifest(**manifest)
    steps = [(index - (trials - 1) / 2) / trials for index in range(trials)]
    results = [a_result(vflops * (1 + spread * step), benchmark=said.benchmark, **(result or {})) for step in steps]
    return Examined(
        Path(file or f"{said.system.split('/')[0] or 'x'}.zip"),
        Verification(
            findings=findings,
            manifest=said,
            results={f"trial-{index:02}": run for index, run in enumerate(results, 1)},
            metrics=summarise_trials(results),
            level=level,
            rankable=not reasons and level is not None,
            reasons=reasons,
            signer=signer,
        ),
        facts=replace(
            facts_of(
                said.model_dump_json().encode(),
                {"accelerator": {"precision": precision}, "communication": {"compression": compression}},
            ),
            report=report,
            runs=runs or {},
        ),
    )


def refused(evidence: str = "line 7: expected the hash of the line before", **manifest: Any) -> Examined:
    """A file that verification refuses."""
    return verified(findings=(Finding("hash-chain", "fail", evidence),), **manifest)
