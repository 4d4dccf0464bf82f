"""What libraries throw becomes one line that says what was tried."""

from __future__ import annotations

import pytest

from hpcai500.comm.communicator import as_run_error
from hpcai500.errors import RunError


@pytest.mark.parametrize(
    ("thrown", "told"),
    [
        (
            "[/__w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:20100."
            " This is typically caused by a remote worker crashing. Check the logs.",
            "Connection closed by peer [127.0.0.1]:20100",
        ),
        (
            "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:152] timed out, remote=[::1]:19845",
            "Gloo connectFullMesh failed with timed out, remote=[::1]:19845",
        ),
        (
            "NCCL error in: ProcessGroupNCCL.cpp:3353\nframe #0: c10\nframe #1: c10d",
            "NCCL error in: ProcessGroupNCCL.cpp:3353",
        ),
        ("", "RuntimeError"),
    ],
)
def test_a_library_error_is_one_line_without_source_and_stack(thrown: str, told: str) -> None:
    with pytest.raises(RunError) as raised, as_run_error("Gloo", "all-reduce"):
        raise RuntimeError(thrown)
    expected = f"all-reduce over Gloo failed: {told}; another rank has ended or cannot be reached"
    assert str(raised.value) == expected


def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), as_run_error("Gloo", "all-reduce"):
        raise ZeroDivisionError
