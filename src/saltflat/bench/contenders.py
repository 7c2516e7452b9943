"""The engines that are compared: saltflat, ordinary torch, and other libraries' clipped gradients.

Every private engine computes the same thing, the sum of gradients clipped to norm 1, and gives it back: an
engine whose sum is another one is not timed. The ordinary step is plain torch without hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.bench import jax_engine
from saltflat.bench.timing import Step
from saltflat.bench.workload import Workload
from saltflat.engine import clipped_sum

CLIP_NORM = 1.0
WHOLLY_WRONG = 1e30
Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Contender:
    """One engine in one setting. ``family`` groups the settings of which the fastest counts."""

    family: str
    mode: str
    physical: int | None
    build: Callable[[Workload, int], Step]

    @property
    def name(self) -> str:
        """What the tables call it."""
        words = f"{self.family} {self.mode}".strip()
        return words if self.physical is None else f"{words}, {self.physical}"

    def step(self, work: Workload) -> Step:
        """A step that can be called again and again."""
        return self.build(work, self.physical or 0)


PRIVATE_PEERS = ("opacus", "torch.func", "jax-privacy")
OURS, ORDINARY, CHANNELS_LAST = "saltflat", "ordinary", "channels_last"


def _engines() -> dict[tuple[str, str], tuple[Callable[[Workload, int], Step], tuple[int | None, ...]]]:
    """How each family and mode is built, and the physical batches that suit it; saltflat chooses its own."""
    return {
        (OURS, ""): (saltflat, (None,)),
        (ORDINARY, ""): (ordinary, (64, 256)),
        (CHANNELS_LAST, ""): (ordinary_channels_last, (64, 256)),
        ("opacus", "hooks"): (opacus_hooks, (64,)),
        ("opacus", "ghost"): (opacus_ghost, (64, 256)),
        ("torch.func", ""): (torch_func, (16, 64)),
        ("jax-privacy", ""): (jax_engine.clipped_gradient, (1, 256)),
    }


def contenders(examples: int) -> list[Contender]:
    """All engines, each at its physical batches; none larger than there are examples."""
    return [
        Contender(family, mode, physical, build)
        for (family, mode), (build, batches) in _engines().items()
        for physical in dict.fromkeys(None if batch is None else min(batch, examples) for batch in batches)
    ]


def by_name(family: str, mode: str, physical: int | None) -> Contender:
    """One of them at a physical batch of one's own, for memory and growth."""
    return Contender(family, mode, physical, _engines()[family, mode][0])


def sums_of(returned: Any) -> Sums:
    """What a step gave back, by the model's own names; engines outside torch convert it only when asked."""
    return returned() if callable(returned) else returned


def saltflat(
    work: Workload, micro_batch: int = 0, clip_norm: float = CLIP_NORM, model: nn.Module | None = None
) -> Step:
    """This library; without a micro-batch it chooses its own."""
    asked, size = model or work.fresh_model(), micro_batch or None

    def step() -> Sums:
        return clipped_sum(asked, work.loss, work.inputs, work.targets, clip_norm, micro_batch=size).grads

    return step


def floor(work: Workload) -> Step:
    """This library with everything frozen but the biases: forward, and the gradients of activations.

    Every engine that clips has to do that much. What is left of a whole step is what per-example gradients of
    matrices and kernels cost, so this is the limit of what a better way of forming them could gain.
    """
    model = work.fresh_model()
    for name, p in model.named_parameters():
        p.requires_grad_(name.rpartition(".")[2] == "bias")
    return saltflat(work, model=model)


def ordinary(work: Workload, physical: int) -> Step:
    """Plain torch: forward, backward, summed gradients."""
    return _plain(work, work.fresh_model(), work.inputs, physical)


def ordinary_channels_last(work: Workload, physical: int) -> Step:
    """The same in the memory format that suits convolutions; other inputs stay as they are."""
    model, inputs = work.fresh_model(), work.inputs
    if inputs.dim() == 4:
        # torch's annotations do not know that modules take a memory format alone
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return _plain(work, model, inputs, physical)


def _plain(work: Workload, model: nn.Module, inputs: Tensor, physical: int) -> Step:
    named = dict(model.named_parameters())

    def step() -> Sums:
        model.zero_grad(set_to_none=True)
        for rows, labels in zip(inputs.split(physical), work.targets.split(physical)):
            work.loss(model(rows), labels).sum().backward()
        return {name: p.grad for name, p in named.items() if p.grad is not None}

    return step


def opacus_hooks(work: Workload, physical: int) -> Step:
    """Opacus's default mode: per-example gradients by hooks, then norms, factors and sums as its optimizer."""
    from opacus import GradSampleModule

    original = work.fresh_model()
    named = dict(original.named_parameters())
    model = GradSampleModule(original)

    def step() -> Sums:
        total: Sums = {}
        for rows, labels in _parts(work, physical):
            model.zero_grad(set_to_none=True)
            work.loss(model(rows), labels).sum().backward()
            grads: Sums = {name: p.grad_sample for name, p in named.items()}  # type: ignore[attr-defined]
            _add_clipped(total, grads)
            for p in named.values():
                p.grad_sample = None  # type: ignore[attr-defined]
        return total

    return step


def opacus_ghost(work: Workload, physical: int) -> Step:
    """Opacus's ghost clipping: one backward pass for the norms, one with the losses scaled."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    original = work.fresh_model()
    named = dict(original.named_parameters())
    model = GradSampleModuleFastGradientClipping(
        original, max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="sum"
    )

    def step() -> Sums:
        total: Sums = {}
        for rows, labels in _parts(work, physical):
            model.zero_grad(set_to_none=True)
            model.enable_hooks()
            losses = work.loss(model(rows), labels)
            losses.sum().backward(retain_graph=True)
            model.zero_grad(set_to_none=True)
            factors = model.get_clipping_coef()
            model.disable_hooks()
            (losses * factors).sum().backward()
            for name, p in named.items():
                assert p.grad is not None
                total[name] = total[name].add_(p.grad) if name in total else p.grad
        return total

    return step


def torch_func(work: Workload, physical: int) -> Step:
    """torch's own transformations: vmap(grad) over the examples."""
    model = work.fresh_model()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights: Sums, row: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, (weights, buffers), (row[None],))
        return work.loss(outputs, label[None])[0]

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> Sums:
        total: Sums = {}
        for rows, labels in _parts(work, physical):
            _add_clipped(total, per_example(parameters, rows, labels))
        return total

    return step


def one_by_one(work: Workload) -> Sums:
    """The clipped sum by its definition: one backward pass an example. The judge of the others, never timed."""
    model = work.fresh_model()
    named = dict(model.named_parameters())
    total: Sums = {}
    for row, label in zip(work.inputs.split(1), work.targets.split(1)):
        grads = torch.autograd.grad(work.loss(model(row), label).sum(), list(named.values()))
        _add_clipped(total, {name: g[None] for name, g in zip(named, grads)})
    return total


def relative_error(found: Sums, expected: Sums) -> float:
    """The length of the difference over the length of what was expected, over all parameters together.

    What is not comparable at all, or not finite, is `WHOLLY_WRONG`: a number that JSON has.
    """
    if found.keys() != expected.keys():
        return WHOLLY_WRONG
    wrong = _length({name: found[name].double() - value.double() for name, value in expected.items()})
    whole = _length(expected)
    error = wrong / whole if whole else WHOLLY_WRONG
    return error if error < WHOLLY_WRONG else WHOLLY_WRONG  # also for NaN


def _length(sums: Sums) -> float:
    return sum(float(value.double().square().sum()) for value in sums.values()) ** 0.5


def _parts(work: Workload, physical: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(work.inputs.split(physical), work.targets.split(physical))


def _add_clipped(total: Sums, grads: Sums) -> None:
    """Clip explicit per-example gradients as whole vectors, and add them to the sums."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)
    for name, g in grads.items():
        part = torch.einsum("i,i...->...", factors, g)
        total[name] = total[name].add_(part) if name in total else part
