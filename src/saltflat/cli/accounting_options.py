"""What `calibrate` and `account` share: phases from the command line, and their answer as JSON or words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from saltflat.accounting import (
    COARSE,
    SampledGaussian,
    combined_noise,
    least_scale,
    rdp_epsilon,
    replace_one_epsilon,
)
from saltflat.accounting import epsilon as epsilon_of
from saltflat.cli.run_options import json_option, options_of
from saltflat.errors import InputError, check_count, check_share, nearest, pyplot_for
from saltflat.plan.sampling import Poisson, Sampling, TruncatedPoisson

_KEYS = ("steps", "epochs", "noise-multiplier", "noise-ratio", "queries")


@dataclass(frozen=True)
class PhaseRequest:
    """A phase as it stands on the command line."""

    steps: int
    noise_multiplier: float | None = None
    noise_ratio: float | None = None
    queries: int = 1

    def event(self, sampling: Sampling) -> SampledGaussian:
        """What it releases; several queries on a batch are one release with less noise."""
        if self.noise_multiplier is None:
            raise InputError(
                "noise_multiplier", None, "a noise multiplier in every phase", problem="is missing",
                cure="To find the noise for an ε, use: saltflat calibrate",
            )  # fmt: skip
        noise = combined_noise(*[self.noise_multiplier] * self.queries)
        return sampling.event(noise, self.steps)


def _picture(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and Path(value).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{value!r} does not end in .png, .svg or .pdf")
    if value is not None and not Path(value).parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(Path(value).parent)!r}")
    return value


# the options that both commands take
accounting_options = options_of(
    click.option("--population", type=int, required=True, help="Declared number of rows (public)."),
    click.option("--batch-size", type=float, help="Expected batch size."),
    click.option("--rate", type=float, help="Sampling rate, instead of --batch-size."),
    click.option("--steps", type=int, help="Number of releases."),
    click.option("--epochs", type=float, help="Passes over the population, instead of --steps."),
    click.option("--delta", type=float, default=1e-5, show_default=True, help="δ."),
    click.option("--queries", type=int, default=1, show_default=True, help="Queries on each batch."),
    click.option("--cap", type=int, help="Truncated Poisson sampling: at most this many rows in a batch."),
    click.option("--phase", "phases", multiple=True, metavar="KEY=VALUE,...",
                 help="A phase, e.g. steps=244,noise-multiplier=2.931; repeat it for several. "
                 f"Keys: {', '.join(_KEYS)}."),
    json_option,
    click.option("--quiet", is_flag=True, help="Only the number that was asked for."),
    click.option("--plot", type=click.Path(dir_okay=False), callback=_picture,
                 help="Draw what ε buys into this picture file (.png, .svg or .pdf)."),
)  # fmt: skip


def requested(options: dict[str, Any]) -> tuple[Sampling, list[PhaseRequest]]:
    """The sampling and the phases that the options describe."""
    sampling = read_sampling(options["population"], options["batch_size"], options["rate"], options["cap"])
    steps, epochs = options["steps"], options["epochs"]
    return sampling, read_phases(options["phases"], steps, epochs, options["queries"], sampling)


def read_sampling(population: int, batch_size: float | None, rate: float | None, cap: int | None) -> Sampling:
    """The sampling that the options describe."""
    if (batch_size is None) == (rate is None):
        said = "is missing" if batch_size is None else "is given beside --rate"
        raise InputError("batch_size", batch_size, "exactly one of --batch-size and --rate", problem=said)
    if rate is not None:
        check_share("rate", rate, one=True)
    size = batch_size if batch_size is not None else (rate or 0.0) * population
    return Poisson(population, size) if cap is None else TruncatedPoisson(population, size, cap)


def read_phases(
    texts: tuple[str, ...], steps: int | None, epochs: float | None, queries: int, sampling: Sampling
) -> list[PhaseRequest]:
    """The phases of ``--phase``, or the one of ``--steps`` or ``--epochs``."""
    check_count("queries", queries)
    if texts and (steps is not None or epochs is not None):
        raise InputError(
            "steps", steps, "--steps for one phase, or --phase for several", problem="is given with --phase"
        )
    if not texts:
        return [PhaseRequest(_steps({"steps": steps, "epochs": epochs}, sampling), queries=queries)]
    return [_read_phase(text, queries, sampling) for text in texts]


def _read_phase(text: str, queries: int, sampling: Sampling) -> PhaseRequest:
    values: dict[str, Any] = {}
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        key = key.replace("_", "-")
        if key not in _KEYS:
            raise InputError(
                "phase", text, "KEY=VALUE,KEY=VALUE", problem=f"has an unknown key {key!r}",
                cure=nearest(key, list(_KEYS)),
            )  # fmt: skip
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (key in ("steps", "queries") and number != int(number)):
            raise InputError("phase", text, f"a number after {key}=", problem=f"has {key}={value!r}")
        values[key] = number
    noise, ratio = values.get("noise-multiplier"), values.get("noise-ratio")
    for name, given in (("noise-multiplier", noise), ("noise-ratio", ratio)):
        if given is not None and not given > 0:
            raise InputError("phase", text, f"{name} > 0", problem=f"has {name}={given:g}")
    if noise is not None and ratio is not None:
        raise InputError("phase", text, "noise-multiplier or noise-ratio, not both")
    count = int(values.get("queries", queries))
    check_count("queries", count)
    return PhaseRequest(_steps(values, sampling), noise, ratio, count)


def _steps(values: dict[str, Any], sampling: Sampling) -> int:
    steps, epochs = values.get("steps"), values.get("epochs")
    if (steps is None) == (epochs is None):
        said = "is missing" if steps is None else "is given beside epochs"
        raise InputError("steps", steps, "exactly one of steps and epochs", problem=said)
    if steps is not None:
        check_count("steps", int(steps))
        return int(steps)
    if not (epochs or 0) > 0:
        raise InputError("epochs", epochs, "epochs > 0")
    return max(1, round((epochs or 0) * sampling.population / sampling.batch_size))


def answer(phases: list[PhaseRequest], sampling: Sampling, delta: float) -> dict[str, Any]:
    """ε of the phases, by both accountants, jointly and one by one."""
    events = [phase.event(sampling) for phase in phases]
    noises = [phase.noise_multiplier for phase in phases]
    return {
        "noise_multiplier": noises[0] if len(set(noises)) == 1 else noises,
        "epsilon": epsilon_of(events, delta),
        "delta": delta,
        "epsilon_rdp": rdp_epsilon(events, delta),
        "epsilon_replace_one": replace_one_epsilon(events, delta),
        "relation": "add-remove",
        "accountant": "pld",
        "sampling": sampling.kind,
        "rate": sampling.rate,
        "population": sampling.population,
        "batch_size": sampling.batch_size,
        "steps": sum(phase.steps for phase in phases),
        "phases": [
            {
                "steps": phase.steps,
                "noise_multiplier": phase.noise_multiplier,
                "queries": phase.queries,
                "epsilon_alone": epsilon_of([event], delta),
            }
            for phase, event in zip(phases, events)
        ],
    }


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print an answer for a program or for a person."""
    if as_json:
        click.echo(json.dumps(result))
        return
    for number, phase in enumerate(result["phases"], start=1):
        queries = f", {phase['queries']} queries a batch" if phase["queries"] > 1 else ""
        click.echo(
            f"phase {number}: {phase['steps']} steps, noise multiplier {phase['noise_multiplier']:.4f}{queries}"
            f" (alone: ε = {phase['epsilon_alone']:.4g})"
        )
    click.echo(
        f"ε = {result['epsilon']:.4f} at δ = {result['delta']:g}, add or remove one row (PLD, phases jointly)"
    )
    replaced, second = result["epsilon_replace_one"], result["epsilon_rdp"]
    click.echo("replace one row: " + ("not supported here" if replaced is None else f"ε = {replaced:.4g}"))
    if second is None:
        click.echo("Rényi bound: not supported here")
    else:
        click.echo(f"Rényi bound (second opinion): ε = {second:.4g}")


def draw(path: str, sampling: Sampling, delta: float, *, epsilon: float, steps: int) -> None:
    """Three curves around the point that was asked about, into a PNG, SVG or PDF file."""
    plt = pyplot_for("drawing --plot")
    from matplotlib.ticker import LogFormatter

    def noise(rate: float, count: int, target: float) -> float:
        return least_scale(lambda s: [SampledGaussian(s, rate, count)], target, delta, grid=COARSE)

    rate, population = sampling.rate, sampling.population
    here = noise(rate, steps, epsilon)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")

    budgets = [0.25, 0.5, 1, 2, 4, 8]
    left.plot(budgets, [noise(rate, steps, e) for e in budgets], marker="o")
    left.plot([epsilon], [here], marker="*", markersize=14, linestyle="none", label="this plan")
    left.set(xlabel="budget ε", ylabel="noise multiplier σ", title="What a budget asks for")

    epochs = [1, 2, 5, 10, 20, 40, 80, 160]
    events = [SampledGaussian(here, rate, max(1, round(e / rate))) for e in epochs]
    middle.plot(epochs, [epsilon_of([event], delta, grid=COARSE) for event in events], marker="o")
    middle.axvline(steps * rate, linestyle=":", color="grey", label="this plan")
    middle.set(xlabel="epochs", ylabel="ε", title=f"ε over epochs at σ = {here:.2f}")

    sizes = [s for s in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384) if s <= population]
    passes = steps * rate
    per_batch = [noise(s / population, max(1, round(passes * population / s)), epsilon) / s for s in sizes]
    right.plot(sizes, per_batch, marker="o")
    right.axvline(sampling.batch_size, linestyle=":", color="grey", label="this plan")
    right.set(xlabel="batch size", ylabel="noise in a release, σ / batch size",
              title=f"Noise over batch size, {passes:.3g} epochs, ε = {epsilon:.3g}")  # fmt: skip

    for axes, places in ((left, budgets), (middle, epochs), (right, sizes[::2])):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(places)
        axes.legend()
        axes.grid(alpha=0.3, which="both")
        axes.xaxis.set_major_formatter("{x:g}")  # 0.5, not 5 × 10⁻¹
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    click.echo(f"wrote {Path(path)}", err=True)
