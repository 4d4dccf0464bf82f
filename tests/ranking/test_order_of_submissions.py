"""Who stands where: by VFLOPS, level by level, each campaign once; and who does not, with the reason."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from submitted import refused, verified

from hpcai500.results.ranking.entries import Examined
from hpcai500.results.ranking.ranking import Ranking, rank, ranking_document, ranking_lines
from hpcai500.results.verification.finding import Finding, Verification


def places(ranking: Ranking, level: str) -> list[tuple[int, str]]:
    return [
        (one.ranks[level], one.entry.system) for group in ranking.groups for one in group.entries if level in one.ranks
    ]


def reasons(ranking: Ranking) -> dict[str, tuple[str, str]]:
    return {one.examined.file.name: (one.status, one.reason) for one in ranking.unranked}


THREE = [
    verified(900e12, system="Quick", level="free"),
    verified(700e12, system="Middle", level="hardware"),
    verified(500e12, system="Slow", level="system"),
]


def test_most_vflops_come_first_however_the_files_are_given() -> None:
    for seed in range(5):
        files = random.Random(seed).sample(THREE, 3)
        assert places(rank(files), "free") == [(1, "Quick"), (2, "Middle"), (3, "Slow")]


def test_a_submission_also_stands_in_the_lists_of_wider_levels() -> None:
    ranking = rank(THREE)
    assert places(ranking, "hardware") == [(1, "Middle")]
    assert places(ranking, "system") == [(1, "Middle"), (2, "Slow")]
    assert places(ranking, "free") == [(1, "Quick"), (2, "Middle"), (3, "Slow")]
    [own] = [one for one in ranking.groups[0].entries if one.entry.system == "Middle"]
    assert own.rank == 1


def test_benchmarks_and_editions_are_never_compared_with_each_other() -> None:
    files = [
        *THREE,
        verified(1e15, system="Storm", benchmark="ewa"),
        verified(2e15, system="Later", result={"edition": "v3.0"}),
    ]
    ranking = rank(files)
    assert [(group.benchmark, group.edition, len(group.entries)) for group in ranking.groups] == [
        ("ic", "v2.0", 3),
        ("ic", "v3.0", 1),
        ("ewa", "v2.0", 1),
    ]


def test_equals_share_a_rank_and_the_next_counts_them_both() -> None:
    same = [
        verified(500e12, system=name, result={"time_to_quality_seconds": t}) for name, t in (("B", 10.0), ("A", 20.0))
    ]
    ranking = rank([*same, verified(400e12, system="C")])
    assert places(ranking, "hardware") == [(1, "B"), (1, "A"), (3, "C")]


def test_a_refused_file_is_told_with_its_first_failure() -> None:
    ranking = rank([refused(system="Forged")])
    assert not ranking.groups
    assert reasons(ranking) == {
        "Forged.zip": ("unverified", "hash-chain: line 7: expected the hash of the line before")
    }


def test_what_is_verified_and_not_rankable_is_told_with_its_first_reason() -> None:
    files = [
        verified(system="Few", reasons=("3 finished runs; edition v2.0 wants 10", "and more")),
        verified(system="Odd", level=None),
        verified(system="Smoke", reasons=("problem.dataset is synthetic-shapes",), level=None),
    ]
    assert reasons(rank(files)) == {
        "Few.zip": ("not-rankable", "3 finished runs; edition v2.0 wants 10"),
        "Odd.zip": ("not-rankable", "no level allows what its recipe changes"),
        "Smoke.zip": ("not-rankable", "problem.dataset is synthetic-shapes"),
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_numbers_that_are_none_are_not_ranked(value: float) -> None:
    good = verified(system="None")
    assert good.verification is not None
    summary = replace(good.verification.metrics["vflops"], mean=value)
    bad = replace(good, verification=replace(good.verification, metrics={"vflops": summary}))
    assert reasons(rank([bad])) == {"None.zip": ("not-rankable", "its runs give no VFLOPS")}


def test_a_warning_keeps_nobody_from_the_ranking() -> None:
    warned = verified(findings=(Finding("clock", "warning", "a pause of 4 s"),))
    [entry] = ranking_document(rank([warned]))["entries"]
    assert entry["warnings"] == 1


CAMPAIGN = "d" * 64


def test_the_same_campaign_is_ranked_once_and_its_doubles_are_named() -> None:
    first = verified(system="Aurora", campaign=CAMPAIGN, file="first.zip")
    again = verified(system="Aurora II", campaign=CAMPAIGN, file="again.zip", created="2026-11-21T10:00:00Z")
    for files in ([first, again], [again, first]):
        ranking = rank(files)
        assert places(ranking, "hardware") == [(1, "Aurora II")]
        assert reasons(ranking) == {
            "first.zip": (
                "duplicate",
                "the same campaign as again.zip, which is ranked because it is newer (2026-11-21T10:00:00Z)",
            )
        }


def test_one_campaign_of_two_organisations_with_one_key_names_both() -> None:
    one = verified(campaign=CAMPAIGN, organisation="The laboratory", file="one.zip")
    two = verified(campaign=CAMPAIGN, organisation="Its vendor", file="two.zip", created="2026-12-01T00:00:00Z")
    [(_, reason)] = reasons(rank([one, two])).values()
    assert "that one is of Its vendor, this one of The laboratory" in reason


def test_of_one_campaign_the_bundle_that_shows_most_attempts_stands() -> None:
    """Whoever submits again without the failed attempts gains nothing."""
    whole = verified(system="Aurora", campaign=CAMPAIGN, attempts=14, file="whole.zip", created="2026-11-22T00:00:00Z")
    part = verified(800e12, system="Aurora", campaign=CAMPAIGN, attempts=12, file="part.zip")
    [(_, reason)] = reasons(rank([part, whole])).values()
    assert reason == (
        "the same campaign as whole.zip, which is ranked because it shows 14 attempts, this one 12; "
        "the VFLOPS differ: 6e+14 there, 8e+14 here"
    )


def test_a_campaign_that_two_keys_have_signed_is_disputed() -> None:
    """Whoever copies one can write any date into it, or show one attempt more: neither tells whose it is."""
    own = verified(campaign=CAMPAIGN, file="own.zip", signer="SHA256:own")
    copy = verified(
        campaign=CAMPAIGN, file="a-copy.zip", signer="SHA256:thief", attempts=13, created="2026-11-01T00:00:00Z"
    )
    for files in ([own, copy], [copy, own]):
        ranking = rank(files)
        assert not ranking.groups
        assert {name: status for name, (status, _) in reasons(ranking).items()} == {
            "own.zip": "disputed",
            "a-copy.zip": "disputed",
        }
        assert "the same campaign as own.zip, signed with SHA256:own" in reasons(ranking)["a-copy.zip"][1]


def test_a_copy_by_a_key_that_is_refused_disputes_nothing() -> None:
    copy = refused(campaign=CAMPAIGN, file="a-copy.zip", signer="SHA256:thief")
    assert places(rank([verified(campaign=CAMPAIGN), copy]), "hardware") == [(1, "Aurora")]


def test_a_refused_double_is_only_refused() -> None:
    ranking = rank(
        [verified(campaign=CAMPAIGN, file="good.zip"), refused(campaign=CAMPAIGN, attempts=99, file="bad.zip")]
    )
    assert places(ranking, "hardware") == [(1, "Aurora")]
    assert reasons(ranking)["bad.zip"][0] == "unverified"


def test_a_file_without_a_verification_is_listed_with_its_problem() -> None:
    ranking = rank([Examined(Path("lost.zip"), problem="lost.zip: no such file"), *THREE])
    assert reasons(ranking) == {"lost.zip": ("unverified", "lost.zip: no such file")}


def test_the_document_has_every_number_unscaled_and_null_for_unknown() -> None:
    unmeasured = verified(system="Dark", result={"vflops_per_watt": None, "time_to_quality_seconds": None})
    document = ranking_document(rank([verified(600e12, spread=0.02), unmeasured, refused(system="Forged")]))
    json.dumps(document, allow_nan=False)
    first, dark = sorted(document["entries"], key=lambda one: one["system"])
    assert first["vflops"] == pytest.approx(600e12)
    assert 0 < first["vflops_variation"] < 0.01
    assert (first["rank"], first["list"], first["ranks"]) == (1, "hardware", {"hardware": 1, "system": 1, "free": 1})
    assert first["quality"] == {"metric": "top1", "achieved": pytest.approx(0.763), "target": 0.763}
    assert (dark["vflops_per_watt"], dark["time_to_quality_seconds"]) == (None, None)
    assert document["unverified"] == [
        {
            "file": "Forged.zip",
            "system": "Forged",
            "status": "unverified",
            "reason": "hash-chain: line 7: expected the hash of the line before",
            "verdict": "refused",
        }
    ]


def test_level_and_benchmark_choose_lists() -> None:
    ranking = rank([*THREE, verified(system="Storm", benchmark="ewa")])
    chosen = ranking_document(ranking, level="system", benchmark="ic")["entries"]
    assert [(one["rank"], one["system"], one["list"]) for one in chosen] == [
        (1, "Middle", "system"),
        (2, "Slow", "system"),
    ]
    text = "\n".join(ranking_lines(ranking, "system", "ic"))
    assert "system level" in text
    assert "Storm" not in text
    assert "Quick" not in text


def test_the_text_names_each_list_once() -> None:
    lines = list(ranking_lines(rank([verified(system="Alone"), refused(system="Forged")])))
    assert lines[0] == "Image Classification, edition v2.0, hardware level"
    assert "Image Classification, edition v2.0, free level: the same list" in lines
    assert sum("Alone" in line for line in lines) == 1
    assert any("unverified" in line and "hash-chain" in after for line, after in pairwise(lines))
    assert max(map(len, lines)) <= 120
    assert "600 TFLOPS" in lines[2]


HOSTILE = "\x1b[2J\u202eevil\u0000 <script>\nsecond line" + "x" * 5000


def test_a_strangers_name_moves_no_cursor_and_hides_nothing() -> None:
    hostile = dict.fromkeys(("system", "organisation", "accelerators", "framework", "created"), HOSTILE[:1000])
    ranking = rank([verified(**hostile, file="a.zip"), refused(HOSTILE, **hostile, file="b.zip", campaign=CAMPAIGN)])
    for text in [*ranking_lines(ranking), *(json.dumps(ranking_document(ranking), ensure_ascii=False).splitlines())]:
        assert all(letter.isprintable() for letter in text), text
    assert "\\u202e" in ranking.groups[0].entries[0].entry.system
    assert max(map(len, ranking_lines(ranking))) < 900


def test_signs_piled_on_a_letter_are_cut_off() -> None:
    piled = verified(system="Z" + "\u0335" * 500 + "algo")
    assert rank([piled]).groups[0].entries[0].entry.system == "Z\u0335\u0335algo"


def test_a_name_of_nothing_has_a_name() -> None:
    assert rank([verified(system="  \n ")]).groups[0].entries[0].entry.system == "unnamed"


@pytest.mark.parametrize("created", ["yesterday", "9999-99-99", "0001-01-01T00:00:00+23:00"])
def test_a_date_that_is_none_is_unknown(created: str) -> None:
    assert ranking_document(rank([verified(created=created)]))["entries"][0]["date"] is None


def test_results_without_a_manifest_are_not_ranked() -> None:
    nameless = Examined(Path("x.zip"), Verification((), level="free", rankable=True))
    assert reasons(rank([nameless]))["x.zip"] == ("not-rankable", "its runs give no VFLOPS")
