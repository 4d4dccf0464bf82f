"""Ranks that would not do the same thing are refused, by rank, host and what differs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from file_mailbox import communicator

from hpcai500.comm import identity
from hpcai500.errors import UsageError

ONE, OTHER = "cd34" * 16, "ab12" * 16


def refusals(folder: Path, hosts: tuple[str, ...], facts: list[Mapping[str, str | None]]) -> list[str]:
    """What each rank is told, or "" where it may go on."""
    told = [""] * len(hosts)

    def ask(rank: int) -> None:
        try:
            identity.require_same(communicator(folder, rank, hosts), facts[rank])
        except UsageError as error:
            told[rank] = str(error)

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_ranks_that_are_alike_go_on(tmp_path: Path) -> None:
    facts = {**identity.code_facts(), identity.RECIPE: ONE, identity.DATA: OTHER, identity.CONTENT: None}
    assert refusals(tmp_path, ("n1", "n2"), [facts, dict(facts)]) == ["", ""]


def test_all_ranks_are_told_which_one_differs_in_what_and_what_to_do(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.DATA: ONE}, {identity.DATA: OTHER}, {identity.DATA: ONE}]
    told = refusals(tmp_path, ("n1", "n2", "n2"), facts)
    assert (
        told
        == [
            "rank 1 on host n2 has another data fingerprint (ab12ab12ab12... instead of cd34cd34cd34... on rank 0, "
            "host n1): give every rank the same files: stage them again on that host, or put --data on a shared "
            "file system"
        ]
        * 3
    )


def test_ranks_of_a_host_that_differ_alike_are_told_together(tmp_path: Path) -> None:
    new, old = {identity.TORCH: "2.13.0"}, {identity.TORCH: "2.12.1"}
    told = refusals(tmp_path, ("n1", "n2", "n2", "n3"), [new, old, old, new])
    assert told[3].startswith(
        "ranks 1, 2 on host n2 have another version of torch (2.12.1 instead of 2.13.0 on rank 0, host n1): start every"
    )


def test_many_differences_are_counted_and_not_listed(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.CODE: f"{rank}" * 64} for rank in range(8)]
    told = refusals(tmp_path, tuple(f"n{rank}" for rank in range(8)), facts)[0]
    assert "rank 4 on host n4" in told
    assert told.endswith("; and 3 differences more")


def test_what_a_rank_does_not_know_is_not_compared(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.CONTENT: value} for value in (None, ONE, ONE)]
    assert refusals(tmp_path / "same", ("n1", "n2", "n3"), facts) == [""] * 3
    told = refusals(tmp_path / "other", ("n1", "n2", "n3"), [*facts[:2], {identity.CONTENT: OTHER}])
    assert told[0].startswith(
        "rank 2 on host n3 has another data content (ab12ab12ab12... instead of cd34cd34cd34... on rank 1, host n2)"
    )


def test_the_facts_hold_the_hashes_of_this_software() -> None:
    facts = identity.code_facts()
    assert len(facts[identity.CODE] or "") == len(facts[identity.CORE] or "") == 64
    assert facts[identity.IMAGE] == "none"


def test_a_rank_in_another_image_is_told_to_take_the_same(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.IMAGE: ONE}, {identity.IMAGE: OTHER}, {identity.IMAGE: "none"}]
    told = refusals(tmp_path, ("n1", "n2", "n3"), facts)[0]
    assert told.startswith(
        "rank 1 on host n2 has another image (ab12ab12ab12... instead of cd34cd34cd34... on rank 0, host n1): start "
        "every rank from the same image file"
    )
    assert "rank 2 on host n3 has another image (none instead of cd34cd34cd34..." in told
