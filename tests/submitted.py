"""Submissions that nobody made: a Verification as `verify_submission` gives it, from a result that nobody measured."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcai500.methodology.result import Quality, Result
from hpcai500.results.ranking.entries import Examined, facts_of
from hpcai500.results.score import summarise_trials
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.verification.copies import Runs
from hpcai500.results.verification.finding import Finding, Verification

TARGETS = {"ic": ("top1", 0.763), "ewa": ("map50", 0.35)}
HOURS = 3600.0


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
