"""The certificate as one page for people: HTML without scripts, pictures or anything from elsewhere, to print.

The page is a function of the certificate's content and of nothing else. So it can be made again and compared,
byte by byte. Whoever changes it raises the certificate's format.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saltflat.record.markup import bullets, document, figure, table, text
from saltflat.record.public import public_words

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
    return document(f"Certificate: {data['method']}", body_of(data))


def body_of(data: dict[str, Any]) -> list[str]:
    """What stands on that page, for others that hold a certificate too."""
    return [
        "<h1>Certificate of a private training run</h1>",
        f"<p>Method {text(data['method'])}, trained with saltflat {text(data['saltflat'])}.</p>",
        *_claim(data),
        "<h2>What the claim is about</h2>",
        *_about(data),
        "<h2>Where the budget went</h2>",
        *_phases(data),
        "<h2>What is not covered</h2>",
        bullets(data["not_covered"]),
        "<h2>What must be trusted</h2>",
        f"<p>{text(data['trust'])} A chain of hashes shows damage. It does not stop someone who writes plan, "
        "ledger, weights and certificate anew: a signature does, or the SHA-256 of certificate.json that was "
        "kept elsewhere.</p>",
        "<h2>How to check it</h2>",
        *_checking(data),
    ]


def _claim(data: dict[str, Any]) -> list[str]:
    if not data["private"]:
        reasons = "; ".join(text(reason) for reason in data["why_not_private"])
        return [
            '<div class="claim bad"><p class="figure">NOT PRIVATE</p>'
            f"<p>This run makes no claim: {reasons}.</p></div>"
        ]
    replaced = data["epsilon_replace_one"]
    beside = (
        f"If a unit is <em>replaced</em> by another instead, ε = {figure(replaced)}."
        if replaced is not None
        else "The figure for replacing a unit is not supported by the accountant here."
    )
    lines = [
        '<div class="claim">'
        f'<p class="figure">ε = {figure(data["epsilon"])}, δ = {figure(data["delta"])}</p>'
        f"<p>for every {text(data['unit'])} that {text(_RELATIONS[data['relation']])}. {beside}</p></div>",
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
    bound = f"; the Rényi bound, a looser second figure, is {figure(second)}" if second is not None else ""
    rows = [
        ("Unit", text(_UNITS[data["unit"]])),
        ("Relation", f"{text(data['relation'])}: the unit {text(_RELATIONS[data['relation']])}"),
        ("Population", f"{data['population']:,}, declared and public"),
        ("Sampler", f"{text(sampler['kind'])}, rate {figure(sampler['rate'], 6)}{cap}"),
        ("Divisor", f"{figure(data['divisor'], 10)}: the expected batch size, a public constant"),
        ("Clipping", text(data["clipping"])),
        (
            "Accountant",
            f"{text(accountant['name'])} {text(accountant['version'])}, grid {figure(accountant['grid'])}, "
            f"all phases jointly{bound}",
        ),
        ("Randomness", f"tier {text(data['randomness'])}: {text(_TIERS.get(data['randomness'], 'unknown'))}"),
        (
            "Releases",
            f"{data['planned_releases']:,} planned, {data['recorded_releases']:,} recorded; "
            f"went on after an interruption {data['resumed']:,} times",
        ),
    ]
    rows += [
        ("Public data", f"{text(public_words(entry))}; it costs nothing") for entry in data.get("public", ())
    ]
    if (survey := data.get("survey")) is not None:
        rows.append(
            (
                "Survey",
                f"noised histograms of {survey['columns']:,} columns of all rows, released before the first step; "
                f"noise multiplier {figure(survey['noise_multiplier'], 6)}, ε alone "
                f"{figure(survey['epsilon_alone'])}, share {survey['share']:.1%}; within the total",
            )
        )
    if (federation := data.get("federation")) is not None:
        rows.append(("Against", text(federation["against"])))
        rows.append(("Released", f"{text(federation['released'])}; noise: {text(federation['noise'])}"))
    if (tuned_on := data.get("tuned_on")) is not None:
        rows.append(("Tuning", f"settings chosen on public data ({text(tuned_on)}), which costs nothing"))
    if (selection := data.get("selection")) is not None:
        rows.append(
            (
                "Tuning",
                f"covered: the best of a random number of trials ({text(selection['law'])}, "
                f"{figure(selection['repeats'])} expected) over {len(selection['candidates'])} settings, by "
                f"{text(selection['scored_by'])}; one trial alone has ε = {figure(selection['epsilon_alone'])}",
            )
        )
    if (account := data.get("account")) is not None:
        named = f"{text(account['account'])}, reservation {text(account['reservation'])}"
        rows.append(("Other runs", f"within one budget for the data: account {named}"))
    return [table((), [(f"<strong>{name}</strong>", value) for name, value in rows])]


def _phases(data: dict[str, Any]) -> list[str]:
    head = ("phase", "steps", "noise multipliers", "clip norm", "ε alone", "share")
    rows = [
        (
            text(phase["name"] or str(number)),
            f"{phase['steps']:,}",
            ", ".join(figure(noise, 6) for noise in phase["noise_multipliers"]),
            figure(phase["clip_norm"]),
            figure(phase["epsilon_alone"]),
            f"{phase['share']:.1%}",
        )
        for number, phase in enumerate(data["phases"], start=1)
    ]
    return [
        table(head, rows),
        "<p>The ε of phases does not add up: they are accounted together. The share is that of the Rényi "
        "divergence of order 2, which adds up.</p>",
    ]


def _checking(data: dict[str, Any]) -> Iterable[str]:
    yield (
        f"<p>Install saltflat {text(data['saltflat'])} or newer, and run <code>saltflat verify FOLDER</code> on the "
        "run folder. It computes ε again from the ledger, compares every figure here and every byte of the "
        "files below, and says what failed. With <code>--public-key</code> it checks the signature, with "
        "<code>--head</code> a hash that was kept elsewhere.</p>"
    )
    rows = [
        ("ledger", f"{data['ledger_entries']:,} entries, head <code>{text(data['ledger_head'])}</code>"),
        ("plan", f"<code>{text(data['plan_hash'])}</code>"),
        *((text(name), f"<code>{text(value)}</code>") for name, value in data["files"].items()),
    ]
    yield table((), rows)
