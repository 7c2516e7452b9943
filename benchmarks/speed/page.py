"""The README's rows on speed, from the files in ``results`` alone: a later one replaces what an earlier one has.

python benchmarks/speed/page.py    writes them anew
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from marks import between

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
BESIDE = {
    "ordinary": "an ordinary step",
    "opacus": "Opacus",
    "torch.func": "torch.func",
    "jax-privacy": "jax-privacy",
}


def rows(results: dict[str, Any]) -> str:
    """What was measured where, how many times as fast as each, and what methods and memory cost."""
    sections, identity = results["sections"], results["identity"]
    engines = sections["engines"]
    peers = [name for name in BESIDE if any(name in engine["ratios"] for engine in engines.values())]
    heads = [BESIDE[name] for name in peers]
    lines = [
        _where(identity),
        "",
        f"| model | parameters | {' | '.join(heads)} | memory beside an ordinary step |",
        "|---" * (len(heads) + 3) + "|",
    ]
    for model, engine in engines.items():
        ratios = [_times(engine["ratios"].get(name, {}).get("median")) for name in peers]
        memory = sections.get("memory", {}).get(model, {}).get("ratio")
        lines.append(f"| `{model}` | {engine['parameters']:,} | {' | '.join(ratios)} | {_times(memory)} |")
    means = [
        _times(_mean([e["ratios"][name]["median"] for e in engines.values() if name in e["ratios"]]))
        for name in peers
    ]
    lines += [f"| geometric mean | | {' | '.join(means)} | |", "", _methods(sections["methods"])]
    return "\n".join(lines)


def _where(identity: dict[str, Any]) -> str:
    machine, sizes = identity["machine"], identity["sizes"]
    torch = machine["torch"].partition("+")[0]
    return (
        f"Throughput of clipped gradients as a multiple of the fastest setting of each other way, {sizes['examples']} "
        f"examples, medians of {sizes['rounds']} rounds on {machine['cores']} cores of an {machine['processor']}, "
        f"torch {torch}, Opacus {machine['peers']['opacus']}. Above one, saltflat is faster."
    )


def _methods(methods: dict[str, Any]) -> str:
    listed = ", ".join(f"{name} {found['ratio']['median']:.2f}" for name, found in methods.items())
    model = next(iter(methods.values()))["model"]
    return f"A step of each method takes so many times one of DP-SGD (`{model}`): {listed}."


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def kept(results: Path = RESULTS) -> dict[str, Any]:
    """The sections of all results, in the order of their names, and where the last engines were measured."""
    found: dict[str, Any] = {"sections": {}}
    for path in sorted(results.glob("*.json")):
        one = json.loads(path.read_text("utf-8"))
        for section, rows_of in one["sections"].items():
            found["sections"].setdefault(section, {}).update(rows_of)
        if "engines" in one["sections"]:
            found["identity"] = one["identity"]
    return found


def with_rows(readme: str, results: Path = RESULTS) -> str:
    """The README with the rows of these results between its marks."""
    return between(readme, BEGIN, END, rows(kept(results)))


if __name__ == "__main__":
    README.write_text(with_rows(README.read_text("utf-8")), encoding="utf-8")
