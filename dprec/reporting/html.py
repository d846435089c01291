"""Pieces of a page, and charts as SVG in it, each with a sentence and a table that say the same in words.

Text becomes HTML here and nowhere else: callers escape what they put into cells themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dprec.reporting.finished import Curve

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --page: #ffffff; --quiet: #5a6068; --rule: #d5d9de;
  --mark: #0b57a4; --bad: #a4160b; --box: #f3f5f7 }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --page: #16181b; --quiet: #a4abb3; --rule: #3a3f45;
  --mark: #7db7f2; --bad: #ff9a8f; --box: #22262a } }
@media print { :root { --text: #000; --page: #fff; --quiet: #333; --rule: #999; --mark: #000; --bad: #000; --box: #fff }
  details:not([open]) > *:not(summary) { display: none } figure, table, section { break-inside: avoid } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 52rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin-top: 2rem }
.promise { border-left: .3rem solid var(--mark); background: var(--box); padding: .75rem 1rem; font-size: 1.1rem }
.promise.none { border-color: var(--bad) } .quiet { color: var(--quiet) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--rule); overflow-wrap: normal }
td.n, th.n { text-align: right } thead th { color: var(--quiet); font-weight: 600 }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 } svg { width: 100%; height: auto }
svg text { fill: var(--quiet); font-size: 12px } .grid { stroke: var(--rule) }
.line { fill: none; stroke: var(--mark); stroke-width: 2 } .point { fill: var(--mark) }
pre { background: var(--box); padding: .75rem; overflow-x: auto; font-size: .85rem }
@media (max-width: 32rem) { svg text { font-size: 19px } th, td { padding: .3rem .35rem } }
summary { color: var(--mark); cursor: pointer }
"""


def page(title: str, sections: Sequence[str]) -> str:
    body = "\n".join(part for part in sections if part)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing is ever asked of a network, even if a run's name were to try.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    body = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f"<p{named}>{escape(text)}</p>"


def bullets(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def preformatted(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the row; its cells are HTML."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col"{_right(place)}>{escape(name)}</th>' for place, name in enumerate(columns))
    body = ""
    for name, *cells in rows:
        body += f'<tr><th scope="row">{name}</th>{"".join(f"<td{_right(1)}>{cell}</td>" for cell in cells)}</tr>'
    head, body = f"<thead><tr>{head}</tr></thead>", f"<tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0" role="group" aria-label="table"><table>{head}{body}</table></div>'


def number(value: float) -> str:
    """Four digits, and whole numbers whole.

    >>> number(20000.0), number(0.46942), number(8.0)
    ('20,000', '0.4694', '8')
    """
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}"
    return f"{value:.4g}"


def _right(place: int) -> str:
    return ' class="n"' if place else ""


WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 44


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


def points_chart(title: str, points: Sequence[tuple[str, float, float]], x_name: str, y_name: str) -> str:
    """A figure with a named point for each run; empty without one."""
    if not points:
        return ""
    scale = Scale.of([(x, y) for _, x, y in points])
    body = [scale.axes(x_name, y_name)]
    for name, x, y in points:
        across, down = scale.place((x, y))
        side = 'text-anchor="end" dx="-8"' if across > WIDTH * 0.6 else 'dx="8"'
        body.append(f'<circle class="point" cx="{across:.1f}" cy="{down:.1f}" r="4"/>')
        body.append(f'<text x="{across:.1f}" y="{down:.1f}" dy="-6" {side}>{escape(name)}</text>')
    said = "; ".join(f"{name}: {y_name} {number(y)} at {x_name} {number(x)}" for name, x, y in points)
    rows = [[escape(name), number(x), number(y)] for name, x, y in points]
    return _figure(title, said, "".join(body), table(["run", x_name, y_name], rows))


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


def _figure(title: str, said: str, body: str, numbers: str) -> str:
    label = escape(f"{title}. {said}", quote=True)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label}">{body}</svg><details><summary>The same as a table</summary>{numbers}</details></figure>'
    )
