"""What people and harnesses read of `hpcai500 micro`."""

from __future__ import annotations

from typing import Any

import pytest

from hpcai500.results.micro import figure_of_merit_lines, shown, table_lines


def entry(**more: Any) -> dict[str, Any]:
    base = {
        "value": 1.5e12,
        "unit": "FLOPS",
        "interval": [1.4e12, 1.6e12],
        "spread": 0.01,
        "shape": "m 8, n 8, k 8",
        "call": "torch.mm",
    }
    return base | more


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.2345e12, "FLOPS", "1.23 TFLOPS"),
        (2.5e10, "bytes/s", "25 GB/s"),
        (12.0, "bytes/s", "12 B/s"),
        (5290.6, "samples/s", "5291 samples/s"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_line_for_harnesses_is_never_scaled() -> None:
    document = {"gemm bf16": entry(), "copy": entry(value=2e10, unit="bytes/s")}
    assert list(figure_of_merit_lines(document)) == [
        "HPCAI500 FOM gemm_bf16=1.5e+12 FLOPS",
        "HPCAI500 FOM copy=2e+10 bytes/s",
    ]


def test_a_slow_rank_is_named_with_its_host() -> None:
    rates = [10.0, 10.0, 10.0, 7.0]
    slow = entry(per_rank=rates, slowest={"rank": 3, "host": "node7", "value": 7.0})
    assert "slow: gemm fp32: rank 3 on host node7: 70% of the median rank" in list(table_lines({"gemm fp32": slow}))
    even = entry(per_rank=[10.0, 9.5], slowest={"rank": 1, "host": "node7", "value": 9.5})
    assert not [line for line in table_lines({"gemm fp32": even}) if line.startswith("slow")]


def test_a_measurement_that_was_disturbed_says_so() -> None:
    lines = list(table_lines({"copy": entry(spread=0.5)}))
    assert "noisy: copy: a spread of 50%: end what else runs here, and measure again" in lines
    assert not [line for line in table_lines({"copy": entry()}) if line.startswith("noisy")]


@pytest.mark.parametrize(("enough", "word"), [(True, "more"), (False, "less")])
def test_input_is_compared_with_what_training_takes(enough: bool, word: str) -> None:
    one = entry(value=100.0, unit="samples/s", needed_at_most=50.0, enough=enough)
    lines = list(table_lines({"input ic": one}))
    assert f"input ic: {word} than the 50 samples/s that training at the ceiling would take" in lines


def test_an_all_reduce_of_two_names_is_one_table() -> None:
    row = {"bytes": 16, "seconds": 1e-5, "spread": 0.1, "algorithm_bandwidth": 1.6e6, "bus_bandwidth": 1.6e6}
    link = {"latency_seconds": 5e-6, "bytes_per_second": 1e9}
    one = entry(unit="bytes/s", ranks=2, table=[row], link=link, link_error=0.05)
    lines = list(table_lines({"allreduce node": one, "allreduce system": one}))
    assert len([line for line in lines if line.startswith("  as a ring: latency 5e-06 s, 1 GB/s a link")]) == 1
    assert list(table_lines({"allreduce node": one | {"link": None, "link_error": None}}))
