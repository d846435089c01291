"""Charts as SVG in a page, each with a sentence and a table that say the same in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dprec.reporting.finished import Curve
from dprec.reporting.html import folded, number, table

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 44
NAMES, NUMBERS, ROW = 210, 84, 32  # of charts with names at their left


def line_chart(title: str, curve: Curve, x_name: str, y_name: str) -> str:
    """A figure with one line; empty without two points."""
    if len(curve) < 2:
        return ""
    scale = Scale.of(curve)
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(scale.place, curve))
    (first_x, first), (last_x, last) = curve[0], curve[-1]
    said = f"{y_name} is {number(first)} at {x_name} {number(first_x)} and {number(last)} at {x_name} {number(last_x)}."
    rows = [[number(x), number(y)] for x, y in curve]
    body = scale.axes(x_name, y_name) + f'<polyline class="line" points="{places}"/>'
    return _figure(title, said, body, table([x_name, y_name], rows))


def bar_chart(title: str, bars: Sequence[tuple[str, float, bool]], what: str) -> str:
    """A figure with a bar for each name; those that are not the page's own are grey."""
    most = max((value for _, value, _ in bars), default=0.0)
    if most <= 0:
        return ""
    parts = []
    for place, (name, value, own) in enumerate(bars):
        y, length = TOP + place * ROW, value / most * (WIDTH - NAMES - NUMBERS)
        kind = "bar" if own else "other"
        parts.append(_name(name, y, own))
        parts.append(f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{length:.1f}" height="{ROW - 10}"/>')
        parts.append(f'<text x="{NAMES + length + 6:.1f}" y="{y + ROW / 2}">{number(value)}</text>')
    said = "; ".join(f"{name}: {number(value)}" for name, value, _ in bars)
    rows = [[escape(name), number(value)] for name, value, _ in bars]
    return _figure(title, f"{what}: {said}.", "".join(parts), table(["", what], rows), TOP + len(bars) * ROW)


# Whose ε is known, what it protects, and which values; docs/questions.md names the sources.
OTHERS = (
    ("DPFormer's paper, a user", (5.0, 8.0, 10.0)),
    ("AdaFEST's paper, a record", (1.0, 3.0, 8.0)),
    ("Apple, a user's day", (4.0, 8.0, 16.0)),
)
STRONG, REASONABLE = 1.0, 10.0  # at most, as "How to DP-fy ML" (2023) calls them


def epsilon_scale(epsilon: float, unit: str) -> str:
    """A figure of ε on a logarithmic scale, above those that others use."""
    low, high = min(0.1, epsilon / 2), max(40.0, epsilon * 2)

    def across(value: float) -> float:
        return NAMES + math.log(value / low) / math.log(high / low) * (WIDTH - NAMES - RIGHT)

    rows = [(f"this run, a {unit}", (epsilon,)), *OTHERS]
    bottom = TOP + ROW * (len(rows) + 1)
    parts = []
    zones = ((low, STRONG, "strong"), (STRONG, REASONABLE, "reasonable"), (REASONABLE, high, "weak"))
    for begin, end, name in zones:
        if end > low:
            middle = (across(max(begin, low)) + across(end)) / 2
            parts.append(f'<text x="{middle:.1f}" y="{TOP + 10}" text-anchor="middle">{name}</text>')
    for tick in (0.01, 0.1, STRONG, REASONABLE, 100.0, 1000.0):
        if low <= tick <= high:
            x = across(tick)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(tick)}</text>')
    for place, (name, values) in enumerate(rows, start=1):
        y, own = TOP + place * ROW, place == 1
        parts.append(_name(name, y, own))
        middle, kind = y + ROW / 2 - 5, "point" if own else "other"
        first, last = across(values[0]), across(values[-1])
        parts.append(f'<line class="other" x1="{first:.1f}" x2="{last:.1f}" y1="{middle}" y2="{middle}"/>')
        size = 6 if own else 4
        parts += [f'<circle class="{kind}" cx="{across(value):.1f}" cy="{middle}" r="{size}"/>' for value in values]
    said = "; ".join(f"{name}: {', '.join(map(number, values))}" for name, values in rows)
    cells = [[escape(name), ", ".join(map(number, values))] for name, values in rows]
    title = "ε beside what others use: smaller is stronger"
    return _figure(title, f"{said}.", "".join(parts), table(["whose, and what it protects", "ε"], cells), bottom + 24)


def _name(name: str, y: float, own: bool) -> str:
    kind = ' class="own"' if own else ""
    return f'<text{kind} x="{NAMES - 8}" y="{y + ROW / 2}" text-anchor="end">{escape(name)}</text>'


@dataclass(frozen=True)
class Scale:
    """From values to places in the picture."""

    x_ticks: list[float]
    y_ticks: list[float]

    @classmethod
    def of(cls, curve: Curve) -> Scale:
        xs, ys = [x for x, _ in curve], [y for _, y in curve]
        return cls(ticks(min(0.0, *xs), max(xs)), ticks(min(ys), max(ys)))

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        across = (x - self.x_ticks[0]) / (self.x_ticks[-1] - self.x_ticks[0])
        up = (y - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_name: str, y_name: str) -> str:
        parts = []
        for tick in self.y_ticks:
            _, y = self.place((self.x_ticks[0], tick))
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y:.1f}" dy="4" text-anchor="end">{number(tick)}</text>')
        for tick in self.x_ticks:
            x, _ = self.place((tick, self.y_ticks[0]))
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{number(tick)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_name)}</text>')
        parts.append(f'<text x="4" y="{HEIGHT - 6}">{escape(y_name)}</text>')
        return "".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers, from at most `low` to at least `high`.

    >>> ticks(0, 200), ticks(0.2122, 0.472)
    ([0.0, 50.0, 100.0, 150.0, 200.0], [0.2, 0.3, 0.4, 0.5])
    """
    if high <= low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _figure(title: str, said: str, body: str, numbers: str, height: float = HEIGHT) -> str:
    label = escape(f"{title}. {said}", quote=True)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{label}">{body}</svg>{folded("The same as a table", numbers)}</figure>'
    )
