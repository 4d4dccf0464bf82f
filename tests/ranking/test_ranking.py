"""Who stands where and who does not: by VFLOPS, level by level, each campaign and each run once; what was published."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders.submissions import refused, verified

from hpcai500.errors import UsageError
from hpcai500.results.ranking.entries import Examined
from hpcai500.results.ranking.published import published_document, published_lines, published_page, rounding_span
from hpcai500.results.ranking.ranking import (
    RUNS,
    Ranking,
    Shown,
    rank,
    ranking_document,
    ranking_lines,
    read_shown,
    shown_text,
)
from hpcai500.results.ranking.site_folder import write_site
from hpcai500.results.verification.copies import RunFacts, Runs
from hpcai500.results.verification.finding import Finding, Verification

CAMPAIGN = "d" * 64
HERS, HIS, THEIRS = "SHA256:hers", "SHA256:his", "SHA256:theirs"
LATER = "2026-12-01T00:00:00Z"
THREE = [
    verified(900e12, system="Quick", level="free"),
    verified(700e12, system="Middle", level="hardware"),
    verified(500e12, system="Slow", level="system"),
]


def places(ranking: Ranking, level: str = "hardware") -> list[tuple[int, str]]:
    ranked = [one for group in ranking.groups for one in group.entries]
    return [(one.ranks[level], one.entry.system) for one in ranked if level in one.ranks]


def statuses(ranking: Ranking) -> dict[str, str]:
    """By the names of files without `.zip`."""
    ranked = {one.entry.examined.file.stem: "ranked" for group in ranking.groups for one in group.entries}
    return ranked | {one.examined.file.stem: one.status for one in ranking.unranked}


def reasons(ranking: Ranking) -> dict[str, str]:
    return {one.examined.file.stem: one.reason for one in ranking.unranked}


def test_most_vflops_come_first_in_the_own_list_and_in_those_of_wider_levels() -> None:
    for seed in range(5):
        ranking = rank(random.Random(seed).sample(THREE, 3))
        assert places(ranking, "hardware") == [(1, "Middle")]
        assert places(ranking, "system") == [(1, "Middle"), (2, "Slow")]
        assert places(ranking, "free") == [(1, "Quick"), (2, "Middle"), (3, "Slow")]
        [own] = [one for one in ranking.groups[0].entries if one.entry.system == "Middle"]
        assert own.rank == 1


def test_benchmarks_and_editions_are_never_compared_with_each_other() -> None:
    storm = verified(1e15, system="Storm", benchmark="ewa")
    ranking = rank([*THREE, storm, verified(2e15, system="Later", result={"edition": "v3.0"})])
    groups = [(group.benchmark, group.edition, len(group.entries)) for group in ranking.groups]
    assert groups == [("ic", "v2.0", 3), ("ic", "v3.0", 1), ("ewa", "v2.0", 1)]


def test_equals_share_a_rank_and_the_next_counts_them_both() -> None:
    same = [verified(500e12, system=name, result={"time_to_quality_seconds": t}) for name, t in (("B", 10), ("A", 20))]
    assert places(rank([*same, verified(400e12, system="C")])) == [(1, "B"), (1, "A"), (3, "C")]


def with_vflops(value: float) -> Examined:
    """A submission whose runs are said to have this mean."""
    good = verified(system="x")
    metrics = {"vflops": replace(good.verification.metrics["vflops"], mean=value)}
    return replace(good, verification=replace(good.verification, metrics=metrics))


@pytest.mark.parametrize(
    ("file", "status", "reason"),
    [
        (refused(system="x"), "unverified", "hash-chain: line 7: expected the hash of the line before"),
        (verified(system="x", reasons=("3 finished runs", "and more")), "not-rankable", "3 finished runs"),
        (verified(system="x", level=None), "not-rankable", "no level allows what its recipe changes"),
        (verified(system="x", reasons=("made data",), level=None), "not-rankable", "made data"),
        (with_vflops(math.nan), "not-rankable", "its runs have no VFLOPS"),
        (with_vflops(math.inf), "not-rankable", "its runs have no VFLOPS"),
        (with_vflops(0.0), "not-rankable", "its runs have no VFLOPS"),
        (Examined(Path("x.zip"), problem="x.zip: no such file"), "unverified", "x.zip: no such file"),
        (
            Examined(Path("x.zip"), Verification((), level="free", rankable=True)),
            "not-rankable",
            "its runs have no VFLOPS",
        ),
    ],
    ids=["refused", "few", "no level", "made", "nan", "inf", "zero", "lost", "without a manifest"],
)
def test_who_is_not_ranked_is_told_with_the_first_reason(file: Examined, status: str, reason: str) -> None:
    ranking = rank([file, *THREE])
    assert len(places(ranking, "free")) == 3
    assert [(one.status, one.reason) for one in ranking.unranked] == [(status, reason)]


def test_a_warning_keeps_nobody_from_the_ranking() -> None:
    warned = verified(findings=(Finding("clock", "warning", "a pause of 4 s"),))
    [entry] = ranking_document(rank([warned]))["entries"]
    assert entry["warnings"] == 1


def test_the_same_campaign_is_ranked_once_and_its_doubles_are_named() -> None:
    first = verified(system="Aurora", campaign=CAMPAIGN, organisation="The laboratory", file="first.zip")
    again = verified(system="Aurora II", campaign=CAMPAIGN, organisation="Its vendor", file="again.zip", created=LATER)
    for files in ([first, again], [again, first]):
        ranking = rank(files)
        assert places(ranking) == [(1, "Aurora II")]
        assert statuses(ranking) == {"again": "ranked", "first": "duplicate"}
        said = f"the same campaign as again.zip, which is ranked because it is newer ({LATER})"
        assert reasons(ranking)["first"].startswith(said)
        assert "that one is of Its vendor, this one of The laboratory" in reasons(ranking)["first"]
    # Of one organisation there is nothing more to say.
    alike = verified(system="Aurora", campaign=CAMPAIGN, organisation="Its vendor", file="first.zip")
    assert reasons(rank([alike, again])) == {"first": said}


def test_of_one_campaign_the_bundle_that_shows_most_attempts_stands() -> None:
    """Whoever submits again without the failed attempts gains nothing."""
    whole = verified(system="Aurora", campaign=CAMPAIGN, attempts=14, file="whole.zip", created=LATER)
    part = verified(800e12, system="Aurora", campaign=CAMPAIGN, attempts=12, file="part.zip")
    assert reasons(rank([part, whole])) == {
        "part": "the same campaign as whole.zip, which is ranked because it has 14 attempts, this one 12; "
        "the VFLOPS differ: 6e+14 there, 8e+14 here"
    }


def test_a_campaign_that_two_keys_have_signed_is_disputed() -> None:
    """Whoever copies one can write any date into it, or show one attempt more: neither tells whose it is."""
    own = verified(campaign=CAMPAIGN, file="own.zip", signer=HERS)
    copy = verified(campaign=CAMPAIGN, file="copy.zip", signer=HIS, attempts=13, created="2026-11-01T00:00:00Z")
    for files in ([own, copy], [copy, own]):
        ranking = rank(files)
        assert statuses(ranking) == {"own": "disputed", "copy": "disputed"}
        assert f"the same campaign as own.zip, signed with {HERS}" in reasons(ranking)["copy"]
    stranger = refused(campaign=CAMPAIGN, file="copy.zip", signer=HIS, attempts=99)
    assert statuses(rank([own, stranger])) == {"own": "ranked", "copy": "unverified"}


# Whose runs they are: two claims leave nobody ranked, but who was shown first keeps the place.


def runs(*numbers: int) -> Runs:
    """Made-up runs: two with one number are the same one."""
    return {
        f"trial-{place:02d}": RunFacts(
            told={"weights": [f"{number:08x}{epoch:08x}" for epoch in range(3)]}, devices=[], jobs=[]
        )
        for place, number in enumerate(numbers, 1)
    }


def submission(name: str, signer: str, *numbers: int, **changes: Any) -> Examined:
    return verified(system=name, file=f"{name}.zip", signer=signer, runs=runs(*numbers), **changes)


def claims(ranking: Ranking) -> dict[str, list[str]]:
    return {one["system"]: one["claimed_by"] for one in ranking_document(ranking)["entries"]}


def judged(one: Examined, **changes: Any) -> Examined:
    """The same file, of which verification says something else."""
    return replace(one, verification=replace(one.verification, **changes))


def refused_by_now(one: Examined) -> Examined:
    """The same file, which verification refuses today."""
    return judged(one, findings=refused().verification.findings)


def with_campaign_of(one: Examined, other: Examined) -> Examined:
    """As if the journal's first line of `other` stood in `one`."""
    campaign = other.verification.manifest.campaign
    return judged(one, manifest=one.verification.manifest.model_copy(update={"campaign": campaign}))


FIRST, THEFT = submission("first", HERS, 1, 2, 3), submission("theft", HIS, 1, 2, 3)
OTHERS, OWN = submission("others", THEIRS, 7, 8, 9), submission("own", HIS, 4, 5, 6)
AGAIN = submission("again", HERS, 3, 2, 1, created=LATER)
BEST = submission("best", HERS, 1, 2, 4)
BETTER = with_campaign_of(submission("better", HERS, 7, 8, 9), FIRST)
FORKED = with_campaign_of(submission("forked", HERS, 1, 2, 9), FIRST)
MORE = with_campaign_of(submission("more", HERS, 1, 2, 3, 4, attempts=15), FIRST)
# The thief's own campaign has a place; its first line is then put before the owner's runs.
MASKED = with_campaign_of(THEFT, OWN)
# The owner's manifest under a signature that is refused, and under one of the thief.
BROKEN = replace(judged(refused_by_now(FIRST), signer=None), file=Path("broken.zip"))
SIGNED = replace(judged(FIRST, signer=HIS), file=Path("signed.zip"))
NAMED = judged(FIRST, signer=f"{HERS} (someone@lab.example)")


@pytest.mark.parametrize(
    ("files", "shown", "expected"),
    [
        pytest.param([FIRST, THEFT, OTHERS], [], "disputed disputed ranked", id="all who claim one run"),
        pytest.param([FIRST, refused_by_now(THEFT)], [], "ranked unverified", id="a refused key claims nothing"),
        pytest.param([FIRST, AGAIN], [], "duplicate ranked", id="one signer has one place for the same runs"),
        pytest.param([NAMED, AGAIN], [], "duplicate ranked", id="keys count, with and without names"),
        pytest.param([FIRST, BEST], [], "disputed disputed", id="the best runs in a second campaign"),
        pytest.param([FIRST, BEST], [FIRST], "ranked disputed", id="the best runs in a second campaign, later"),
        pytest.param([THEFT, FIRST, OTHERS], [FIRST], "disputed ranked ranked", id="whoever was shown keeps the place"),
        pytest.param([AGAIN, THEFT], [FIRST], "ranked disputed", id="a correction takes the place"),
        pytest.param([FIRST, AGAIN], [FIRST], "duplicate ranked", id="a correction beside what it corrects"),
        pytest.param([FIRST, MASKED], [OWN], "disputed disputed", id="a shown campaign is no way to runs of another"),
        pytest.param([FIRST, MASKED], [FIRST, OWN], "ranked disputed", id="nor if both were shown"),
        pytest.param([FIRST, MASKED, OWN], [FIRST, OWN], "ranked disputed ranked", id="nor beside the own one"),
        pytest.param([FIRST, BETTER], [], "disputed disputed", id="another copy of the campaign"),
        pytest.param([FIRST, FORKED], [], "disputed disputed", id="a copy with other runs"),
        pytest.param([FIRST, MORE], [], "duplicate ranked", id="more runs of one campaign correct it"),
        pytest.param([MORE, THEFT], [FIRST], "ranked disputed", id="more runs, once it was shown"),
        pytest.param([BROKEN, THEFT], [FIRST], "unverified disputed", id="under a signature that is refused"),
        pytest.param([FIRST, SIGNED], [], "disputed disputed", id="the owner's manifest, signed by the thief"),
        pytest.param([FIRST, SIGNED], [FIRST], "ranked disputed", id="the same, once it was shown"),
        pytest.param([SIGNED], [FIRST], "disputed", id="the same, without the owner's file"),
    ],
)
def test_whose_runs_they_are(files: list[Examined], shown: list[Examined], expected: str) -> None:
    found = statuses(rank(files, rank(shown).shown if shown else ()))
    assert [found[one.file.stem] for one in files] == expected.split()


def test_a_dispute_names_all_who_claim_a_run_in_one_line() -> None:
    told = reasons(rank([FIRST, THEFT, submission("third", THEIRS, 5, 6, 3)]))
    assert told["third"] == (
        "1 of 3 runs are those of first.zip, signed with SHA256:hers (the same weights); "
        "1 of 3 runs are those of theft.zip, signed with SHA256:his (the same weights); "
        "to decide, leave one file out, or its key out of --signers"
    )
    assert told["first"].startswith("3 of 3 runs are those of theft.zip, signed with SHA256:his")
    thefts = [submission(f"theft{number}", f"SHA256:{number:043d}", 1) for number in range(9)]
    assert "; and 7 more; to decide, leave one file out" in reasons(rank([FIRST, *thefts]))["first"]
    same = reasons(rank([FIRST, AGAIN]))["first"]
    assert same == f"the same runs as again.zip, which is ranked because it is newer ({LATER})"


def test_whoever_keeps_a_place_says_who_else_claims_it() -> None:
    ranking = rank([THEFT, FIRST, OTHERS], rank([FIRST]).shown)
    claim = "theft.zip, signed with SHA256:his: 3 of 3 runs are those of this submission (the same weights)"
    assert claims(ranking) == {"first": [claim], "others": []}
    assert any(f"also claimed by {claim}" in line for line in ranking_lines(ranking))


def test_what_was_shown_is_not_forgotten_when_its_file_is_left_out() -> None:
    shown = rank([FIRST]).shown
    for _ in range(2):
        ranking = rank([THEFT, OTHERS], shown)
        assert statuses(ranking) == {"others": "ranked", "theft": "disputed"}
        assert "are those of first, which the site has shown, signed with SHA256:hers" in reasons(ranking)["theft"]
        shown = ranking.shown
    again = rank([FIRST, THEFT], shown)
    assert statuses(again) == {"first": "ranked", "theft": "disputed"}
    assert sorted(one.system for one in again.shown) == ["first", "others"]
    for copy in (BETTER, FORKED):
        [(name, reason)] = reasons(rank([copy], rank([FIRST]).shown)).items()
        assert (name, reason.startswith("the same campaign with other runs: ")) == (copy.file.stem, True)


def test_what_a_key_has_shown_is_forgotten_once_it_is_not_in_the_list() -> None:
    """A thief that came first."""
    ranking = rank([FIRST, refused_by_now(THEFT)], rank([THEFT]).shown, frozenset({HERS}))
    assert statuses(ranking) == {"first": "ranked", "theft": "unverified"}
    assert [one.signer for one in ranking.shown] == [HERS]


def test_nobody_takes_runs_over_once_their_owners_key_has_expired() -> None:
    listed = frozenset({HERS, HIS})
    expired = rank([refused_by_now(FIRST), THEFT], rank([FIRST]).shown, listed)
    assert statuses(expired) == {"first": "unverified", "theft": "disputed"}
    assert statuses(rank([FIRST, THEFT], expired.shown, listed)) == {"first": "ranked", "theft": "disputed"}


def shown_in(folder: Path, text: str) -> tuple[Shown, ...]:
    write_site(folder, {RUNS: text})
    return read_shown(folder)


def test_what_a_site_has_shown_is_read_as_it_was_written(tmp_path: Path) -> None:
    shown = rank([FIRST, OTHERS]).shown
    assert list(shown_in(tmp_path / "site", shown_text(shown))) == shown
    assert read_shown(tmp_path / "new") == ()


def with_short_hash() -> str:
    document = json.loads(shown_text(rank([FIRST]).shown))
    document["submissions"][0]["runs"]["trial-01"]["told"]["weights"][0] = "short"
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the document"),
        ('{"schema":"hpcai500-runs-2","submissions":[]}', "schema"),
        ('{"schema":"hpcai500-runs-1","submissions":[{}]}', "submissions.0.manifest_sha256"),
        ('{"schema":"hpcai500-runs-1","submissions":[],"more":1}', "more"),
        ("\udc00", "the document"),
        (with_short_hash(), r"submissions\.0\.runs\.trial-01\.told\.weights\.0"),
    ],
    ids=["nothing", "schema", "a field that lacks", "a field too many", "half a character", "a short hash"],
)
def test_what_cannot_be_read_is_an_error_with_its_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"runs.json: damaged at {said}: .*; restore a copy of it, or give --html"):
        shown_in(tmp_path / "site", text)


# What is said of it all.


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
            "file": "Forged.zip", "system": "Forged", "status": "unverified", "verdict": "refused",
            "reason": "hash-chain: line 7: expected the hash of the line before",
        }
    ]  # fmt: skip


def test_level_and_benchmark_choose_lists() -> None:
    ranking = rank([*THREE, verified(system="Storm", benchmark="ewa")])
    chosen = ranking_document(ranking, level="system", benchmark="ic")["entries"]
    told = [(one["rank"], one["system"], one["list"]) for one in chosen]
    assert told == [(1, "Middle", "system"), (2, "Slow", "system")]
    text = "\n".join(ranking_lines(ranking, "system", "ic"))
    assert ("system level" in text, "Storm" in text, "Quick" in text) == (True, False, False)


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


def test_a_name_is_as_long_and_as_high_as_a_line_and_never_nothing() -> None:
    names = {"Z" + "\u0335" * 500 + "algo": "Z\u0335\u0335algo", "  \n ": "unnamed"}
    for given, shown in names.items():
        assert rank([verified(system=given)]).groups[0].entries[0].entry.system == shown


@pytest.mark.parametrize("created", ["yesterday", "9999-99-99", "0001-01-01T00:00:00+23:00"])
def test_a_date_that_is_none_is_unknown(created: str) -> None:
    assert ranking_document(rank([verified(created=created)]))["entries"][0]["date"] is None


# The nine systems of the project's page: the numbers that it prints come out with n = 10, and not with n = 5.


SYSTEMS = {one.system: one for one in published_page().systems}
# As the page prints them.
PRINTED = {
    "Fujitsu": (31.41, 1.2, 0.751),
    "Google": (20.10, 2.2, None),
    "Sony": (10.02, 3.7, 0.750),
    "Tencent": (6.44, 6.6, 0.760),
    "Preferred Network": (2.41, 15, 0.749),
    "Berkeley": (1.95, 20, 0.754),
    "Intel": (1.27, 28, 0.746),
    "IBM": (0.75, 50, 0.750),
    "Facebook": (0.70, 60, 0.763),
}
REPRODUCED = ("Fujitsu", "Sony", "Tencent", "Preferred Network", "Berkeley", "Intel", "IBM")


def test_all_nine_are_here_as_the_page_prints_them() -> None:
    assert [one.rank for one in SYSTEMS.values()] == list(range(1, 10))
    assert all(one.accelerators and one.framework and one.source for one in SYSTEMS.values())
    as_printed = {name: (one.vflops / 1e15, one.seconds / 60, one.quality) for name, one in SYSTEMS.items()}
    assert list(as_printed) == list(PRINTED)
    for name, printed in PRINTED.items():
        assert as_printed[name] == (pytest.approx(printed[0]), pytest.approx(printed[1]), printed[2])


@pytest.mark.parametrize("name", REPRODUCED)
def test_rounding_explains_what_ten_leaves_and_never_what_five_leaves(name: str) -> None:
    one = SYSTEMS[name]
    used, stated = one.used, one.stated
    assert (used.explains, stated.explains) == (True, False)
    assert abs(used.ratio - 1) < 0.017 < abs(stated.ratio - 1)
    assert "was computed with n = 10" in one.explanation
    assert f"n = 10 gives {used.vflops / 1e15:.2f} PFLOPS" in one.explanation
    assert f"n = 5 gives {stated.vflops / 1e15:.2f} PFLOPS, {100 * (stated.ratio - 1):.1f} %" in one.explanation


def test_numbers_by_hand() -> None:
    """23e9 x 90 x 1281167 / 72 s = 36.83 PFLOPS, as V2.0 Fig. 1 has it; times 0.8534 (n = 10) or 0.9238 (n = 5)."""
    one = SYSTEMS["Fujitsu"]
    assert one.flops == pytest.approx(36.834e15, rel=1e-4)
    assert one.used.vflops == pytest.approx(36.834e15 * (0.751 / 0.763) ** 10, rel=1e-4)
    assert one.stated.vflops == pytest.approx(36.834e15 * (0.751 / 0.763) ** 5, rel=1e-4)
    assert tuple(end / 1e15 for end in one.used.interval) == pytest.approx((29.97, 33.02), abs=0.02)
    computed = {"Fujitsu": 31.43, "Sony": 10.06, "Tencent": 6.44, "Intel": 1.26, "IBM": 0.744}
    assert {name: SYSTEMS[name].used.vflops / 1e15 for name in computed} == pytest.approx(computed, abs=0.005)


def test_what_google_lacks_is_unknown_and_what_facebook_has_is_explained_by_neither() -> None:
    google, facebook = SYSTEMS["Google"], SYSTEMS["Facebook"]
    assert (google.quality, google.stated, google.used) == (None, None, None)
    assert google.flops == pytest.approx(20.09e15, rel=1e-3)
    assert "The quality is not published" in google.explanation
    assert "20.10 and 2.2 minutes stand in its text" in " ".join(google.notes)
    assert facebook.stated.vflops == facebook.used.vflops == facebook.flops
    assert not facebook.used.explains
    assert "63.1 minutes" in facebook.explanation
    for one in (google, facebook):
        assert f"{one.flops / 1e15:.2f} PFLOPS" in one.explanation


@pytest.mark.parametrize(
    ("text", "low", "high"), [("1.2", "1.15", "1.25"), ("15", "14.5", "15.5"), ("75.0", "74.95", "75.05")]
)
def test_the_last_digit_tells_what_was_rounded(text: str, low: str, high: str) -> None:
    assert tuple(map(str, rounding_span(text))) == (low, high)


def test_the_document_has_all_three_numbers_or_null() -> None:
    document = json.loads(json.dumps(published_document(published_page()), allow_nan=False))
    tencent, google = (next(one for one in document if one["system"] == name) for name in ("Tencent", "Google"))
    numbers = [tencent[key] for key in ("published_vflops", "vflops_n10", "vflops_n5")]
    assert numbers == pytest.approx([6.44e15, 6.44e15, 6.57e15], rel=1e-3)
    assert (google["vflops_n5"], google["vflops_n10"], google["quality"]) == (None, None, None)
    assert not any(one["verified"] for one in document)


def test_the_text_says_that_nothing_of_it_is_verified() -> None:
    lines = list(published_lines(published_page()))
    assert "unverified" in lines[1]
    assert len([line for line in lines if line.strip().startswith(tuple("123456789")) and "  " in line.strip()]) == 9
    assert any("n = 5" in line and "n = 10" in line for line in lines)


def test_times_in_titles_give_what_the_words_say() -> None:
    for name, seconds, petaflops in (("Fujitsu", 74.7, "30.30"), ("Sony", 224.0, "9.97")):
        one = SYSTEMS[name]
        assert f"{one.used.vflops * one.seconds / seconds / 1e15:.2f}" == petaflops
        assert f"{seconds:g} seconds, which with n = 10 would give {petaflops} PFLOPS" in one.explanation
