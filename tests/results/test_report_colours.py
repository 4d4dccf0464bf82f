"""The page's colours: text can be read on every ground, and curves be told apart, light and dark."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import pytest

STYLE = files("hpcai500.results.report").joinpath("templates/style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
)
# WCAG 2.2: 4.5 for text (AA), 3 for what is drawn.
TEXT, DRAWN = 4.5, 3.0


def channels(colour: str) -> list[float]:
    return [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]


def luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_its_ground(scheme: dict[str, str]) -> None:
    pairs = [(text, ground) for text in ("ink", "soft", "link", "good", "bad", "flag") for ground in ("paper", "card")]
    pairs += [
        ("good", "good-card"),
        ("bad", "bad-card"),
        ("flag", "good-card"),
        ("flag", "bad-card"),
        ("ink", "bad-card"),
    ]
    poor = {pair: contrast(*(scheme[name] for name in pair)) for pair in pairs}
    assert not {pair: ratio for pair, ratio in poor.items() if ratio < TEXT}


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_curves_stand_out_from_the_paper(scheme: dict[str, str]) -> None:
    # Orange is for surfaces, which have their names and numbers beside them.
    assert all(contrast(scheme[f"c{n}"], scheme["paper"]) >= DRAWN for n in (1, 3, 4, 5, 6))


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_parts_of_a_bar_differ_also_without_red_and_green_apart(scheme: dict[str, str]) -> None:
    """Deuteranopia by Viénot, Brettel and Mollon (1999), on linear channels: red and green become one."""
    for one, other in combinations(("c2", "c1", "c4", "c6"), 2):
        seen = [[0.29 * r + 0.71 * g, b] for r, g, b in (channels(scheme[name]) for name in (one, other))]
        assert max(abs(left - right) for left, right in zip(*seen, strict=True)) > 0.1, (one, other)
