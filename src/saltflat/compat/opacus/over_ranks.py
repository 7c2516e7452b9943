"""Models on several ranks: which are taken, which are not, and what the ranks must agree on.

Every rank holds the whole model and has a shard of the rows. The messages are those of `saltflat.ranks`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from saltflat.errors import InputError, RefusedError
from saltflat.ranks import Group

ELSEWHERE = {"DataParallel", "FullyShardedDataParallel", "FSDPModule"}
"""Classes of torch that lay out a model in other ways, by name: a torch without them has none to refuse."""
CURE = (
    "Give the model whole to saltflat.compat.opacus: in DifferentiallyPrivateDistributedDataParallel, in torch's "
    "DistributedDataParallel, or by FSDP2Wrapper of saltflat.compat.opacus.utils.fsdp_utils."
)


class DataParallelModel(nn.Module):
    """A wrapper around a model that all ranks hold: what it wraps is ``module``."""

    module: nn.Module


class Replicated:
    """Mixed into the class of a model that all ranks hold, and that is not wrapped."""


def plain(module: nn.Module) -> nn.Module:
    """The model itself, without a wrapper for several ranks.

    Torch's wrapper waits for gradients at the real parameters and averages them. The engine leaves none there.
    """
    found: Any = module.module if isinstance(module, DataParallelModel | DistributedDataParallel) else module
    own: nn.Module = found
    return own


def is_spread(module: nn.Module) -> bool:
    """Whether the ranks train this model together."""
    own: Any = getattr(module, "_module", module)  # inside a GradSampleModule
    return isinstance(own, DataParallelModel | DistributedDataParallel | Replicated)


def check_layout(module: nn.Module) -> None:
    """Refuse models that are cut into pieces, or of which only a part is for several ranks."""
    own: Any = getattr(module, "_module", module)
    whole = plain(own)
    for part in whole.modules():
        names = {kind.__name__ for kind in type(part).__mro__} & ELSEWHERE
        if names:
            raise NotImplementedError(f"{names.pop()}: here every rank holds the whole model. {CURE}")
        if part is not whole and is_spread(part):
            raise NotImplementedError(
                f"{type(part).__name__} around a part of the model: the ranks would add up a part of each gradient. "
                "Put it around the whole model."
            )
    for name, p in whole.named_parameters():
        if any(kind.__name__ == "DTensor" for kind in type(p).__mro__):
            raise NotImplementedError(
                f"Parameter {name!r} is a DTensor, a piece of a tensor on each rank: here every rank holds the whole "
                f"model. {CURE}"
            )


def same_weights(model: nn.Module) -> None:
    """Give all ranks the weights and buffers of rank 0. Every rank calls it, with a model that it holds whole."""
    check_layout(model)
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    with closing(Group(device_of(held.values()))) as group:
        check_same_form(group, list(held.values()))
        form = {name: value.detach() for name, value in held.items() if not value.is_meta}
        found = group.shared(form, form)
        if not group.leads:
            for name, value in form.items():
                value.copy_(found[name])


def check_same_form(group: Group, tensors: list[Tensor]) -> None:
    """Refuse ranks whose tensors cannot be added up."""
    forms = set(group.texts("; ".join(f"{tuple(t.shape)} {t.dtype}" for t in tensors)))
    if len(forms) > 1:
        raise InputError(
            "module", "another model on another rank", "the same model on every rank",
            problem="does not have the same parameters everywhere",
        )  # fmt: skip


def group_of(optimizer: Optimizer) -> Group:
    """The ranks that step together. Every rank calls it."""
    trained = [p for part in optimizer.param_groups for p in part["params"] if p.requires_grad]
    group = Group(device_of(trained))
    check_same_form(group, trained)
    return group


def check_agreement(group: Group, own: dict[str, float]) -> None:
    """Refuse to go on where a number is not the same on all ranks; then none of them goes on."""
    said = group.numbers(list(own.values()))
    for place, name in enumerate(own):
        values = [each[place] for each in said]
        if not all(math.isclose(value, values[0], rel_tol=1e-9) for value in values):
            raise RefusedError(
                "This step",
                f"the ranks do not agree on {name}: {', '.join(f'{value:g}' for value in values)}.",
                "Call make_private with the same arguments on every rank, and let all of them run the same loop.",
            )


def own_generator(generator: Any) -> Any:
    """A source of coins for this rank that has nothing in common with those of the others. Every rank calls it.

    Ranks are often started from one seed. Their coins would be equal then, or equal to another rank's noise, and the
    batch no Poisson sample. So rank 0 draws a seed for each.
    """
    if not dist.is_initialized() or not (generator is None or isinstance(generator, torch.Generator)):
        return generator  # nobody else is there, or a stream that the operating system seeded
    drawn = torch.randint(2**63 - 1, (dist.get_world_size(),), generator=generator)
    with closing(Group()) as group:
        seeds = group.broadcast(drawn.cpu())
    return torch.Generator().manual_seed(int(seeds[dist.get_rank()]))


def check_fixed_batches(loader: DataLoader[Any]) -> None:
    """Refuse fixed batches of several ranks that may share an example: it would be in the sum twice."""
    sampler: Any = loader.sampler
    size, rank = dist.get_world_size(), dist.get_rank()
    fits = type(loader.batch_sampler) is BatchSampler and isinstance(sampler, DistributedSampler)
    if not fits or sampler.num_replicas != size or sampler.rank != rank or repeats(sampler):
        raise RefusedError(
            "poisson_sampling=False on several ranks",
            "an example may be in the batches of two ranks at once, and would move the sum by twice the clip norm.",
            "Pass DataLoader(..., sampler=DistributedSampler(dataset, drop_last=True)), or keep poisson_sampling=True.",
        )


def repeats(sampler: DistributedSampler[Any]) -> bool:
    """Whether examples are handed out twice, so that all ranks have the same number."""
    return sampler.total_size > len(sampler.dataset)  # type: ignore[arg-type]


def device_of(tensors: Iterable[Tensor]) -> str:
    """Where they are, by the first of them."""
    return next((str(t.device.type) for t in tensors), "cpu")
