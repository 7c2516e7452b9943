"""The law of the noise: its size, its shape, and that no part of it is missing or used twice.

Thresholds are fixed, each at a level so small that an audit of a sound mechanism raises a false alarm less
than once in a million.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from saltflat.audit.bounds import improbable
from saltflat.audit.findings import Check
from saltflat.audit.other_queries import ascent_faults, count_faults
from saltflat.audit.worlds import Rows, Subject, Trace
from saltflat.plan import Phase

LEVEL = 1e-8  # of each family of tests
STEPS = 24
LEAST_STEPS = 4
LONGEST = 1 << 21  # numbers whose every lag is looked at


def noise_faults(noise: Tensor, sizes: Mapping[str, int], tier: str = "fast") -> list[str]:
    """What is wrong with standardised noise, a row a step and a column a coordinate.

    >>> noise_faults(torch.randn(20, 5000, dtype=torch.float64), {"w": 4000, "b": 1000})
    []
    >>> len(noise_faults(0.5 * torch.randn(20, 5000, dtype=torch.float64), {"w": 5000}))
    1
    """
    dimension = noise.shape[1]
    if not bool(noise.isfinite().all()):
        return ["a release is not finite, or missing"]
    faults = _size(noise, sizes)
    flat = noise.flatten()
    silent = (noise == 0).sum(0)
    # Once, a difference of float32 numbers may vanish by chance; on the grid of the exact tier, also twice.
    if int((silent > (len(noise) // 2 if tier == "exact" else 1)).sum()):
        faults.append(f"{int((silent > 1).sum())} of {dimension} coordinates have releases without noise")
    if not faults:  # the shape is judged where the size is right
        faults += _shape(flat) + _grains(flat) + _dispersion(noise, sizes)
    return faults + _repetition(noise, sizes)


def _size(noise: Tensor, sizes: Mapping[str, int]) -> list[str]:
    faults = []
    if improbable(float(noise.square().sum()), noise.numel(), LEVEL):
        return [f"the noise has {math.sqrt(float(noise.square().mean())):.3f} times the declared deviation"]
    for number, step in enumerate(noise, start=1):
        if improbable(float(step.square().sum()), len(step), LEVEL / len(noise)):
            faults.append(f"the noise of step {number} has not the declared size")
    for name, part in zip(sizes, noise.split(list(sizes.values()), dim=1)):
        if improbable(float(part.square().sum()), part.numel(), LEVEL / len(sizes)):
            found = math.sqrt(float(part.square().mean()))
            faults.append(f"the noise of {name} has {found:.3f} times the declared deviation")
    each = noise.square().sum(0)
    low, high = stats.chi2.ppf([LEVEL / 2 / len(each), 1 - LEVEL / 2 / len(each)], len(noise))
    wrong = int(((each < low) | (each > high)).sum())
    if wrong:
        faults.append(f"{wrong} of {len(each)} coordinates have too little or too much noise")
    if abs(float(noise.mean())) * math.sqrt(noise.numel()) > 6:
        faults.append("the noise is not centred")
    return faults


def _dispersion(noise: Tensor, sizes: Mapping[str, int]) -> list[str]:
    """Sums and lengths vary from step to step and tensor to tensor as they should: neither is held fixed."""
    parts = [part for part in noise.split(list(sizes.values()), dim=1) if part.shape[1] > 1]
    if not parts:
        return []
    sums = torch.cat([part.sum(1) / math.sqrt(part.shape[1]) for part in parts])
    ranks = [stats.chi2.cdf(part.square().sum(1).numpy(), part.shape[1]) for part in parts]
    lengths = torch.from_numpy(stats.norm.ppf(np.clip(np.concatenate(ranks), 1e-12, 1 - 1e-12)))
    faults = []
    for values, words in ((sums, "sums of noise over a tensor"), (lengths, "lengths of a tensor's noise")):
        if improbable(float(values.square().sum()), len(values), LEVEL / 2):
            faults.append(f"{words} vary too little or too much")
    return faults


def _shape(flat: Tensor) -> list[str]:
    faults = []
    values = flat.numpy()
    if stats.kstest(values[:200_000], "norm").pvalue < LEVEL:
        faults.append("the noise is not Gaussian (Kolmogorov-Smirnov)")
    for reach in (2.0, 3.0, 3.5, 4.0):
        expected = len(values) * 2 * float(stats.norm.sf(reach))
        beyond = int((np.abs(values) > reach).sum())
        if min(stats.poisson.cdf(beyond, expected), stats.poisson.sf(beyond - 1, expected)) <= LEVEL:
            faults.append(
                f"{beyond} coordinates lie beyond {reach:g} deviations where {expected:.0f} were expected"
            )
            break
    return faults


def _grains(flat: Tensor) -> list[str]:
    """Noise drawn in half precision has few different values."""
    some = flat[:100_000]
    share = len(some.unique()) / len(some)
    # Float32 keeps 24 bits: of 100,000 normals some 1,500 agree with another; float16 keeps 11.
    return [f"only {share:.0%} of the noise has a value of its own: it is too coarse"] if share < 0.9 else []


def _repetition(noise: Tensor, sizes: Mapping[str, int]) -> list[str]:
    faults = []
    bound = 8 / math.sqrt(noise.shape[1])
    if len(noise) > 1 and bound < 0.9:
        alike = torch.corrcoef(noise).nan_to_num_().fill_diagonal_(0.0).abs()
        if float(alike.max()) > bound:
            faults.append(
                f"the noise of steps {sorted({*divmod(int(alike.argmax()), len(noise))})} is not independent"
            )
    flat = noise.flatten()[:LONGEST]
    flat = flat - flat.mean()
    padded = 2 ** (2 * len(flat) - 1).bit_length()
    spectrum = torch.fft.rfft(flat, n=padded)
    products = torch.fft.irfft(spectrum.abs().square(), n=padded)[1 : len(flat)]
    # at lag k, n − k products of variance one: judged in errors of their own, where there are enough
    errors = products / torch.sqrt(torch.arange(len(flat) - 1, 0, -1).double()) / float(flat.square().mean())
    far = int(errors[: len(errors) - 30].abs().argmax()) if len(errors) > 60 else 0
    if len(errors) > 60 and float(errors[far].abs()) > 8:
        faults.append(f"noise is used again {far + 1} coordinates later")
    parts = noise.split(list(sizes.values()), dim=1)
    names = list(sizes)
    for i, first in enumerate(parts):
        for j in range(i):
            width = min(first.shape[1], parts[j].shape[1])
            a, b = first[:, :width].flatten(), parts[j][:, :width].flatten()
            if len(a) >= 60 and abs(float((a * b).sum())) / max(float(a.norm() * b.norm()), 1e-300) > max(
                8 / math.sqrt(len(a)), 0.3 if len(a) < 700 else 0.0
            ):
                faults.append(f"{names[j]} and {names[i]} share noise")
                return faults
    return faults


class Blind(nn.Module):
    """Tensors of different sizes in float64, and outputs that do not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(60, 100, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(6000, dtype=torch.float64))
        self.c = nn.Parameter(torch.zeros(500, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return 0.0 * (self.a.sum() + self.b.sum() + self.c.sum()) + inputs


def blind_subject(subject: Subject) -> Subject:
    """A model whose gradient is zero, under the same plan."""
    sample = Rows.of(torch.zeros(64, 1, dtype=torch.float64))
    return subject.with_model(Blind(), sample, lambda outputs, _: outputs.sum(1) * 0.0)


def standardised(
    subject: Subject, phase: Phase, steps: int, units: int, micro_batch: int | None = None
) -> Tensor:
    """Noise of releases from blank units, in units of what is declared."""
    plan = subject.of_phase(phase, steps, units=units, still=False)
    rate = 0.01 * units / (phase.sigma * phase.clip_norm * math.sqrt(subject.dimension))
    trace = subject.run(subject.units(units, 0.0), plan, rate=rate, micro_batch=micro_batch)
    return _in_declared_units(trace, phase, units)


def _in_declared_units(trace: Trace, phase: Phase, units: int) -> Tensor:
    sizes = torch.tensor([phase.sigma * clip / units for clip in trace.clip_norms], dtype=torch.float64)
    return torch.stack(trace.releases) / sizes[: len(trace.releases), None]


def of_two_runs(subject: Subject, phase: Phase, steps: int) -> Tensor:
    """The difference of two runs on the same units, which is all noise whatever the units contribute."""
    plan = subject.of_phase(phase, steps, units=6)
    ends = []
    for _ in range(2):
        # the same masks, if the model draws any; a user may seed torch, and noise must not follow
        trace = subject.run(subject.units(6), plan, chance=0)
        ends.append(_in_declared_units(trace, phase, 6))
    return (ends[0] - ends[1]) / math.sqrt(2)


def _is_short(values: Tensor, deviation: float) -> bool:
    """Whether float64 noise has the digits of float32, drawn with or without its deviation."""
    for scaled in (values, values * deviation):
        near = (scaled - scaled.float().double()).abs() <= 1e-14 * scaled.abs()
        if float(near.double().mean()) > 0.5:
            return True
    return False


def noise_check(subject: Subject, coordinates: int = 120_000) -> Check:
    """The noise of every phase, from blank units, from ordinary ones, and from a model without gradients."""
    faults: list[str] = []
    tier, seen = subject.randomness, 0
    steps = max(LEAST_STEPS, min(STEPS, math.ceil(coordinates / subject.dimension)))
    for number, phase in enumerate(subject.plan.phases, start=1):
        where = f" (phase {number})" if len(subject.plan.phases) > 1 else ""
        blind = blind_subject(subject)
        pieces = 24 if tier == "exact" else 1100
        samples = {
            "": (standardised(subject, phase, steps, 12, micro_batch=5), subject.sizes),
            " beside real gradients": (of_two_runs(subject, phase, LEAST_STEPS), subject.sizes),
            " in a large batch": (standardised(blind, phase, LEAST_STEPS, pieces), blind.sizes),
        }
        for kind, (noise, sizes) in samples.items():
            seen += noise.numel()
            faults += [f"{fault}{kind}{where}" for fault in noise_faults(noise, sizes, tier)]
        large = samples[" in a large batch"][0]
        if (
            tier != "exact"
            and not faults
            and _is_short(large.flatten()[:20_000], phase.sigma * phase.clip_norm)
        ):
            faults.append(f"noise is drawn in float32, which ends at 5.77 deviations{where}")
        again = standardised(blind, phase, LEAST_STEPS, 24)
        size = min(large.numel(), again.numel())
        alike = float((large.flatten()[:size] * again.flatten()[:size]).mean())
        if abs(alike) > 7 / math.sqrt(size):
            faults.append(f"two runs draw the same noise{where}")
        others = ascent_faults(subject, phase) + (count_faults(subject, phase) if number == 1 else [])
        faults += [f"{fault}{where}" for fault in others]
    tried = f"{seen:,} coordinates of noise over {steps} steps, three kinds of batches and separate runs"
    # The threshold is 5.7 errors away; what is 9 away is missed less than once in a thousand audits.
    error = 9 / math.sqrt(2 * steps * subject.dimension)
    catch = (
        f"noise that is missing, {max(error, 0.001):.1%} too small or too large, scaled for the mean, cut off at "
        "3.5 deviations, coarse, left out of a coordinate, or used twice in tensors, steps or runs"
    )
    return Check(
        "noise law", tried, catch, tuple(dict.fromkeys(faults)), {"coordinates": seen, "steps": steps}
    )
