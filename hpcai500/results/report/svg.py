"""Drawings as SVG that takes its colours from the page: light, dark or print. What records say is escaped here."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from hpcai500.results.report.words import legible


def element(name: str, *content: Markup | str, **attributes: str | float) -> Markup:
    """One element; `class_` and `stroke_width` are written `class` and `stroke-width`."""
    opening = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _written(value))
        for key, value in attributes.items()
    )
    inside = Markup("").join(part if isinstance(part, Markup) else escape(legible(part)) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(name, opening, inside)


def drawing(title: str, description: str, width: float, height: float, parts: Iterable[Markup]) -> Markup:
    """A whole drawing, with its text alternative."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}. {description}",
    )


def label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    """Text at a point: `anchor` is start, middle or end."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=kind or "label")


def path(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """A line through `points`."""
    corners = " ".join(f"{_written(x)},{_written(y)}" for x, y in points)
    return element("polyline", points=corners, class_=kind)


def _written(value: str | float) -> str:
    return legible(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
