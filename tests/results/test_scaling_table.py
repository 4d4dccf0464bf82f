"""Records on more and more processes as one table and picture, and which must not be put into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_record import COSTS, ranks, write_record

from hpcai500.errors import ExitCode, RecordError, UsageError
from hpcai500.results.scaling import read_scaling, report_broken_scaling, report_scaling

PNG = b"\x89PNG\r\n\x1a\n"


def point(folder: Path, processes: int, *settings: str, nodes: int = 1, **how: Any) -> Path:
    """A record of `processes` ranks with one thread each."""
    library = how.pop("library", "Gloo" if processes > 1 else "none")
    backend = how.pop("backend", "torch" if processes > 1 else "local")
    costs = COSTS if processes > 1 else None
    path = folder / f"{processes}-{len(list(folder.glob('*')))}"
    world = {"backend": backend, "library": library}
    alike = ("os.threads=1", *ranks(processes, backend=backend, nodes=nodes), *settings)
    return write_record(path, *alike, world=world, costs=costs, **how)


def test_a_table_by_hand(tmp_path: Path) -> None:
    records = [point(tmp_path, 4, seconds=3.125), point(tmp_path, 1, seconds=10.0), point(tmp_path, 2, seconds=6.25)]
    scaling = read_scaling(records)
    assert [p.processes for p in scaling.points] == [1, 2, 4]
    assert [p.images_per_second for p in scaling.points] == pytest.approx([100, 160, 320])
    assert [p.flops for p in scaling.points] == pytest.approx([1e11, 1.6e11, 3.2e11])
    assert [p.speedup for p in scaling.points] == pytest.approx([1, 1.6, 3.2])
    assert [p.parallel_efficiency for p in scaling.points] == pytest.approx([1, 0.8, 0.8])
    assert [p.communication_fraction for p in scaling.points] == [None, 0.125, 0.125]
    lines = list(scaling.lines())
    assert lines[2].split() == ["1", "1", "100.0", "100", "GFLOPS", "1.00", "1.00", "-", "local"]
    assert lines[4].split() == ["4", "1", "320.0", "320", "GFLOPS", "3.20", "0.80", "12.5%", "torch", "(Gloo)"]
    assert "HPCAI500 FOM parallel_efficiency_4=0.8 fraction" in list(scaling.figure_of_merit_lines())


def test_images_that_fill_up_a_batch_are_work_and_evaluations_are_no_training(tmp_path: Path) -> None:
    scaling = read_scaling([point(tmp_path, 1), point(tmp_path, 2, samples=2000)])
    assert scaling.points[1].images_per_second == pytest.approx(200)


@pytest.mark.parametrize(
    ("settings", "how", "reason"),
    [
        (["hyperparameters.batch_size=32"], {}, "differs from .* in hyperparameters.batch_size"),
        (["os.threads=2"], {}, "in os.threads"),
        (["communication.compression=fp16"], {}, "in communication.compression"),
        ([], {"backend": "horovod", "library": "Open MPI 4.1.4"}, "in communication.backend"),
        ([], {"library": "NCCL 2.27"}, "ran on NCCL 2.27, .* on Gloo"),
        ([], {"cpu": "Zen 5"}, "was made on other processors"),
    ],
)
def test_what_does_not_belong_into_one_table_is_refused(
    tmp_path: Path, settings: list[str], how: dict[str, Any], reason: str
) -> None:
    records = [point(tmp_path, 1), point(tmp_path, 2), point(tmp_path, 4, *settings, **how)]
    with pytest.raises(UsageError, match=f"these do not belong into one table: .*{reason}"):
        read_scaling(records)


def test_one_process_has_no_backend_that_could_differ(tmp_path: Path) -> None:
    fast = ("communication.compression=fp16", "communication.topology=hierarchical")
    scaling = read_scaling([point(tmp_path, 1), point(tmp_path, 2, *fast), point(tmp_path, 4, *fast)])
    assert [p.backend for p in scaling.points] == ["local", "torch", "torch"]


def test_nodes_are_a_way_to_more_processes(tmp_path: Path) -> None:
    scaling = read_scaling([point(tmp_path, 2), point(tmp_path, 4, nodes=2)])
    assert [p.nodes for p in scaling.points] == [1, 2]


def test_threads_that_follow_the_number_of_processes_are_refused(tmp_path: Path) -> None:
    all_cores = "os.threads=0"
    with pytest.raises(UsageError, match=r"each had another number of threads: make them with --set os.threads=N"):
        read_scaling([point(tmp_path, 1, all_cores), point(tmp_path, 2, all_cores)])
    same = [point(tmp_path, 2, all_cores), point(tmp_path, 4, all_cores, nodes=2)]
    assert len(read_scaling(same).points) == 2


def test_each_number_of_processes_comes_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"1 process\(es\), as .*: give one record for each"):
        read_scaling([point(tmp_path, 1), point(tmp_path, 1, "hyperparameters.seed=2")])
    for records in ([point(tmp_path, 1)], []):
        with pytest.raises(UsageError, match="expected records of two numbers of processes or more"):
            read_scaling(records)


def test_a_run_that_is_not_complete_is_no_point(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no event run_stop"):
        read_scaling([point(tmp_path, 1), point(tmp_path, 2, finish=False)])


def test_a_report_has_pictures_stable_lines_and_a_document(tmp_path: Path) -> None:
    records = [point(tmp_path, 1), point(tmp_path, 2, seconds=6.25)]
    report = report_scaling(records, tmp_path / "out")
    assert (tmp_path / "out" / "scaling.png").read_bytes().startswith(PNG)
    picture = (tmp_path / "out" / "scaling.svg").read_bytes()
    assert picture.startswith(b"<?xml")
    again = report_scaling(records, tmp_path / "again")
    assert again.figures[0].read_bytes() == picture
    lines = list(report.lines())
    assert lines[-1] == "HPCAI500 RESULT PASS"
    assert f"figure      {tmp_path / 'out' / 'scaling.svg'}" in lines
    document = json.loads(json.dumps(report.document()))
    assert (document["verdict"], document["benchmark"], len(document["points"])) == ("PASS", "ic", 2)
    assert document["points"][1]["parallel_efficiency"] == pytest.approx(0.8)


def test_what_ended_early_shows_what_is_there_and_why(tmp_path: Path) -> None:
    records = [point(tmp_path, 1), point(tmp_path, 2)]
    report = report_broken_scaling(records, "rank 1 is lost", ExitCode.RUN_FAILED)
    lines = list(report.lines())
    assert lines[0].startswith("weak scaling of ic")
    assert lines[-1] == "HPCAI500 RESULT INVALID"
    assert "error       rank 1 is lost" in lines
    alone = report_broken_scaling(records[:1], "rank 1 is lost", ExitCode.RUN_FAILED)
    assert list(alone.lines()) == ["error       rank 1 is lost", "HPCAI500 RESULT INVALID"]
    assert (alone.document()["points"], alone.error_code) == ([], ExitCode.RUN_FAILED)
    assert report_broken_scaling([], "no such recipe", ExitCode.USAGE).scaling is None
