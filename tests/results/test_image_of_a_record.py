"""The score of a run in a container names its image."""

from __future__ import annotations

import json
from pathlib import Path

from written_record import write_record

from hpcai500.results.outcome import CommandOutcome, RunOutcome
from hpcai500.results.score import score_record

IMAGE = {"name": "hpcai500-cpu", "version": "0.1.0", "content_sha256": "ca" * 32, "file_sha256": "53" * 32}


def shown(record: Path, system: dict[str, object]) -> list[str]:
    result = score_record(record)
    (record / "system.json").write_text(json.dumps(system))
    return [line for line in CommandOutcome([RunOutcome(record, result)]).lines() if line.startswith("image ")]


def test_an_image_is_named_by_name_and_the_beginning_of_its_hashes(tmp_path: Path) -> None:
    record = write_record(tmp_path / "record")
    assert shown(record, {"nodes": [], "installation": {"image": IMAGE}}) == [
        "image       hpcai500-cpu 0.1.0, content cacacacacaca, file 535353535353"
    ]


def test_an_installation_and_a_record_of_before_have_no_such_line(tmp_path: Path) -> None:
    for number, system in enumerate(({"nodes": [], "installation": {"image": None}}, {"installation": None}, {})):
        assert shown(write_record(tmp_path / f"record-{number}"), system) == []
    assert RunOutcome(tmp_path / "gone").system == {}
