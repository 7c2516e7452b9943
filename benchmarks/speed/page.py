"""What pages say about speed, from one file of ``results``: the newest that holds all that is told.

python benchmarks/speed/page.py    writes the README's rows, the tables of the page beside it, and the engine's page
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from marks import between

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
WHOLE = {"engines", "step", "methods", "memory"}
BESIDE = {
    "ordinary": "an ordinary step",
    "channels_last": "one in channels_last",
    "opacus": "Opacus",
    "torch.func": "torch.func",
    "jax-privacy": "jax-privacy",
}
WANTED = {"ordinary": 1.0, "channels_last": 0.8, "opacus": 3.0, "torch.func": 2.0}
LOGICAL = "logical batch"
MB = 2**20

Results = dict[str, Any]


def newest(results: Path = RESULTS) -> Results:
    """The last file, by its number, that is one run over all sections that pages tell of."""
    for path in sorted(results.glob("*.json"), key=_number, reverse=True):
        found: Results = json.loads(path.read_text("utf-8"))
        sections = found["sections"]
        if set(sections) >= WHOLE and set(sections["memory"]) >= set(sections["engines"]):
            return found | {"file": path.name}
    raise ValueError(f"{results} holds no run over {', '.join(sorted(WHOLE))}")


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[0])


# --- the README -------------------------------------------------------------------------------------


def rows(results: Results) -> str:
    """What was measured where, how many times as fast as each, and what methods and memory cost."""
    engines, memory = results["sections"]["engines"], results["sections"]["memory"]
    peers = [name for name in BESIDE if any(name in engine["ratios"] for engine in engines.values())]
    lines = [
        f"Throughput of clipped gradients as a multiple of each other way at its fastest batch and mode, "
        f"{_where(results)}. Above one, saltflat is faster. An ordinary step is plain torch without privacy, in its "
        "default memory format, and in the one that is faster for most networks of convolutions.",
        "",
        _row("model", "parameters", *(BESIDE[name] for name in peers), "memory beside an ordinary step"),
        "|---" * (len(peers) + 3) + "|",
    ]
    for model, engine in engines.items():
        ratios = [_times(engine["ratios"].get(name, {}).get("median")) for name in peers]
        lines.append(
            _row(
                f"`{model}`", f"{engine['parameters']:,}", *ratios, _times(memory.get(model, {}).get("ratio"))
            )
        )
    lines += [_row("geometric mean", "", *(_times(_mean(engines, name)) for name in peers), "")]
    lines += [
        "",
        f"Beside the faster of the two formats for each model, the mean is {_times(_faster(engines))}.",
    ]
    methods = results["sections"]["methods"]
    listed = ", ".join(f"{name} {found['ratio']['median']:.2f}" for name, found in methods.items())
    model = next(iter(methods.values()))["model"]
    lines[-1] += f" A step of each method takes so many times one of DP-SGD (`{model}`): {listed}."
    return "\n".join(lines)


# --- the page beside this file ----------------------------------------------------------------------


def tables(results: Results) -> str:
    """Throughput with its floor, steps and methods, and memory."""
    sections = results["sections"]
    return "\n\n".join(
        [
            f"From `results/{results['file']}`: {_where(results)}.",
            _throughput(sections["engines"]),
            _errors(sections["engines"]),
            _steps(sections["step"], sections["methods"]),
            _memory(sections["memory"]),
            _over_the_batch(sections["memory"][LOGICAL]),
        ]
    )


def _throughput(engines: dict[str, Any]) -> str:
    lines = [_row("model", *WANTED, "floor"), "|---" * (len(WANTED) + 2) + "|"]
    for model, engine in engines.items():
        shown = [_bracket(engine["ratios"].get(name)) for name in WANTED]
        lines.append(_row(model, *shown, _times(engine["floor"]["median"])))
    lines.append(_row("geometric mean", *(f"**{_times(_mean(engines, name))}**" for name in WANTED), ""))
    limits = [_times(_mean(engines, name, lambda one: float(one["floor"]["median"]))) for name in WANTED]
    lines.append(_row("if gradients of matrices and kernels cost nothing", *limits, ""))
    lines.append(_row("wanted", *(f"{value:g}" for value in WANTED.values()), ""))
    return "\n".join(lines)


def _errors(engines: dict[str, Any]) -> str:
    plain = max(engine["gradient_error"] for engine in engines.values())
    clipped = max(engine["clipped_error"] for engine in engines.values())
    slower = [
        f"`{model}` ({_times(engine['ratios']['fastest peer']['median'])} of {engine['fastest']['fastest peer']})"
        for model, engine in engines.items()
        if engine["ratios"]["fastest peer"]["median"] < 1
    ]
    told = f"Slower than the fastest private peer: {', '.join(slower)}." if slower else (
        "No model is slower than the fastest private peer."
    )  # fmt: skip
    return (
        f"{told} In float64, without clipping the gradient is that of the ordinary step to {plain:.0e}; clipped sums "
        f"are those of single backward passes to {clipped:.0e}: these add 1e-6 to each norm, as Opacus does."
    )


def _steps(step: dict[str, Any], methods: dict[str, Any]) -> str:
    whole = step["dp-sgd"]
    parts = [
        f"{name} {found['ratio']['median']:.3f} ({found['interval'][0]:.3f} to {found['interval'][1]:.3f})"
        for name, found in methods.items()
    ]
    first = next(iter(methods.values()))
    added = ", ".join(
        f"{name} {1000 * found['added']['seconds']:.1f} "
        f"({' to '.join(f'{1000 * bound:.1f}' for bound in found['added']['interval'])})"
        for name, found in methods.items()
        if found["added"] is not None
    )
    counts = [one["rounds"] for one in methods.values()]
    return (
        f"A whole DP-SGD step takes {whole['ratio']['median']:.3f} times its clipped gradient (`{whole['model']}`, "
        f"batch {whole['batch_size']:,}; 1.15 was allowed). Against a step of DP-SGD, {_range(counts)} pairs "
        f"that take turns at every micro-batch, {100 * first['confidence']:.0f} % interval of the median: "
        f"{', '.join(parts)}. What each adds to a step by itself, on a batch of no rows, in ms: {added}."
    )


def _memory(memory: dict[str, Any]) -> str:
    peers = ("saltflat", "ordinary", "opacus hooks", "opacus ghost")
    lines = [_row("model", *peers[:2], "ratio", *peers[2:]), "|---" * 6 + "|"]
    micro_batch = 0
    for model, found in memory.items():
        if model == LOGICAL:
            continue
        micro_batch = max(micro_batch, found["micro_batch"] or 0)
        cells = [
            f"{found['cells'][one]['peak_bytes'] / MB:.0f}"
            if found["cells"].get(one, {}).get("peak_bytes")
            else "fails"
            for one in peers
        ]
        lines.append(_row(model, *cells[:2], _times(found["ratio"]), *cells[2:]))
    return (
        f"Peak memory, MB, at a micro-batch of {micro_batch}, each in fresh processes; at most 1.5 times the ordinary "
        "step was wanted:\n\n" + "\n".join(lines)
    )


def _over_the_batch(found: dict[str, Any]) -> str:
    small, large = (
        f"{cell['peak_bytes'] / MB:,.0f} MB at a logical batch of {batch:,}"
        for cell, batch in zip(found["cells"], found["batches"])
    )
    peaks = [cell["peaks"] for cell in found["cells"]]
    apart = " and ".join(f"{max(one) / min(one):.2f}" for one in peaks)
    return (
        f"A whole step of `{found['model']}` takes {small} and {large}: {found['ratio']:.2f} times (1.05 was wanted). "
        f"Processes of one size differ among themselves by {apart}."
    )


# --- the engine's page ------------------------------------------------------------------------------


def words(results: Results) -> str:
    """The same in three sentences."""
    engines, memory = results["sections"]["engines"], results["sections"]["memory"]
    beside = [found["ratio"] for name, found in memory.items() if name != LOGICAL and found["judged"]]
    return (
        f"{_where(results)}, all engines of a model in one process. In the mean over the models a private step has "
        f"{_times(_mean(engines, 'ordinary'))} times the throughput of an ordinary one in torch's default memory "
        f"format, {_times(_faster(engines))} times that of one in the faster of two formats, "
        f"{_times(_mean(engines, 'opacus'))} times that of the fastest mode of Opacus, and "
        f"{_times(_mean(engines, 'torch.func'))} times that of torch.func. At a micro-batch of 64 it needs "
        f"{min(beside):.2f} to {max(beside):.2f} times the memory of an ordinary step."
    )


# --- all of them ------------------------------------------------------------------------------------

PAGES: dict[Path, Callable[[Results], str]] = {
    ROOT / "README.md": rows,
    Path(__file__).with_name("README.md"): tables,
    ROOT / "docs" / "engine.md": words,
}


def written(page: Path, results: Results) -> str:
    """The text of a page with what these results say between its marks."""
    return between(page.read_text("utf-8"), BEGIN, END, PAGES[page](results))


def _where(results: Results) -> str:
    machine, sizes = results["identity"]["machine"], results["identity"]["sizes"]
    return (
        f"{sizes['examples']} examples, medians of {sizes['rounds']} rounds on {machine['cores']} cores of an "
        f"{machine['processor']}, torch {machine['torch'].partition('+')[0]}, Opacus {machine['peers']['opacus']}"
    )


def _mean(
    engines: dict[str, Any], name: str, share: Callable[[dict[str, Any]], float] = lambda engine: 1.0
) -> float | None:
    """The geometric mean over the models that have it; of what is left of a step, where a share is given."""
    found = [
        math.log(engine["ratios"][name]["median"] / share(engine))
        for engine in engines.values()
        if name in engine["ratios"]
    ]
    return math.exp(sum(found) / len(found)) if found else None


def _faster(engines: dict[str, Any]) -> float | None:
    """The geometric mean beside an ordinary step in whichever format is faster for each model."""
    best = {
        model: {"ratios": {"faster": min((engine["ratios"][name] for name in ("ordinary", "channels_last")),
                                         key=lambda ratio: float(ratio["median"]))}}
        for model, engine in engines.items()
    }  # fmt: skip
    return _mean(best, "faster")


def _bracket(ratio: dict[str, float] | None) -> str:
    return (
        "–"
        if ratio is None
        else f"{_times(ratio['median'])} ({_times(ratio['low'])} to {_times(ratio['high'])})"
    )


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _range(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page, newest()), encoding="utf-8")
