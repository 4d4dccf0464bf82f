"""The nine systems of the project's page: the numbers that it prints come out with n = 10, and not with n = 5."""

from __future__ import annotations

import json

import pytest

from hpcai500.results.ranking.published import (
    Published,
    published_document,
    published_lines,
    published_page,
    rounding_span,
)

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
    assert list(SYSTEMS) == list(PRINTED)
    assert [one.rank for one in SYSTEMS.values()] == list(range(1, 10))
    for name, (vpflops, minutes, quality) in PRINTED.items():
        one = SYSTEMS[name]
        assert (one.vflops, one.seconds, one.quality) == (
            pytest.approx(vpflops * 1e15),
            pytest.approx(minutes * 60),
            quality,
        )


@pytest.mark.parametrize(
    ("name", "petaflops"), [("Fujitsu", 31.43), ("Sony", 10.06), ("Tencent", 6.44), ("Intel", 1.26), ("IBM", 0.744)]
)
def test_ten_reproduces_the_page(name: str, petaflops: float) -> None:
    used = SYSTEMS[name].used
    assert used is not None
    assert used.vflops / 1e15 == pytest.approx(petaflops, abs=0.005)


@pytest.mark.parametrize("name", REPRODUCED)
def test_rounding_explains_what_ten_leaves_and_never_what_five_leaves(name: str) -> None:
    one = SYSTEMS[name]
    assert one.used is not None
    assert one.stated is not None
    assert one.used.explains
    assert not one.stated.explains
    assert abs(one.used.ratio - 1) < 0.017 < abs(one.stated.ratio - 1)
    assert "was computed with n = 10" in one.explanation


def test_the_first_by_hand() -> None:
    """23e9 x 90 x 1281167 / 72 s = 36.83 PFLOPS, as V2.0 Fig. 1 has it; times 0.8534 (n = 10) or 0.9238 (n = 5)."""
    one = SYSTEMS["Fujitsu"]
    assert one.flops == pytest.approx(36.834e15, rel=1e-4)
    assert one.stated is not None
    assert one.used is not None
    assert one.used.vflops == pytest.approx(36.834e15 * (0.751 / 0.763) ** 10, rel=1e-4)
    assert one.stated.vflops == pytest.approx(36.834e15 * (0.751 / 0.763) ** 5, rel=1e-4)
    assert tuple(end / 1e15 for end in one.used.interval) == pytest.approx((29.97, 33.02), abs=0.02)


def test_what_google_lacks_is_unknown_and_said() -> None:
    one = SYSTEMS["Google"]
    assert (one.quality, one.stated, one.used) == (None, None, None)
    assert one.flops == pytest.approx(20.09e15, rel=1e-3)
    assert "The quality is not published" in one.explanation
    assert "20.10 and 2.2 minutes stand in its text" in " ".join(one.notes)


def test_facebook_is_explained_by_neither() -> None:
    one = SYSTEMS["Facebook"]
    assert one.stated is not None
    assert one.used is not None
    assert one.stated.vflops == one.used.vflops == one.flops
    assert not one.used.explains
    assert "63.1 minutes" in one.explanation


@pytest.mark.parametrize(
    ("text", "low", "high"), [("1.2", "1.15", "1.25"), ("15", "14.5", "15.5"), ("75.0", "74.95", "75.05")]
)
def test_the_last_digit_tells_what_was_rounded(text: str, low: str, high: str) -> None:
    assert tuple(map(str, rounding_span(text))) == (low, high)


def test_the_document_has_all_three_numbers_or_null() -> None:
    document = json.loads(json.dumps(published_document(published_page()), allow_nan=False))
    by_name = {one["system"]: one for one in document}
    assert by_name["Tencent"]["published_vflops"] == pytest.approx(6.44e15)
    assert by_name["Tencent"]["vflops_n10"] == pytest.approx(6.44e15, rel=1e-3)
    assert by_name["Tencent"]["vflops_n5"] == pytest.approx(6.57e15, rel=1e-3)
    assert (by_name["Google"]["vflops_n5"], by_name["Google"]["vflops_n10"], by_name["Google"]["quality"]) == (
        None,
    ) * 3
    assert not any(one["verified"] for one in document)


def test_the_text_says_that_nothing_of_it_is_verified() -> None:
    lines = list(published_lines(published_page()))
    assert "unverified" in lines[1]
    assert len([line for line in lines if line.strip().startswith(tuple("123456789")) and "  " in line.strip()]) == 9
    assert any("n = 5" in line and "n = 10" in line for line in lines)


def test_the_words_have_the_numbers_that_are_computed() -> None:
    for name in REPRODUCED:
        one = SYSTEMS[name]
        assert one.used is not None
        assert one.stated is not None
        assert f"n = 10 gives {one.used.vflops / 1e15:.2f} PFLOPS" in one.explanation
        assert f"n = 5 gives {one.stated.vflops / 1e15:.2f} PFLOPS, {one.stated.ratio - 1:.1%}".replace("%", " %") in (
            one.explanation
        )
    for name in ("Google", "Facebook"):
        one = SYSTEMS[name]
        assert one.flops is not None
        assert f"{one.flops / 1e15:.2f} PFLOPS" in one.explanation


def test_times_in_titles_give_what_the_words_say() -> None:
    for name, seconds, petaflops in (("Fujitsu", 74.7, "30.30"), ("Sony", 224.0, "9.97")):
        one = SYSTEMS[name]
        assert one.used is not None
        assert one.seconds is not None
        assert f"{one.used.vflops * one.seconds / seconds / 1e15:.2f}" == petaflops
        assert f"{seconds:g} seconds, which with n = 10 would give {petaflops} PFLOPS" in one.explanation


def test_no_row_claims_more_than_the_page_has() -> None:
    assert all(
        isinstance(one, Published) and one.accelerators and one.framework and one.source for one in SYSTEMS.values()
    )
