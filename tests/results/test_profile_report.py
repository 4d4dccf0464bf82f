"""A profile as people and harnesses read it, and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_profile import profile, write_profile

from hpcai500.errors import ExitCode, RecordError
from hpcai500.results.profile import comparison_lines, exit_code, profile_lines, read_profile
from hpcai500.results.profile_figure import draw_profiles

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
    told = list(comparison_lines([(folder, read_profile(folder)) for folder in folders]))
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
