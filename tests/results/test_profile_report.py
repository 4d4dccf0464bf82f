"""A profile as people and harnesses read it, and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_profile import profile, write_profile

from hpcai500.errors import ExitCode, RecordError
from hpcai500.results.profile import comparison_lines, draw_profiles, exit_code, profile_lines, read_profile

PNG = b"\x89PNG\r\n\x1a\n"


def lines(**changes: Any) -> list[str]:
    return list(profile_lines(profile(**changes), Path("folder")))


def line(start: str, **changes: Any) -> str:
    return next(one for one in lines(**changes) if one.startswith(start))


def test_the_table_tells_share_time_and_calls_of_a_step() -> None:
    assert line("profile").split(": ")[1] == (
        "ic, 2 ranks (Gloo), 1 core a rank, fp32, batch 8, channels first, gradients as fp16"
    )
    assert line("convolution").split() == ["convolution", "50.0%", "500.000", "2.0"]
    assert line("pooling").split() == ["pooling", "0.0%", "0.000", "0.0"]
    assert line("unclassified").split() == ["unclassified", "0.00%"]
    assert line("step ").endswith("1000.0 ms without the profiler: data wait 25.0%, communication wait 25.0%")
    assert "25.0% longer under the profiler" in line("overhead")
    assert "cannot be told" in line("overhead", overhead={"step_seconds": 1.0, "fraction": -0.01})
    assert line("utilisation") == "utilisation 75.0% of this rank's cores"
    assert line("bandwidth") == "bandwidth   2 MB/s sent on average, 3 MB/s at most (loopback of a)"


def test_layouts_are_called_out_with_what_to_measure_next() -> None:
    assert line("layout").endswith("5.0% of kernel time changes the layout of tensors, 4.0% of it inside operators")
    told = lines()
    assert "    4.0%  NCHW -> blocks aBcd16b, 8x3x4x4, 2 a step: inside convolution" in told
    assert "    1.0%  NHWC -> NCHW, 8x3x4x4, 1 a step: aten::conv2d" in told
    assert any("--set framework.channels_last=true" in one for one in told)
    assert not any("--set framework.channels_last=true" in one for one in lines(channels_last=True))


def test_harnesses_get_a_line_for_each_number_and_the_verdict_last() -> None:
    told = lines()
    assert "HPCAI500 FOM profile_batch_normalisation_share=0.125 fraction" in told
    assert "HPCAI500 FOM profile_all_reduce_share=0.125 fraction" in told
    assert "HPCAI500 FOM profile_step_seconds=1 s" in told
    assert "HPCAI500 FOM profile_sent_bytes_per_second=2e+06 B/s" in told
    assert told[-1] == "HPCAI500 RESULT PASS"
    alone = lines(bandwidth=[], utilisation=[])
    assert not any("sent_bytes" in one or "utilisation" in one for one in alone)


def test_kernels_that_no_rule_knows_are_a_wrong_answer_that_names_them() -> None:
    row = {"name": "aten::frobnicate", "class": None, "seconds": 0.2, "share": 0.05, "calls": 1}
    strange = {"unclassified_share": 0.05, "unclassified": [row], "top": [row]}
    assert exit_code(profile()) == ExitCode.PASS
    assert exit_code(profile(**strange)) == ExitCode.WRONG_ANSWER
    told = lines(**strange)
    assert told[-2:] == [
        "FAILED: 5.0% of kernel time is in kernels that no rule knows: aten::frobnicate",
        "HPCAI500 RESULT FAIL",
    ]
    assert any(one.endswith("UNCLASSIFIED") for one in told)


def test_several_profiles_are_told_side_by_side(tmp_path: Path) -> None:
    folders = [write_profile(tmp_path / "one"), write_profile(tmp_path / "two", benchmark="ewa", channels_last=True)]
    told = list(comparison_lines([(folder, read_profile(folder)[0]) for folder in folders]))
    assert [one.split()[:2] for one in told[:2]] == [["1", f"{folders[0]}:"], ["2", f"{folders[1]}:"]]
    assert "convolution                    50.0%       50.0%" in told


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "profile.json: not there: make it with `hpcai500 profile"),
        ("{", "profile.json"),
        ('{"schema": 99}', "schema 99, not 1"),
        ('{"schema": 1, "benchmark": "ic"}', "damaged, lacks bandwidth"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "profile.json").write_text(content)
    with pytest.raises(RecordError, match=reason):
        read_profile(tmp_path)


def test_a_figure_has_what_was_measured_and_is_the_same_file_again() -> None:
    files = draw_profiles([("ic", profile())])
    assert sorted(files) == ["profile.png", "profile.svg"]
    assert files["profile.png"].startswith(PNG)
    text = files["profile.svg"].decode()
    for word in ("transformation", "50.0%", "Device utilisation", "loopback of a", "MB/s"):
        assert word in text
    assert draw_profiles([("ic", profile())]) == files


def test_without_other_ranks_there_is_no_bandwidth_to_draw() -> None:
    text = draw_profiles([("ic", profile(bandwidth=[], bandwidth_of=None))])["profile.svg"].decode()
    assert "Communication" not in text
    assert "Device utilisation" in text


def test_two_workloads_share_a_figure() -> None:
    text = draw_profiles([("ic", profile()), ("ewa", profile(bandwidth=[]))])["profile.svg"].decode()
    assert ">ewa<" in text
    assert ">ic<" in text


LAUNCH = {
    "seconds": 4.0, "compute_seconds": 2.0, "communication_seconds": 0.4, "copy_seconds": 0.2, "idle_seconds": 1.4,
    "idle_share": 0.35, "idle_share_without_profiler": 0.25, "bound": "host", "gaps": 80,
    "idle_seconds_by_cause": {"host": 1.0, "input": 0.2, "device": 0.2},
    "longest": [{"t": 0.1, "seconds": 2e-4, "cause": "host", "before": "sgemm", "after": "relu", "host": "aten::mm"},
                {"t": 0.2, "seconds": 1e-4, "cause": "device", "before": "relu", "after": "sgemm", "host": None}],
    "launches": 400, "launch_seconds": 0.5, "synchronisations": 4, "host_seconds": 3.0, "works": 440,
    "lane_seconds": 1.0, "lane": [[0.0, 1.0, 0.0, 0.0], [0.25, 0.5, 0.25, 0.0], [0.5, 0.0, 0.0, 0.0], [0.75, 0, 0, 1]],
}  # fmt: skip


def test_launch_gaps_are_told_with_whom_the_device_waited_for() -> None:
    told = lines(device="cuda", device_name="GPU", launch=LAUNCH)
    assert "device      computes 50.0%, only communicates 10.0%, only copies 5.0%, idles 35.0%" in told
    gaps = "launch gaps 20 a step, 35.0% of the time: 25.0% waiting for the host, 5.0% for input, 5.0% between queued "
    assert f"{gaps}works" in told
    assert line("bound by", launch=LAUNCH) == (
        "bound by    the host: framework.cuda_graphs or framework.compile may help (without the profiler the device "
        "idles 25.0% of a step)"
    )
    assert line("launches", launch=LAUNCH) == (
        "launches    100 a step for 110 works: the host needs 750.0 ms a step, the device 650.0 ms"
    )
    assert "     200.0 us  sgemm -> relu (host; host: aten::mm)" in told
    assert "     100.0 us  relu -> sgemm (device)" in told
    assert "HPCAI500 FOM profile_idle_share=0.25 fraction" in told
    assert "HPCAI500 FOM profile_launches_a_step=100 launches" in told


def test_options_of_a_step_are_told_where_they_are_on() -> None:
    assert "CUDA graphs, fused optimizer" in line("profile", cuda_graphs=True, fused_optimizer=True)


@pytest.mark.parametrize("launch", [None, ...])
def test_a_processors_profile_has_no_launch_gaps(launch: object) -> None:
    changes = {} if launch is ... else {"launch": launch}
    assert not any("launch" in one for one in lines(**changes))
    assert "in one step" not in draw_profiles([("ic", profile(**changes))])["profile.svg"].decode()


def test_the_figure_shows_what_the_device_did_in_a_step() -> None:
    text = draw_profiles([("graphs", profile(launch=LAUNCH)), ("eager", profile())])["profile.svg"].decode()
    for word in ("What the device did in one step", ">graphs<", "idle 25%", "only communicates"):
        assert word in text
    both = [("a", profile(launch=LAUNCH)), ("b", profile(launch=LAUNCH))]
    assert draw_profiles(both) == draw_profiles(both)
