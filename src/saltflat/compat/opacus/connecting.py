"""How module, optimizer and loader of `make_private` come together, and which of them do not."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from saltflat.compat.opacus.averages import Averager
from saltflat.compat.opacus.data_loader import DPDataLoader, counted
from saltflat.compat.opacus.grad_sample import AbstractGradSampleHooks, AbstractGradSampleModule
from saltflat.compat.opacus.grad_sample.utils import get_gsm_class, prepare_module
from saltflat.compat.opacus.methods import FlatSearch, Method, declared
from saltflat.compat.opacus.optimizers import DPOptimizer
from saltflat.compat.opacus.over_ranks import check_fixed_batches
from saltflat.compat.opacus.unused import UseCheck
from saltflat.errors import InputError, PrivacyWarning
from saltflat.plan import NoAveraging, Swa


def connect(
    wrapped: AbstractGradSampleHooks, optimizer: DPOptimizer, method: Method, steps: int | None
) -> FlatSearch | None:
    """Let the backward pass clip at once, take gradients where the method wants them, and notice unused weights.

    Returns what looks for flat minima, if the method does.
    """
    recorder = wrapped.recorder
    if recorder is None:
        return None
    recorder.batch_gradient = False
    if recorder.ghost:  # nobody can read them there
        optimizer.keeps_gradients = False
    optimizer.use_check = UseCheck.of(recorder.module)
    trained, own = optimizer.params, recorder.trainable()
    if [id(p) for p in trained] == [id(p) for p in own]:
        recorder.clip = optimizer.clip
    if not isinstance(method.averaging, NoAveraging):
        swa = isinstance(method.averaging, Swa)  # an EMA counts from the first step, whatever is to come
        known = declared(steps, "+swa begins at a fraction of the steps") if swa else steps or 0
        optimizer.averager = Averager(recorder.module, method.averaging, known)
    if method.name == "dp-sgd":
        return None
    if {id(p) for p in trained} != {id(p) for p in own}:
        raise InputError(
            "method", method.name, "an optimizer over all trainable parameters of the module",
            problem="moves all weights", cure="Freeze the others: requires_grad_(False).",
        )  # fmt: skip
    search = FlatSearch(method, own, method.first_steps(steps), optimizer)
    optimizer.search, recorder.weights = search, search.weights
    return search


def recorded(
    module: nn.Module,
    grad_sample_mode: str,
    wrap_model: bool,
    batch_first: bool,
    loss_reduction: str,
    max_grad_norm: Any,
) -> Any:
    """The model with its calls recorded; one that is wrapped already stays, if it was wrapped in the same way."""
    if wrap_model and isinstance(module, AbstractGradSampleModule):
        own = module.batch_first, module.loss_reduction, type(module)
        if own != (batch_first, loss_reduction, get_gsm_class(grad_sample_mode)):
            raise ValueError(
                "Pre-existing GradSampleModule doesn't match new arguments. Got: module.batch_first: "
                f"{module.batch_first}, module.loss_reduction: {module.loss_reduction}, type(module): "
                f"{type(module)}. Requested: batch_first: {batch_first}, loss_reduction: {loss_reduction}, "
                f"grad_sample_mode: {grad_sample_mode}. Please pass vanilla nn.Module instead"
            )
        return module
    options = {"batch_first": batch_first, "loss_reduction": loss_reduction}
    if "ghost" in grad_sample_mode:
        options["max_grad_norm"] = max_grad_norm
    return prepare_module(module, grad_sample_mode, wrap_model, **options)


def private_loader(
    loader: DataLoader[Any],
    poisson_sampling: bool,
    distributed: bool,
    generator: Any,
    batch_first: bool,
    rand_on_empty: bool,
) -> DataLoader[Any]:
    """A loader that samples by Poisson; or the same one, which from now on counts its passes."""
    if poisson_sampling:
        return DPDataLoader.from_data_loader(
            loader,
            generator=generator,
            distributed=distributed,
            batch_first=batch_first,
            rand_on_empty=rand_on_empty,
        )
    if distributed:
        check_fixed_batches(loader)
    warnings.warn(
        "poisson_sampling=False: batches are fixed, and sampling adds nothing to the privacy. Each pass over the "
        "data is accounted as one release without sampling. (Opacus accounts it as Poisson sampling.)",
        PrivacyWarning,
        stacklevel=3,
    )  # fmt: skip
    return counted(loader)


def expected_batch_size(loader: DataLoader[Any], sample_rate: float, ranks: int) -> float:
    """The divisor of a mean, on each rank: the size of the data set is public here (zero-out adjacency)."""
    whole = max(1, int(len(loader.dataset) * sample_rate))  # type: ignore[arg-type]
    return whole if ranks == 1 else whole / ranks


def check_same_parameters(module: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer of another module."""
    own = {id(p) for p in module.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise ValueError("Module parameters are different than optimizer Parameters")
