"""A picture of what ε buys: noise against ε, and ε against epochs and batch size."""

from __future__ import annotations

from pathlib import Path

import click

from saltflat.accounting import COARSE, SampledGaussian, least_scale
from saltflat.accounting import epsilon as epsilon_of
from saltflat.errors import pyplot_for
from saltflat.plan.sampling import Sampling


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
