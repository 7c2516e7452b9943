"""How a report looks: the certificate's house style, with colours for light and dark, for a phone and for paper."""

from __future__ import annotations

from saltflat.record.markup import STYLE as HOUSE

_LIGHT = """
  --ink: #16191d; --paper: #ffffff; --soft: #5a626c; --rule: #cfd4da; --panel: #f5f6f8; --link: #0a58ad;
  --good: #176b3a; --bad: #a4161a; --warn: #8a5a00;
  --s0: #0b63c4; --s1: #bf4b08; --s2: #007a56; --s3: #a12c7a; --s4: #75590a; --s5: #5546c0; --s6: #00707f;
  --s7: #59616b; --inside: #ffffff; --heat: #0b3f7d;
"""
_DARK = """
  --ink: #e8eaed; --paper: #14171b; --soft: #a3abb5; --rule: #3a414a; --panel: #1d2127; --link: #8ab8ff;
  --good: #6fd398; --bad: #ff8a85; --warn: #f0bf5a;
  --s0: #6db0ff; --s1: #ff9a58; --s2: #4ecfa2; --s3: #f08ac8; --s4: #dcbf4f; --s5: #b5abff; --s6: #57cbdc;
  --s7: #aeb6bf; --inside: #14171b; --heat: #9cc9ff;
"""

_SERIES = "\n".join(
    f".line.s{n} {{ stroke: var(--s{n}); }} .dot.s{n}, .bar.s{n}, .band.s{n} {{ fill: var(--s{n}); }}"
    for n in range(8)
)

_DASHES = "\n".join(
    f".line.s{n} {{ stroke-dasharray: {dash}; }}"
    for n, dash in ((1, "7 3"), (2, "2 3"), (3, "9 3 2 3"), (5, "7 3"), (6, "2 3"), (7, "9 3 2 3"))
)

STYLE = f"""{HOUSE}
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
body {{ color: var(--ink); background: var(--paper); max-width: 62em; }}
a {{ color: var(--link); }}
h1 {{ font-size: 1.7em; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.3em; margin: 2em 0 .5em; padding-top: .6em; border-top: 1px solid var(--rule); }}
h3 {{ font-size: 1.08em; margin: 1.3em 0 .3em; overflow-wrap: anywhere; }}
h4 {{ font-size: 1em; margin: 1em 0 .2em; }}
p, li {{ max-width: 46em; overflow-wrap: break-word; }}
th, td {{ border-bottom-color: var(--rule); }}
td.n, th.n {{ white-space: nowrap; }}
td {{ overflow-wrap: break-word; }} .scroll td:not(.n) {{ min-width: 5em; }}
td.n + td:not(.n), th.n + th:not(.n) {{ padding-left: 1.2em; }} table.narrow {{ width: auto; }}
pre {{ background: var(--panel); padding: .7em .9em; margin: .4em 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .84em/1.45 ui-monospace, Menlo, Consolas, monospace; border-left: 3px solid var(--rule); }}
nav ul {{ list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.1em; margin: .6em 0 0; }}
.sub, .note {{ color: var(--soft); font-size: .93em; }}
.claim {{ border: 1px solid var(--rule); border-left: 6px solid var(--rule); background: var(--panel); }}
.claim.good {{ border-left-color: var(--good); }} .claim.warn {{ border-left-color: var(--warn); }}
.claim.bad {{ border-left-color: var(--bad); color: inherit; }}
.claim .figure {{ font-weight: 700; }}
.good .figure {{ color: var(--good); }} .warn .figure {{ color: var(--warn); }} .bad .figure {{ color: var(--bad); }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 9em), 1fr)); gap: .7em;
  margin: 1em 0; padding: 0; }}
.tiles div {{ background: var(--panel); padding: .5em .8em; }}
.tiles dt {{ color: var(--soft); font-size: .88em; }} .tiles dd {{ margin: 0; font-size: 1.4em; }}
.tiles dd small {{ display: block; font-size: .6em; color: var(--soft); line-height: 1.35; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25em), 1fr)); gap: 1.2em 2em;
  align-items: start; }}
figure {{ margin: .8em 0; min-width: 0; break-inside: avoid; }}
figcaption {{ font-weight: 600; margin-bottom: .4em; overflow-wrap: anywhere; }}
svg.chart {{ display: block; width: 100%; max-width: 31em; height: auto; }}
svg text {{ font: 13px Georgia, "Times New Roman", serif; fill: var(--ink); }}
svg text.label {{ fill: var(--soft); }} svg text.small {{ font-size: 12px; fill: var(--soft); }}
svg text.inside {{ fill: var(--inside); font-weight: 600; }}
.grid {{ stroke: var(--rule); stroke-width: .7; }} .axis {{ stroke: var(--soft); stroke-width: 1; }}
.mark {{ stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 3; }}
.line {{ fill: none; stroke-width: 1.8; stroke-linejoin: round; }} .band {{ opacity: .16; }}
.dot {{ stroke: none; }} .tick {{ stroke: var(--ink); stroke-width: 2.4; }}
.tick.most {{ stroke: var(--soft); stroke-dasharray: 2 2; }}
.heat {{ fill: var(--heat); shape-rendering: crispEdges; }}
.contour {{ fill: none; stroke: var(--ink); stroke-width: .8; opacity: .55; }}
.here {{ stroke: var(--s1); stroke-width: 2; }} .box {{ fill: none; stroke: var(--soft); }}
{_SERIES}
{_DASHES}
.line.solid {{ stroke-dasharray: none; }}
.legend {{ list-style: none; padding: 0; margin: .3em 0; display: flex; flex-wrap: wrap; gap: .1em 1.1em;
  font-size: .93em; }}
.legend li {{ overflow-wrap: anywhere; }}
.key {{ width: 2em; height: .8em; margin-right: .4em; vertical-align: baseline; }}
.scroll {{ overflow-x: auto; max-width: 100%; }}
.scroll:focus-visible, summary:focus-visible, a:focus-visible {{ outline: 2px solid var(--link); outline-offset: 2px; }}
details {{ margin: .4em 0; }}
summary {{ cursor: pointer; color: var(--link); font-size: .93em; overflow-wrap: anywhere; }}
.passed {{ color: var(--good); }} .failed {{ color: var(--bad); font-weight: 600; }}
.certificate {{ border: 1px solid var(--rule); padding: .2em 1.2em 1em; }}
.certificate h4 {{ margin-top: 1.2em; }}
.certificate .claim .figure {{ color: inherit; font-weight: 600; }}
@media (max-width: 40em) {{ body {{ margin: 1em auto; padding: 0 1em; }} .certificate {{ padding: .2em .7em .7em; }} }}
@media print {{
  :root {{ {_LIGHT} color-scheme: light; }}
  body {{ max-width: none; }} nav, details:not([open]) {{ display: none; }} summary {{ display: none; }}
  .claim, .tiles div, pre, .bar, .band, .heat, .dot {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  h2, h3, h4 {{ break-after: avoid; }} tr, .claim, .tiles {{ break-inside: avoid; }}
  .figures {{ grid-template-columns: 1fr 1fr; }} a {{ color: inherit; text-decoration: none; }}
  .scroll {{ overflow: visible; }}
}}
"""
