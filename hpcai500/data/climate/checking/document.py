"""A check of climate years as the JSON document of `data check ewa --json`: all of it, in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcai500.data.climate.checking.check import CheckReport
from hpcai500.data.climate.checking.input_cost import InputCost, compression_ratio
from hpcai500.data.climate.checking.year_report import YearReport
from hpcai500.data.climate.layout import CHANNELS, CLASSES


def as_document(report: CheckReport) -> dict[str, Any]:
    """Return the report as `data check --json` prints it: bytes, seconds, pixels and rates as plain numbers."""
    return {
        "verdict": "pass" if report.passed else "fail",
        "root": str(report.root),
        "fingerprint": report.fingerprint,
        "content_fingerprint": report.content_fingerprint,
        "samples": {str(year.file.year): year.file.images for year in report.years},
        "classes": len(CLASSES),
        "broken": [{"path": found.path, "reason": found.reason} for found in report.broken],
        "years": [_year_document(year) for year in report.years],
        "boxes": [
            {"class": name, "boxes": count, "height": _quantiles(sizes.height), "width": _quantiles(sizes.width)}
            for name, count, sizes in zip(CLASSES, report.class_counts, report.box_sizes, strict=True)
        ],
        "training_years": list(report.training_years),
        "channels": _channel_documents(report),
        "input": [_cost_document(cost) for cost in report.costs],
        "seconds": report.seconds,
    }


def _quantiles(extents: Sequence[float] | None) -> dict[str, float] | None:
    return dict(zip(("p5", "median", "p95"), extents, strict=True)) if extents else None


def _year_document(year: YearReport) -> dict[str, Any]:
    file, storage = year.file, year.file.storage
    return {
        "year": file.year,
        "path": file.path.name,
        "images": file.images,
        "height": file.height,
        "width": file.width,
        "bytes": file.identity.size_bytes,
        "variant": file.variant.name,
        "evidence": file.variant.evidence,
        "storage": {
            "kind": storage.kind,
            "chunk": list(storage.chunk) if storage.chunk else None,
            "filters": list(storage.filters),
            "chunks_per_image": storage.chunks_per_image,
            "images_per_window": storage.window,
            "stored_bytes": storage.stored_bytes,
            "compression_ratio": compression_ratio(storage),
        },
        "per_class": dict(zip(CLASSES, year.class_counts, strict=True)),
        "odd_boxes": [
            {
                "kind": odd.kind.name.lower(),
                "boxes": odd.rows,
                "first_image": odd.first_image,
                "first_row": odd.first_row,
                "values": list(odd.first),
            }
            for odd in year.odd_rows
        ],
        "odd_channels": [
            {
                "channel": CHANNELS[odd.channel],
                "kind": odd.oddity.lower(),
                "images": odd.images,
                "values": odd.values,
                "first_image": odd.first_image,
            }
            for odd in year.channels
        ],
        "faults": [
            {
                "chunk": list(fault.chunk) if fault.chunk else None,
                "first_image": fault.images[0],
                "images": len(fault.images),
                "first_channel": fault.channels[0],
                "channels": len(fault.channels),
                "reason": fault.reason,
            }
            for fault in year.faults
        ],
    }


def _channel_documents(report: CheckReport) -> list[dict[str, Any]] | None:
    known = report.statistics
    if known is None:
        return None
    return [
        {
            "name": name,
            "mean": float(known.mean[channel]),
            "std": float(known.std[channel]),
            # JSON knows no infinity: a channel without finite values has neither.
            "minimum": float(known.minimum[channel]) if known.count[channel] else None,
            "maximum": float(known.maximum[channel]) if known.count[channel] else None,
            "nan": int(known.nan[channel]),
            "infinite": int(known.infinite[channel]),
        }
        for channel, name in enumerate(CHANNELS)
    ]


def _cost_document(cost: InputCost) -> dict[str, Any]:
    return {
        "measured_on": cost.file,
        "years": list(cost.years),
        "chunks_per_image": cost.chunks_per_image,
        "images_per_window": cost.window,
        "single_images_per_second": cost.single_images_per_second,
        "window_images_per_second": cost.window_images_per_second,
        "read_bytes_per_second": cost.bytes_per_second,
        "repacked_images_per_second": cost.repacked_images_per_second,
        "repack_gain": cost.gain,
    }
