"""From a request to scripts: what is refused before anything queues, who is submitted, who may be run again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from test_ensemble_folder import planned
from test_slurm_scheduler import submitted
from tiny_runs import TINY

from hpcai500.ensemble.journal import FAILURES, Ensemble, append, create_ensemble
from hpcai500.ensemble.mapping import Shape, member_places
from hpcai500.ensemble.slurm import (
    SubmitRequest,
    again_after,
    failures,
    last_site,
    plan_submission,
    warnings_of,
    write_submission,
)
from hpcai500.errors import DataError, RecordError, UsageError
from hpcai500.recipe import load_recipe


def ready(folder: Path, members: int = 3) -> Ensemble:
    (folder / "data").mkdir()
    return planned(folder / "e", members)


def site_file(folder: Path, text: str = "") -> str:
    file = folder / "site.toml"
    file.write_text(text or '[container]\ncommand = "none"\n')
    return str(file)


def request(folder: Path, text: str = "", **changes: str | int | None) -> SubmitRequest:
    return SubmitRequest({"PATH": "/nowhere"}, site_file(folder, text), **changes)  # type: ignore[arg-type]


def failed(ensemble: Ensemble, member: int, *told: tuple[str, int, str]) -> None:
    """Write failures of a member, (hosts, exit code, array), as its script does."""
    folder = ensemble.folder(member)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"time_ms": 1, "host": host, "exit_code": code, "restart": number, "job": job}
        for number, (host, code, job) in enumerate(told)
    ]
    (folder / FAILURES).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_all_members_that_are_not_done_are_submitted(tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    submission = plan_submission(ensemble, request(tmp_path, exclude="n[1-2]", at_once=2))
    assert submission is not None
    assert (submission.members, submission.exclude, submission.at_once) == ([0, 1, 2], ["n1", "n2"], 2)
    assert submission.folder.is_absolute()
    some = plan_submission(ensemble, request(tmp_path, members="2"))
    assert some is not None
    assert some.members == [2]


def test_scripts_and_site_are_written_and_the_site_is_used_again(tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    text = '[slurm]\npartition = "debug"\n[container]\ncommand = "none"\n'
    submission = plan_submission(ensemble, request(tmp_path, text))
    assert submission is not None
    (ensemble.path / "slurm").mkdir()
    (ensemble.path / "slurm" / "member-1000.sh").write_text("of an earlier submission")
    script = write_submission(submission)
    assert sorted(path.name for path in script.parent.iterdir()) == [
        *("collect.sh", "member.sh", "site.toml", "submit.sh")
    ]
    assert tomllib.loads((script.parent / "site.toml").read_text())["slurm"]["partition"] == "debug"
    again = plan_submission(ensemble, SubmitRequest({"PATH": "/nowhere"}))
    assert again is not None
    assert again.site == submission.site == last_site(ensemble)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[node]\ntasks = 4\n[container]\ncommand = "none"', r"nodes of 1 accelerators, the site nodes of 4"),
        ('[container]\nimage = "/nowhere/h.sif"', r"/nowhere/h.sif: is not there"),
        ("[slurm]\n", r"which image\?"),
    ],
)
def test_a_site_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_submission(ready(tmp_path), request(tmp_path, text))


def test_members_that_share_a_node_must_ask_for_their_gpus(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shape = Shape(4, 1, 4)
    recipe = load_recipe("ic/smoke", [*TINY, "ensemble.members=4", "accelerator.device=cuda"], edition="v3.0")
    ensemble = create_ensemble(tmp_path / "e", recipe, shape, member_places(shape, 1), tmp_path / "data", None)
    text = '[node]\ntasks = 4\ngpus = {}\ngpu_request = "{}"\n[container]\ncommand = "none"'
    with pytest.raises(UsageError, match="members that share a node must ask for their GPUs"):
        plan_submission(ensemble, request(tmp_path, text.format(4, "none")))
    with pytest.raises(UsageError, match="as many for each task"):
        plan_submission(ensemble, request(tmp_path, text.format(6, "gres")))
    with pytest.raises(UsageError, match=r"accelerator\.device is cuda"):
        plan_submission(ensemble, request(tmp_path, text.format(0, "gres")))
    assert plan_submission(ensemble, request(tmp_path, text.format(4, "gres"))) is not None


def test_data_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data of this plan is not there"):
        plan_submission(planned(tmp_path / "e"), request(tmp_path))


def test_arrays_that_had_some_of_the_members_are_looked_for(tmp_path: Path) -> None:
    ensemble = submitted(submitted(ready(tmp_path), ["1", "2"], [0, 1]), ["3", "4"], [2])
    submission = plan_submission(ensemble, request(tmp_path, members="2"))
    assert submission is not None
    assert submission.in_queue == ["3"]


def test_the_collecting_job_has_missing_members_run_again_once(tmp_path: Path) -> None:
    ensemble = submitted(ready(tmp_path), ["1", "2"], [0, 1, 2])
    assert again_after(ensemble, "2").members == [0, 1, 2]
    submission = plan_submission(ensemble, request(tmp_path, after="2"))
    assert submission is not None
    assert (submission.members, submission.after, submission.in_queue) == ([0, 1, 2], "2", [])
    # A job that came back from the queue after it had submitted.
    ensemble = submitted(ensemble, ["3", "4"], [0, 1, 2], after="2")
    assert again_after(ensemble, "2").members == ()
    assert again_after(ensemble, "4").members == ()
    assert plan_submission(ensemble, request(tmp_path, after="4")) is None


def test_what_was_cancelled_is_not_run_again(tmp_path: Path) -> None:
    ensemble = append(submitted(ready(tmp_path), ["1", "2"], [0]), "cancel", {"jobs": ["1", "2"]})
    assert again_after(ensemble, "2").members == ()


def test_what_was_given_up_is_not_run_again(tmp_path: Path) -> None:
    ensemble = submitted(ready(tmp_path, 6), ["7", "8"], [0, 1, 2, 3, 4, 5])
    failed(ensemble, 0, *[("n1", 1, "7")] * 3)
    failed(ensemble, 1, ("n1", 2, "7"))
    failed(ensemble, 2, ("n1", 69, "7"), ("n2", 64, "7"))
    failed(ensemble, 3, ("n1", 1, "7"), ("n2", 1, "7"))
    # Of an earlier submission.
    failed(ensemble, 4, *[("n1", 1, "5")] * 3)
    assert again_after(ensemble, "8").members == [3, 4, 5]


def test_hosts_where_members_have_failed_are_left_out_while_others_are_known(tmp_path: Path) -> None:
    ensemble = submitted(ready(tmp_path), ["7", "8"], [0, 1, 2])
    failed(ensemble, 0, ("n1", 1, "7"))
    failed(ensemble, 1, ("n1", 1, "7"))
    # Nobody knows of a host that would do.
    assert again_after(ensemble, "8").exclude == []
    failed(ensemble, 1, ("n1", 1, "7"), ("n2", 1, "7"))
    assert again_after(ensemble, "8").exclude == ["n1"]


def test_a_line_of_failures_that_a_crash_cut_off_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / FAILURES
    assert failures(tmp_path, ["7"]) == []
    file.write_text('{"host":"n1,n2","exit_code":1,"job":"7"}\n{"host":"n1","exi')
    (one,) = failures(tmp_path, ["7"])
    assert one.host == "n1,n2"
    file.write_text("rubbish\n")
    with pytest.raises(RecordError, match="a line is none of a failed member"):
        failures(tmp_path, ["7"])


def test_whole_nodes_that_slurm_may_share_are_warned_of(tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    shared = '[container]\ncommand = "none"\n[slurm]\nexclusive = false\n'
    submission = plan_submission(ensemble, request(tmp_path, shared))
    assert submission is not None
    (warning,) = warnings_of(submission)
    assert warning.startswith("exclusive = false under [slurm] of the site: a member takes whole nodes, but ")
    other = plan_submission(ensemble, request(tmp_path))
    alone = plan_submission(ensemble, request(tmp_path, shared, at_once=1))
    single = plan_submission(ensemble, request(tmp_path, shared, members="1"))
    assert [warnings_of(one) for one in (other, alone, single) if one is not None] == [[], [], []]
