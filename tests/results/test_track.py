"""`hpcai500 track`: what got worse on a machine since when, from records over months."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_record, values, write_campaign
from builders.commands import Typed, error_of
from builders.events import BOOT
from builders.months import FIRST_S, HOSTS, WEEK_SECONDS, nodes_of, update_of, write_micro, write_months
from builders.records import write_record

from hpcai500.errors import ExitCode, UsageError
from hpcai500.record import Event
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.track.trends import Tracked, Trend, track, track_lines

DAY_SECONDS = 86_400.0
SLOW = {"node-3": (18, 0.05)}


def trend_of(tracked: Tracked, metric: str, node: str = "") -> Trend:
    (found,) = (one for one in tracked.trends if one.metric.name == metric and one.node == node)
    return found


def reasons(tracked: Tracked) -> dict[str, str]:
    return {one.name: one.reason for one in tracked.folder.left_out}


@pytest.fixture(scope="module")
def slow_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty weeks; before the nineteenth run node-3 got another kernel, and takes 5 % longer since."""
    folder = tmp_path_factory.mktemp("slow")
    write_months(folder, 30, slow=SLOW, change=update_of("kernel", "5.14.0-570", 18, ("node-3",)))
    return folder


# --- What is found.


def test_a_node_that_got_slower_is_found_with_its_record_and_what_changed(slow_node: Path) -> None:
    tracked = track(slow_node)
    assert tracked.exit_code == ExitCode.TOO_SLOW
    node = tracked.alarms[0]
    assert (node.metric.name, node.node) == ("step_ratio", "node-3")
    alarm = node.alarm
    assert alarm
    assert alarm.point.records == ("run-018",)
    assert alarm.change.low < 0.05 < alarm.change.high
    assert [mark.sentence for mark in alarm.marks] == ["kernel: 5.14.0-503.el9.x86_64 -> 5.14.0-570 on node-3"]
    # All nodes wait for it; the other nodes are not blamed.
    assert {(one.metric.name, one.node) for one in tracked.alarms} == {
        ("step_ratio", "node-3"), ("images_per_second", ""), ("vflops", ""), ("epoch_seconds", ""),
    }  # fmt: skip
    rate = trend_of(tracked, "images_per_second").alarm
    assert rate
    assert rate.change.low < 1 / 1.05 - 1 + 0.01 < rate.change.high + 0.01
    assert tracked.sentence.startswith("worse since 2024-10-01: Step time / that of others, node-3 +5.")
    assert "first in run-018 (kernel: 5.14.0-503.el9.x86_64 -> 5.14.0-570 on node-3)" in tracked.sentence


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_is_no_change(seed: int, tmp_path: Path) -> None:
    write_months(tmp_path, 26, seed=seed)
    tracked = track(tmp_path)
    assert (tracked.exit_code, tracked.alarms) == (ExitCode.PASS, ())
    assert tracked.sentence == "no metric got worse (10 trends tested)"


def test_an_improvement_is_reported_and_raises_no_alarm(tmp_path: Path) -> None:
    write_months(tmp_path, 24, slow=dict.fromkeys(HOSTS, (12, -0.06)))
    tracked = track(tmp_path)
    assert tracked.exit_code == ExitCode.PASS
    (better,) = trend_of(tracked, "images_per_second").findings
    assert (better.state, better.point.records) == ("better", ("run-012",))


def test_a_fault_that_was_mended_raises_no_alarm_any_more(tmp_path: Path) -> None:
    write_months(tmp_path / "1", 20, seed=1)
    write_months(tmp_path / "2", 20, seed=2, slow={"node-2": (0, 0.08)}, start_s=FIRST_S + 20 * WEEK_SECONDS)
    assert track(tmp_path).exit_code == ExitCode.TOO_SLOW
    write_months(tmp_path / "3", 20, seed=3, start_s=FIRST_S + 40 * WEEK_SECONDS)
    tracked = track(tmp_path)
    assert tracked.exit_code == ExitCode.PASS
    worse, better = trend_of(tracked, "step_ratio", "node-2").findings
    assert (worse.state, worse.point.records) == ("worse, mended", ("2/run-000",))
    assert (better.state, better.point.records) == ("better", ("3/run-000",))


def test_a_change_that_is_too_small_to_matter_raises_no_alarm(tmp_path: Path) -> None:
    write_months(tmp_path, 40, noise=0.0002, slow=dict.fromkeys(HOSTS, (20, 0.005)))
    tracked = track(tmp_path)
    assert tracked.exit_code == ExitCode.PASS
    (small,) = trend_of(tracked, "images_per_second").findings
    assert small.state == "small"
    assert track(tmp_path, least_change=0.002).exit_code == ExitCode.TOO_SLOW


def test_records_of_a_day_count_as_one_value(tmp_path: Path) -> None:
    """Five runs a day, each day with a drift of its own: each for itself, they look like changes."""
    for day in range(10):
        slower = dict.fromkeys(HOSTS, (0, 0.03 if day in (3, 4, 7) else 0.0))
        start = FIRST_S + day * WEEK_SECONDS
        write_months(tmp_path / f"day-{day}", 5, slow=slower, start_s=start, apart_s=600, seed=100 + day)
    tracked = track(tmp_path)
    assert len(trend_of(tracked, "images_per_second").points) == 10
    assert len(trend_of(tracked, "images_per_second").points[0].records) == 5
    assert tracked.exit_code == ExitCode.PASS
    assert len(trend_of(track(tmp_path, by="record"), "images_per_second").points) == 50


def test_the_order_of_hosts_does_not_matter(tmp_path: Path) -> None:
    for name, hosts in (("a", HOSTS), ("b", HOSTS[::-1])):
        write_months(tmp_path / name, 20, hosts=hosts, noise=0.0, slow={"node-3": (10, 0.05)})
    one, other = (trend_of(track(tmp_path / name), "step_ratio", "node-3") for name in "ab")
    assert [point.value for point in one.points] == [point.value for point in other.points]
    assert [found.change for found in one.findings] == [found.change for found in other.findings]


def test_the_same_folder_gives_the_same_answer(slow_node: Path) -> None:
    assert track(slow_node).document() == track(slow_node).document()


def test_descriptions_of_nodes_are_kept_once(slow_node: Path) -> None:
    """120 of them, in thirty records: of two kinds. Thousands of records fit into memory."""
    folder = track(slow_node).folder
    assert sum(len(one.nodes) for one in folder.observations) == 120
    assert len(folder.documents) == 2


# --- What is comparable.


def test_other_work_is_another_trend_and_another_seed_is_not(tmp_path: Path) -> None:
    write_months(tmp_path / "a", 3)
    write_months(tmp_path / "b", 2, "hyperparameters.batch_size=128", start_s=FIRST_S + 1000)
    write_months(tmp_path / "c", 2, hosts=HOSTS[:2], start_s=FIRST_S + 2000)
    tracked = track(tmp_path)
    groups = {trend.group: len(trend.points) for trend in tracked.trends if trend.metric.name == "vflops"}
    assert sorted(groups.values()) == [2, 2, 3]
    assert len({group.recipe for group in groups}) == 3


def test_runs_on_one_node_are_compared_with_the_same_node_only(tmp_path: Path) -> None:
    write_months(tmp_path / "a", 2, hosts=["node-1"])
    write_months(tmp_path / "b", 2, hosts=["node-2"])
    tracked = track(tmp_path)
    assert {trend.where for trend in tracked.trends if trend.metric.name == "vflops"} == {"node-1", "node-2"}
    assert "rank 7 on node-2" in {trend.node for trend in tracked.trends if trend.metric.name == "step_ratio"}


def test_a_change_of_software_is_a_mark_and_no_other_trend(tmp_path: Path) -> None:
    def change(run: int, events: list[Event]) -> None:
        for field, value in (("software.torch", "2.14.0"), ("driver.nvidia.version", "590.1")):
            update_of(field, value, 2)(run, events)

    def with_driver(run: int, events: list[Event]) -> None:
        for node in nodes_of(events):
            node["driver"] = {"nvidia": {"version": "580.9"}}
        change(run, events)
        for value in values(events, "run_start"):
            value["library"] = f"NCCL 2.{29 + run}.1"

    write_months(tmp_path, 4, change=with_driver)
    tracked = track(tmp_path)
    (group,) = {trend.group for trend in tracked.trends}
    assert group.library == "torch (NCCL)"
    found = {mark.field: (mark.before, mark.after, mark.record, mark.hosts) for mark in tracked.marks}
    assert found == {
        "software.torch": ("2.13.0", "2.14.0", "run-002", HOSTS),
        "driver.nvidia.version": ("580.9", "590.1", "run-002", HOSTS),
    }


def test_another_version_of_hpcai500_is_a_mark(tmp_path: Path) -> None:
    def change(run: int, events: list[Event]) -> None:
        if run:
            for value in values(events, "system"):
                value["installation"] = {
                    **value["installation"], "package": {"version": "9.0", "code_sha256": "f" * 64},
                }  # fmt: skip

    write_months(tmp_path, 2, change=change)
    marks = {mark.field: mark.after for mark in track(tmp_path).marks}
    assert marks["hpcai500.version"] == "9.0"
    assert marks["hpcai500.code"].startswith("fffffffff")


def test_ceilings_of_micro_are_followed_for_each_node(tmp_path: Path) -> None:
    for week in range(20):
        rates = {"node-1": 1e12 + week * 1e8, "node-2": (0.9e12 if week >= 10 else 1e12) + week % 3 * 1e9}
        write_micro(tmp_path / f"micro-{week}.json", round(1000 * (FIRST_S + week * WEEK_SECONDS)), rates)
    tracked = track(tmp_path, by="record")
    worse = trend_of(tracked, "gemm bf16", "node-2").alarm
    assert worse
    assert worse.point.records == ("micro-10.json",)
    assert worse.change.size == pytest.approx(-0.1, abs=0.005)
    assert trend_of(tracked, "gemm bf16", "node-1").alarm is None
    assert trend_of(tracked, "gemm bf16").points[0].value == pytest.approx(2e12)


def test_a_latency_that_grows_and_a_slowest_link_that_falls_behind_are_worse(tmp_path: Path) -> None:
    for week in range(20):
        latency, share = (4e-6, 0.75) if week >= 10 else (3e-6, 0.95)
        pairs = {
            "pairs latency": (latency + week % 3 * 1e-8, "s"),
            "pairs share": (share - week % 3 / 1000, "fraction"),
        }
        time_ms = round(1000 * (FIRST_S + week * WEEK_SECONDS))
        write_micro(tmp_path / f"micro-{week}.json", time_ms, {"node-1": 1e12, "node-2": 1e12}, pairs=pairs)
    tracked = track(tmp_path, by="record")
    later, behind = (trend_of(tracked, name).alarm for name in ("pairs latency", "pairs share"))
    assert later
    assert later.change.size == pytest.approx(1 / 3, abs=0.01)
    assert behind
    assert behind.change.size == pytest.approx(-0.2, abs=0.005)


# --- What is left out, and named.


def test_forged_records_are_left_out_and_named(slow_node: Path, tmp_path: Path) -> None:
    shutil.copytree(slow_node, tmp_path / "all")
    folder = tmp_path / "all"

    def faster(events: list[Event]) -> None:
        values(events, "epoch_stop")[0]["seconds"] = 1.0

    edit_record(folder / "run-003", faster, rechain=False)
    result = json.loads((folder / "run-004" / "result.json").read_text())
    (folder / "run-004" / "result.json").write_text(json.dumps({**result, "images_per_second": 1e6}))
    (folder / "run-005" / "DONE").unlink()
    (folder / "run-006" / "events.jsonl").write_bytes(b"\xff\x00 no JSON")
    (folder / "run-007" / "result.json").unlink()
    (folder / "notes.json").write_text("[" * 100_000)
    tracked = track(folder)
    found = reasons(tracked)
    assert found.keys() == {"run-003", "run-004", "run-005", "run-006", "run-007", "notes.json"}
    assert "chain is broken" in found["run-003"]
    assert "images_per_second is 1000000.0" in found["run-004"]
    assert "not finished" in found["run-005"]
    assert "not complete" in found["run-007"]
    assert len(tracked.folder.observations) == 25
    shown = "\n".join(track_lines(tracked))
    assert all(f"  {name}: {reason}" in shown for name, reason in found.items())
    # The change is still found.
    assert tracked.alarms[0].node == "node-3"


def test_a_copy_counts_once(tmp_path: Path) -> None:
    first, *_ = write_months(tmp_path, 2)
    shutil.copytree(first, tmp_path / "copy" / "renamed")
    tracked = track(tmp_path)
    assert reasons(tracked) == {"run-000": "the same as copy/renamed: counted once"}
    assert len(tracked.folder.observations) == 2


def test_another_machine_is_left_out(tmp_path: Path) -> None:
    write_months(tmp_path / "ours", 3)
    write_months(tmp_path / "theirs", 1, hosts=["gpu-1", "gpu-2"])
    tracked = track(tmp_path)
    assert reasons(tracked) == {"theirs/run-000": "on gpu-1, gpu-2: another machine than that of most records (node-#)"}


def test_another_cluster_is_left_out_although_its_hosts_have_the_same_names(tmp_path: Path) -> None:
    def of(cluster: str) -> Any:
        def change(run: int, events: list[Event]) -> None:
            for node in nodes_of(events):
                node["environment"] = {"SLURM_CLUSTER_NAME": cluster}

        return change

    write_months(tmp_path / "ours", 3, change=of("alpha"))
    write_months(tmp_path / "theirs", 1, change=of("beta"))
    tracked = track(tmp_path)
    assert list(reasons(tracked)) == ["theirs/run-000"]
    assert "of cluster beta" in reasons(tracked)["theirs/run-000"]


def test_a_clock_that_was_set_back_is_corrected_by_the_time_since_boot(tmp_path: Path) -> None:
    def change(run: int, events: list[Event]) -> None:
        for event in events:
            if event["key"] == "init_start":
                event["value"]["boot_id"] = BOOT
            # Half a year back, in run 4 only.
            event["time_ms"] -= round(182 * DAY_SECONDS * 1000) if run == 4 else 0

    write_months(tmp_path, 8, change=change)
    tracked = track(tmp_path)
    assert [one.name for one in tracked.folder.observations] == [f"run-{run:03d}" for run in range(8)]
    (note,) = tracked.folder.notes
    assert note.startswith("run-004: its clock was 182.0 days behind, by the time since boot of 7 other records")


def test_a_clock_that_was_never_set_is_named(tmp_path: Path) -> None:
    write_months(tmp_path / "a", 2)
    write_months(tmp_path / "b", 1, start_s=86_400.0)
    write_months(tmp_path / "c", 1, start_s=FIRST_S + 50 * 365 * DAY_SECONDS)
    tracked = track(tmp_path)
    assert reasons(tracked)["b/run-000"] == "its clock shows 1970-01-02 00:00:00 UTC: it was not set"
    assert "in the future" in reasons(tracked)["c/run-000"]


def test_a_clock_that_ran_backwards_during_a_run_is_named(tmp_path: Path) -> None:
    def change(run: int, events: list[Event]) -> None:
        if run == 1:
            events[-3]["clock_s"] -= 5000

    write_months(tmp_path, 3, change=change)
    tracked = track(tmp_path)
    assert "the clock ran backwards" in reasons(tracked)["run-001"]


def test_an_old_file_of_micro_is_named(tmp_path: Path) -> None:
    write_months(tmp_path, 1)
    file = write_micro(tmp_path / "micro.json", 0, {"node-1": 1e12})
    document = json.loads(file.read_text())
    del document["gemm bf16"]["time_ms"]
    file.write_text(json.dumps(document))
    assert "does not say when and where" in reasons(track(tmp_path))["micro.json"]


def test_campaigns_count_with_their_finished_runs_and_name_the_others(tmp_path: Path) -> None:
    write_campaign(tmp_path / "campaign", *SHORT, trials=3, failing=[2])
    tracked = track(tmp_path)
    assert len(tracked.folder.observations) == 3
    assert reasons(tracked) == {"campaign/trial-02": "failed: node-2 was lost"}


def test_a_record_that_was_exchanged_in_a_campaign_is_named(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path / "campaign", *SHORT, trials=2)
    other = write_campaign(tmp_path / "b", *SHORT, trials=2, idle_s=9.0)
    shutil.rmtree(campaign / "trial-01")
    shutil.move(other / "trial-01", campaign / "trial-01")
    shutil.rmtree(other)
    assert "not the record in the campaign's campaign.jsonl" in reasons(track(tmp_path))["campaign/trial-01"]


def test_a_submission_is_verified_and_counts_with_its_runs(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    campaign = write_campaign(tmp_path / "campaign", *SHORT, trials=2)
    folder = tmp_path / "folder"
    folder.mkdir()
    pack(SubmitRequest(campaign, folder / "vendor.zip", "System", "Organisation", key=tmp_path / "key"))
    shutil.copy(folder / "vendor.zip", folder / "cut.zip")
    with (folder / "cut.zip").open("r+b") as stream:
        stream.truncate(5000)
    tracked = track(folder)
    assert [one.name for one in tracked.folder.observations] == ["vendor.zip: trial-01", "vendor.zip: trial-02"]
    assert reasons(tracked).keys() == {"cut.zip"}
    assert "refused" in reasons(tracked)["cut.zip"]
    # The same runs as a folder count once.
    shutil.copytree(campaign, folder / "campaign")
    again = track(folder)
    assert len(again.folder.observations) == 2
    assert again.folder.left_out[-1].reason == "the same as campaign/trial-02: counted once"


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    write_months(tmp_path / "runs", 2)
    (tmp_path / "runs" / "circle").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "runs")
    assert len(track(tmp_path).folder.observations) == 2


# --- Few records, and errors.


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no record in it"):
        track(tmp_path)
    write_record(tmp_path / "unfinished", finish=False)
    with pytest.raises(UsageError, match="no record can be used: unfinished: the run is not finished"):
        track(tmp_path)


def test_one_record_is_too_few_to_tell(typed: Typed, tmp_path: Path) -> None:
    write_months(tmp_path / "runs", 1)
    ended = typed("track", "runs")
    assert ended.returncode == ExitCode.PASS
    assert "verdict     too early to tell: a trend needs 8 days, the longest has 1" in ended.stdout
    assert ended.stdout.endswith("HPCAI500 RESULT PASS\n")


def test_a_record_is_no_folder_of_records(typed: Typed, tmp_path: Path) -> None:
    (record,) = write_months(tmp_path, 1)
    assert "a record: give the folder that contains" in error_of(typed("track", record))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--since", "last May"), "expected a date"),
        (("--by", "week"), "expected day or record"),
        (("--least", "5"), "expected a share"),
        (("--false-alarms", "0"), "expected a rate"),
        (("--since", "2199-01-01"), "no record that can be used is left"),
    ],
)
def test_a_wrong_option_is_explained(words: tuple[str, ...], error: str, typed: Typed, slow_node: Path) -> None:
    assert error in error_of(typed("track", slow_node, *words))


# --- What is printed.


def test_the_command_prints_a_table_and_ends_with_the_verdict(typed: Typed, slow_node: Path) -> None:
    ended = typed("track", slow_node)
    assert ended.returncode == ExitCode.TOO_SLOW
    lines = ended.stdout.splitlines()
    assert lines[0] == f"folder      {slow_node}: 30 records, 2024-05-28 to 2024-12-17"
    (row,) = (line for line in lines if line.startswith("  Step time / that of others, node-3"))
    assert re.search(r"\+5\.\d % WORSE +\+4\.\d to \+5\.\d % +\S+ +2024-10-01 run-018$", row)
    assert "  2024-10-01  kernel: 5.14.0-503.el9.x86_64 -> 5.14.0-570 on node-3" in lines
    assert lines[-2].startswith("verdict     worse since 2024-10-01")
    assert lines[-1] == "HPCAI500 RESULT FAIL"


def test_after_a_maintenance_a_new_start_is_quiet(typed: Typed, slow_node: Path) -> None:
    day = datetime.fromtimestamp(FIRST_S + 18 * WEEK_SECONDS, UTC).strftime("%Y-%m-%d")
    ended = typed("track", slow_node, "--since", day)
    assert ended.returncode == ExitCode.PASS
    assert "12 records" in ended.stdout


def test_the_document_has_all_points_and_changes(typed: Typed, slow_node: Path) -> None:
    ended = typed("track", slow_node, "--json")
    assert ended.returncode == ExitCode.TOO_SLOW
    document = json.loads(ended.stdout)
    assert document["schema"] == "hpcai500-track-1"
    assert (document["verdict"], document["exit_code"], document["records"]) == ("FAIL", 5, 30)
    (trend,) = (one for one in document["trends"] if one["node"] == "node-3")
    assert trend["worse"] is True
    assert len(trend["points"]) == 30
    (change,) = trend["changes"]
    assert change["record"] == "run-018"
    assert change["interval"][0] < change["size"] < change["interval"][1]
    assert change["p"] < 0.001
    assert change["marks"] == ["kernel: 5.14.0-503.el9.x86_64 -> 5.14.0-570 on node-3"]
    assert document["groups"][trend["group"]]["ranks"] == 8 * len(HOSTS)
