"""The certificate as one page for people: HTML without scripts, pictures or anything from elsewhere, to print.

The page is a function of the certificate's content and of nothing else. So it can be made again and compared,
byte by byte. Whoever changes it raises the certificate's format.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_STYLE = """
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

_UNITS = {
    "example": "one example (one row of the data)",
    "person": "one person, with all rows that belong to them",
    "client": "one client, with everything it holds",
}
_RELATIONS = {
    "add-remove": "is added to the data or removed from it. The true number of units is secret; it was declared",
    "zero-out": "is emptied. The number of units and the classes are public",
}
_TIERS = {
    "fast": "torch's generator, seeded by the operating system; normals in float64",
    "secure": "a cryptographic stream, keyed by the operating system; normals in float64",
    "exact": "a cryptographic stream; sums in integers, and a Gaussian that is rounded exactly",
}


def page_of(data: dict[str, Any]) -> str:
    """The page of a certificate's content, without its seals."""
    parts = [
        "<h1>Certificate of a private training run</h1>",
        f"<p>Method {_text(data['method'])}, trained with saltflat {_text(data['saltflat'])}.</p>",
        *_claim(data),
        "<h2>What the claim is about</h2>",
        *_about(data),
        "<h2>Where the budget went</h2>",
        *_phases(data),
        "<h2>What is not covered</h2>",
        _list(data["not_covered"]),
        "<h2>What must be trusted</h2>",
        f"<p>{_text(data['trust'])} A chain of hashes shows damage. It does not stop someone who writes plan, "
        "ledger, weights and certificate anew: a signature does, or the SHA-256 of certificate.json that was "
        "kept elsewhere.</p>",
        "<h2>How to check it</h2>",
        *_checking(data),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Certificate: {_text(data['method'])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _claim(data: dict[str, Any]) -> list[str]:
    if not data["private"]:
        reasons = "; ".join(_text(reason) for reason in data["why_not_private"])
        return [
            '<div class="claim bad"><p class="figure">NOT PRIVATE</p>'
            f"<p>This run makes no claim: {reasons}.</p></div>"
        ]
    replaced = data["epsilon_replace_one"]
    beside = (
        f"If a unit is <em>replaced</em> by another instead, ε = {_figure(replaced)}."
        if replaced is not None
        else "The figure for replacing a unit is not supported by the accountant here."
    )
    lines = [
        '<div class="claim">'
        f'<p class="figure">ε = {_figure(data["epsilon"])}, δ = {_figure(data["delta"])}</p>'
        f"<p>for every {_text(data['unit'])} that {_text(_RELATIONS[data['relation']])}. {beside}</p></div>",
        "<p>Whatever is learned from the weights could have been learned nearly as well without that unit: the "
        "chances of any outcome differ by a factor of at most e<sup>ε</sup>, but for a share δ of bad luck.</p>",
    ]
    if data["delta"] * data["population"] >= 1:
        lines.append("<p><strong>δ is not below one over the population, which is too large.</strong></p>")
    if not data["finished"]:
        lines.append(
            f"<p><strong>The run stopped early</strong>, after {data['recorded_releases']:,} of "
            f"{data['planned_releases']:,} releases. The claim is that of the whole plan.</p>"
        )
    return lines


def _about(data: dict[str, Any]) -> list[str]:
    sampler, accountant = data["sampler"], data["accountant"]
    cap = f", at most {sampler['cap']:,} in a batch" if "cap" in sampler else ""
    second = data["epsilon_rdp"]
    bound = f"; the Rényi bound, a looser second figure, is {_figure(second)}" if second is not None else ""
    rows = [
        ("Unit", _text(_UNITS[data["unit"]])),
        ("Relation", f"{_text(data['relation'])}: the unit {_text(_RELATIONS[data['relation']])}"),
        ("Population", f"{data['population']:,}, declared and public"),
        ("Sampler", f"{_text(sampler['kind'])}, rate {_figure(sampler['rate'], 6)}{cap}"),
        ("Divisor", f"{_figure(data['divisor'], 10)}: the expected batch size, a public constant"),
        ("Clipping", _text(data["clipping"])),
        (
            "Accountant",
            f"{_text(accountant['name'])} {_text(accountant['version'])}, grid {_figure(accountant['grid'])}, "
            f"all phases jointly{bound}",
        ),
        (
            "Randomness",
            f"tier {_text(data['randomness'])}: {_text(_TIERS.get(data['randomness'], 'unknown'))}",
        ),
        (
            "Releases",
            f"{data['planned_releases']:,} planned, {data['recorded_releases']:,} recorded; "
            f"went on after an interruption {data['resumed']:,} times",
        ),
    ]
    if (federation := data.get("federation")) is not None:
        rows.append(("Against", _text(federation["against"])))
        rows.append(("Released", f"{_text(federation['released'])}; noise: {_text(federation['noise'])}"))
    if (tuned_on := data.get("tuned_on")) is not None:
        rows.append(("Tuning", f"settings chosen on public data ({_text(tuned_on)}), which costs nothing"))
    if (selection := data.get("selection")) is not None:
        rows.append(
            (
                "Tuning",
                f"covered: the best of a random number of trials ({_text(selection['law'])}, "
                f"{_figure(selection['repeats'])} expected) over {len(selection['candidates'])} settings, by "
                f"{_text(selection['scored_by'])}; one trial alone has ε = {_figure(selection['epsilon_alone'])}",
            )
        )
    if (account := data.get("account")) is not None:
        named = f"{_text(account['account'])}, reservation {_text(account['reservation'])}"
        rows.append(("Other runs", f"within one budget for the data: account {named}"))
    return [_table((), [(f"<strong>{name}</strong>", value) for name, value in rows])]


def _phases(data: dict[str, Any]) -> list[str]:
    head = ("phase", "steps", "noise multipliers", "clip norm", "ε alone", "share")
    rows = [
        (
            _text(phase["name"] or str(number)),
            f"{phase['steps']:,}",
            ", ".join(_figure(noise, 6) for noise in phase["noise_multipliers"]),
            _figure(phase["clip_norm"]),
            _figure(phase["epsilon_alone"]),
            f"{phase['share']:.1%}",
        )
        for number, phase in enumerate(data["phases"], start=1)
    ]
    return [
        _table(head, rows),
        "<p>The ε of phases does not add up: they are accounted together. The share is that of the Rényi "
        "divergence of order 2, which adds up.</p>",
    ]


def _checking(data: dict[str, Any]) -> Iterable[str]:
    yield (
        f"<p>Install saltflat {_text(data['saltflat'])} or newer, and run <code>saltflat verify FOLDER</code> on the "
        "run folder. It computes ε again from the ledger, compares every figure here and every byte of the "
        "files below, and says what failed. With <code>--public-key</code> it checks the signature, with "
        "<code>--head</code> a hash that was kept elsewhere.</p>"
    )
    rows = [
        ("ledger", f"{data['ledger_entries']:,} entries, head <code>{_text(data['ledger_head'])}</code>"),
        ("plan", f"<code>{_text(data['plan_hash'])}</code>"),
        *((_text(name), f"<code>{_text(value)}</code>") for name, value in data["files"].items()),
    ]
    yield _table((), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = bool(head)

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if numeric and place else "" for place in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{mark}>{cell}</{tag}>" for cell, mark in zip(cells, marks)) + "</tr>"

    lines = [line([_text(word) for word in head], "th")] if head else []
    return "<table>\n" + "\n".join([*lines, *(line(row, "td") for row in rows)]) + "\n</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{_text(item)}</li>" for item in items) + "\n</ul>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _figure(value: Any, digits: int = 4) -> str:
    return "infinite" if value == "inf" else f"{value:.{digits}g}"
