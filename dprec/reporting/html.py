"""Pieces of a page.

Text becomes HTML here and nowhere else: callers escape what they put into cells themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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
.line { fill: none; stroke: var(--mark); stroke-width: 2 } .point, .bar { fill: var(--mark) }
.other { fill: var(--quiet); stroke: var(--quiet); stroke-width: 2 } svg .own { fill: var(--text); font-weight: 600 }
pre { background: var(--box); padding: .75rem; overflow-x: auto; font-size: .85rem }
@media (max-width: 32rem) { svg text { font-size: 15px } th, td { padding: .3rem .35rem } }
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


def folded(title: str, body: str) -> str:
    """What is shown on demand."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


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
