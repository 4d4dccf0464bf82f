"""`hpcai500 timeline RECORD`: the tables of a record, and its trace, with nothing taken on trust."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from written_record import COSTS, ranks, write_record

from hpcai500.errors import RecordError, UsageError
from hpcai500.results.timeline import export_trace, straggler_lines, timeline_document, timeline_lines

TRACE = b'{"traceEvents":[]}'


def shown(folder: Path, costs: dict[str, Any] = COSTS) -> list[str]:
    record = write_record(folder / "r", *ranks(2), costs=costs)
    return list(timeline_lines(timeline_document(record, None)))


def test_the_document_is_what_the_job_wrote(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *ranks(2), costs=COSTS)
    assert timeline_document(record, None) == COSTS
    assert json.loads(json.dumps(timeline_document(record, None))) == COSTS


def test_people_get_table_12_the_stragglers_and_the_sums(tmp_path: Path) -> None:
    lines = shown(tmp_path)
    assert lines[0] == "one all-reduce of a bucket, mean over 500 all-reduces in 100 steps on each of 2 ranks"
    assert lines[1].split() == ["stage", "mean", "ms", "median", "ms", "p95", "ms", "share"]
    assert lines[2].split() == ["negotiation", "-", "-", "-", "-"]
    assert lines[7].split() == ["all-reduce", "2.000", "1.000", "4.000", "16.7%"]
    assert lines[9].split() == ["sum", "12.000"]
    ends = {len(line) for line in lines[1:9]}
    assert ends == {len(lines[1])}, "columns are not aligned"
    assert lines[14].split() == ["1", "n1", "1000.000", "100.000", "1500.000", "300.000", "1600.000", "STRAGGLER"]
    assert lines[16:] == [
        "communication fraction  12.5% of step time is waiting for sums",
        "overlap                 75.0% of all-reduce time is hidden",
        "bytes                   4 MB of gradients a rank and step, 3 MB sent",
        "stragglers              rank 1 on n1",
    ]


def test_what_is_unknown_is_said_and_the_network_check_is_shown(tmp_path: Path) -> None:
    network = {"ratio": 1.0123, "over": "loopback", "verdict": "the counters agree"}
    unknown = {"overlap": None, "stragglers": None, "bytes_per_step": {"gradient": None, "sent": None}}
    ranks_alike = [rank | {"straggler": False} for rank in COSTS["ranks"]]
    lines = shown(tmp_path, COSTS | unknown | {"network": network, "ranks": ranks_alike})
    assert lines[-3:] == [
        "overlap                 unknown part of all-reduce time is hidden",
        "network counters        1.012 of the count over loopback: the counters agree",
        "stragglers              unknown",
    ]


def test_of_many_ranks_the_slowest_are_shown_by_rank(tmp_path: Path) -> None:
    many = [COSTS["ranks"][0] | {"rank": n, "host": f"host{n}", "own_seconds": float(n % 50)} for n in range(100)]
    lines = list(straggler_lines(many))
    assert [line.split()[0] for line in lines[1:-1]] == [str(n) for n in (*range(42, 50), *range(92, 100))]
    assert lines[-1] == "the 16 slowest of 100 ranks; --json has all of them"


def test_a_record_without_communication_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no event communication: the run had one process"):
        timeline_document(write_record(tmp_path / "r"), None)
    with pytest.raises(RecordError, match=r"events.jsonl:8: the event communication lacks something"):
        timeline_document(write_record(tmp_path / "s", costs={"steps": 5}), None)


def test_exactly_one_source_is_needed(tmp_path: Path) -> None:
    for sources in ((None, None), (tmp_path, tmp_path)):
        with pytest.raises(UsageError, match="give a record, or Horovod's timeline file"):
            timeline_document(*sources)


def test_a_run_that_was_stopped_shows_what_it_has(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *ranks(2), costs=COSTS, finish=False)
    assert timeline_document(record, None)["steps"] == 100


def test_the_trace_is_given_out_as_the_run_wrote_it(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *ranks(2), trace=TRACE)
    export_trace(record, tmp_path / "out.json")
    assert (tmp_path / "out.json").read_bytes() == TRACE
    with pytest.raises(RecordError, match="cannot be written: No such file or directory"):
        export_trace(record, tmp_path / "nowhere" / "out.json")
    (record / "trace" / "communication.json").write_bytes(TRACE + b" ")
    with pytest.raises(RecordError, match="not the trace that the events name: it was changed"):
        export_trace(record, tmp_path / "out.json")


def test_a_record_without_a_trace_says_why(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no trace: the run had one process, .* or communication.trace_steps was 0"):
        export_trace(write_record(tmp_path / "r"), tmp_path / "out.json")


def test_the_command_says_on_stderr_where_it_wrote_the_trace(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *ranks(2), costs=COSTS, trace=TRACE)
    command = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]
    arguments = ["timeline", str(record), "--trace", "out.json", "--json"]
    ended = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stderr == "hpcai500: out.json: written; open it in ui.perfetto.dev\n"
    assert json.loads(ended.stdout)
    assert (tmp_path / "out.json").read_bytes() == TRACE
