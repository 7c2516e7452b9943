"""HTML for pages that stand alone: no scripts, no pictures from elsewhere, made to be printed.

The certificate's page and the report are both written with these. Whatever comes from a file goes through
`text` first. A change here changes the certificate's page, which is compared byte by byte: it raises the
certificate's format.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from typing import Any

STYLE = """
body { font: 15px/1.45 Georgia, "Times New Roman", serif; color: #111; background: #fff; max-width: 46em;
  margin: 2em auto; padding: 0 1.5em; }
h1 { font-size: 1.5em; margin: 0 0 .2em; } h2 { font-size: 1.08em; margin: 1.2em 0 .3em; }
p { margin: .35em 0; } ul { margin: .3em 0; padding-left: 1.3em; } li { margin: .1em 0; }
table { border-collapse: collapse; width: 100%; font-size: .93em; margin: .3em 0; }
th, td { text-align: left; vertical-align: top; padding: .22em .9em .22em 0; border-bottom: 1px solid #ccc; }
th { font-weight: 600; } td.n, th.n { text-align: right; padding-right: 0; padding-left: .9em; }
code { font: .84em/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.claim { border: 2px solid #111; padding: .6em 1em; margin: .8em 0; }
.claim .figure { font-size: 1.35em; margin: 0; } .bad { border-color: #a00; color: #a00; }
@media print { body { margin: 0; max-width: none; font-size: 9.5pt; } h2 { break-after: avoid; } }
@page { margin: 14mm; }
"""


def document(title: str, body: Sequence[str], style: str = STYLE) -> str:
    """A whole page. It may show its own style, and nothing else: no script, no picture, no font from anywhere.

    >>> "default-src 'none'" in document("A page", ["<p>Hello.</p>"])
    True
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int] = ()) -> str:
    """A table of cells that are HTML already. With a head, all columns but the first and ``words`` hold numbers."""
    numeric = bool(head)

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [
            ' class="n"' if numeric and place and place not in words else "" for place in range(len(cells))
        ]
        return "<tr>" + "".join(f"<{tag}{mark}>{cell}</{tag}>" for cell, mark in zip(cells, marks)) + "</tr>"

    lines = [line([text(word) for word in head], "th")] if head else []
    return "<table>\n" + "\n".join([*lines, *(line(row, "td") for row in rows)]) + "\n</table>"


def bullets(items: Sequence[str]) -> str:
    """A list of plain sentences."""
    return "<ul>\n" + "\n".join(f"<li>{text(item)}</li>" for item in items) + "\n</ul>"


def text(value: object) -> str:
    """Anything as text that a page can hold.

    >>> text("<b>")
    '&lt;b&gt;'
    """
    return html.escape(str(value))


def figure(value: Any, digits: int = 4) -> str:
    """A number as it is shown; the word for an infinite ε."""
    return "infinite" if value == "inf" else f"{value:.{digits}g}"
