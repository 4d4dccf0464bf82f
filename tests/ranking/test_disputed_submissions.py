"""Whose runs they are: two claims leave nobody ranked, but who was shown first keeps the place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from submitted import refused, verified

from hpcai500.errors import UsageError
from hpcai500.results.ranking.entries import Examined
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

HERS, HIS, THEIRS = "SHA256:hers", "SHA256:his", "SHA256:theirs"


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


def statuses(ranking: Ranking) -> dict[str, str]:
    ranked = {one.entry.system: "ranked" for group in ranking.groups for one in group.entries}
    return ranked | {one.examined.file.stem: one.status for one in ranking.unranked}


def reasons(ranking: Ranking) -> dict[str, str]:
    return {one.examined.file.stem: one.reason for one in ranking.unranked}


def claims(ranking: Ranking) -> dict[str, list[str]]:
    return {one["system"]: one["claimed_by"] for one in ranking_document(ranking)["entries"]}


FIRST = submission("first", HERS, 1, 2, 3)
THEFT = submission("theft", HIS, 1, 2, 3)
OTHERS = submission("others", THEIRS, 7, 8, 9)


def test_all_who_claim_one_run_are_disputed_and_name_each_other() -> None:
    third = submission("third", THEIRS, 5, 6, 3)
    ranking = rank([FIRST, THEFT, third, submission("fourth", THEIRS, 7, 8, 9)])
    assert statuses(ranking) == {
        "first": "disputed",
        "theft": "disputed",
        "third": "disputed",
        "fourth": "ranked",
    }
    assert reasons(ranking)["third"] == (
        "1 of 3 runs are those of first.zip, signed with SHA256:hers (the same weights); "
        "1 of 3 runs are those of theft.zip, signed with SHA256:his (the same weights); "
        "decide whose they are: leave a file out, or its key out of --signers"
    )
    assert reasons(ranking)["first"].startswith("3 of 3 runs are those of theft.zip, signed with SHA256:his")


def test_a_dispute_with_many_is_told_in_one_line() -> None:
    thefts = [submission(f"theft{number}", f"SHA256:{number:043d}", 1) for number in range(9)]
    told = reasons(rank([FIRST, *thefts]))["first"]
    assert "; and 7 more; decide whose they are" in told


def test_a_key_that_is_refused_claims_nothing() -> None:
    stranger = refused(system="theft", file="theft.zip", signer=HIS, runs=runs(1, 2, 3))
    assert statuses(rank([FIRST, stranger])) == {"first": "ranked", "theft": "unverified"}


def test_one_signer_who_tells_all_runs_twice_has_one_place_for_them() -> None:
    again = submission("again", HERS, 3, 2, 1, created="2026-12-01T00:00:00Z")
    ranking = rank([FIRST, again])
    assert statuses(ranking) == {"again": "ranked", "first": "duplicate"}
    assert reasons(ranking)["first"] == (
        "the same runs as again.zip, which is ranked because it is newer (2026-12-01T00:00:00Z)"
    )


def test_one_signer_does_not_put_the_best_runs_into_a_second_campaign() -> None:
    best = submission("best", HERS, 1, 2, 4)
    assert statuses(rank([FIRST, best])) == {"first": "disputed", "best": "disputed"}
    assert statuses(rank([FIRST, best], rank([FIRST]).shown)) == {"first": "ranked", "best": "disputed"}


def test_whoever_was_shown_before_keeps_the_place_and_says_who_else_claims_it() -> None:
    ranking = rank([THEFT, FIRST, OTHERS], rank([FIRST]).shown)
    assert statuses(ranking) == {"first": "ranked", "others": "ranked", "theft": "disputed"}
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


def test_a_correction_takes_the_place_of_what_it_corrects() -> None:
    corrected = submission("corrected", HERS, 1, 2, 3, created="2026-12-01T00:00:00Z")
    shown = rank([FIRST]).shown
    assert statuses(rank([corrected, THEFT], shown)) == {"corrected": "ranked", "theft": "disputed"}
    assert statuses(rank([FIRST, corrected], shown)) == {"corrected": "ranked", "first": "duplicate"}


def refused_by_now(one: Examined) -> Examined:
    """The same file, which verification refuses today."""
    failed = refused().verification
    assert one.verification is not None
    assert failed is not None
    return replace(one, verification=replace(one.verification, findings=failed.findings))


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


def with_campaign_of(one: Examined, other: Examined) -> Examined:
    """As if the journal's first line of `other` stood in `one`."""
    assert one.verification is not None
    assert one.verification.manifest is not None
    assert other.verification is not None
    assert other.verification.manifest is not None
    manifest = one.verification.manifest.model_copy(update={"campaign": other.verification.manifest.campaign})
    return replace(one, verification=replace(one.verification, manifest=manifest))


def test_a_campaign_that_was_shown_is_no_way_to_the_runs_of_another() -> None:
    """The thief's own campaign has a place; its first line is then put before the owner's runs."""
    own = submission("own", HIS, 4, 5, 6)
    theft = with_campaign_of(THEFT, own)
    assert statuses(rank([FIRST, theft], rank([own]).shown)) == {"first": "disputed", "theft": "disputed"}
    for files in ([FIRST, theft], [FIRST, theft, own]):
        ranked = statuses(rank(files, rank([FIRST, own]).shown))
        assert (ranked["first"], ranked["theft"]) == ("ranked", "disputed")


def test_the_better_of_two_copies_of_a_campaign_takes_no_place_of_the_other() -> None:
    better = with_campaign_of(submission("better", HERS, 7, 8, 9), FIRST)
    forked = with_campaign_of(submission("forked", HERS, 1, 2, 9), FIRST)
    for copy in (better, forked):
        name = copy.file.stem
        assert statuses(rank([FIRST, copy])) == {"first": "disputed", name: "disputed"}
        ranking = rank([copy], rank([FIRST]).shown)
        assert statuses(ranking) == {name: "disputed"}
        assert reasons(ranking)[name].startswith("the same campaign with other runs: ")


def test_a_bundle_with_more_runs_of_one_campaign_corrects_the_first_one() -> None:
    more = with_campaign_of(submission("more", HERS, 1, 2, 3, 4, attempts=15), FIRST)
    assert statuses(rank([FIRST, more])) == {"more": "ranked", "first": "duplicate"}
    assert statuses(rank([more, THEFT], rank([FIRST]).shown)) == {"more": "ranked", "theft": "disputed"}


def test_a_manifest_under_a_signature_of_somebody_else_does_not_end_what_was_shown() -> None:
    """A thief may hand in the owner's file with a signature that is refused."""
    assert FIRST.verification is not None
    failed = refused().verification
    assert failed is not None
    broken = replace(FIRST, verification=replace(FIRST.verification, findings=failed.findings, signer=None))
    ranking = rank([replace(broken, file=Path("broken.zip")), THEFT], rank([FIRST]).shown)
    assert statuses(ranking) == {"broken": "unverified", "theft": "disputed"}


def test_the_owners_manifest_under_a_signature_of_the_thief_is_not_what_was_shown() -> None:
    assert FIRST.verification is not None
    signed = replace(FIRST, verification=replace(FIRST.verification, signer=HIS), file=Path("signed.zip"))
    shown = rank([FIRST]).shown
    assert statuses(rank([FIRST, signed])) == {"first": "disputed", "signed": "disputed"}
    assert statuses(rank([FIRST, signed], shown)) == {"first": "ranked", "signed": "disputed"}
    assert statuses(rank([signed], shown)) == {"signed": "disputed"}


def test_owners_of_keys_are_known_by_their_keys_with_and_without_a_list_of_names() -> None:
    assert FIRST.verification is not None
    named = replace(FIRST, verification=replace(FIRST.verification, signer=f"{HERS} (someone@lab.example)"))
    again = submission("again", HERS, 1, 2, 3, created="2026-12-01T00:00:00Z")
    assert statuses(rank([named, again])) == {"again": "ranked", "first": "duplicate"}


def shown_in(folder: Path, text: str) -> tuple[Shown, ...]:
    write_site(folder, {RUNS: text})
    return read_shown(folder)


def test_what_a_site_has_shown_is_read_as_it_was_written(tmp_path: Path) -> None:
    shown = rank([FIRST, OTHERS]).shown
    assert list(shown_in(tmp_path / "site", shown_text(shown))) == shown
    assert read_shown(tmp_path / "new") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the document"),
        ('{"schema":"hpcai500-runs-2","submissions":[]}', "schema"),
        ('{"schema":"hpcai500-runs-1","submissions":[{}]}', "submissions.0.manifest_sha256"),
        ('{"schema":"hpcai500-runs-1","submissions":[],"more":1}', "more"),
        ("\udc00", "the document"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"runs.json: damaged at {said}: .*; put back a copy of it, or give --html"):
        shown_in(tmp_path / "site", text)


def test_a_hash_of_a_wrong_length_is_damage(tmp_path: Path) -> None:
    document = json.loads(shown_text(rank([FIRST]).shown))
    document["submissions"][0]["runs"]["trial-01"]["told"]["weights"][0] = "short"
    with pytest.raises(UsageError, match=r"damaged at submissions\.0\.runs\.trial-01\.told\.weights\.0"):
        shown_in(tmp_path / "site", json.dumps(document))
