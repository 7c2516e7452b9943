"""How module, optimizer and loader of `make_private` come together, and which of them do not."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from saltflat.compat.opacus.averages import Averager
from saltflat.compat.opacus.grad_sample import AbstractGradSampleHooks
from saltflat.compat.opacus.methods import FlatSearch, Method, declared
from saltflat.compat.opacus.optimizers import DPOptimizer
from saltflat.compat.opacus.unused import UseCheck
from saltflat.errors import InputError
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


def expected_batch_size(loader: DataLoader[Any], sample_rate: float, ranks: int = 1) -> float:
    """The divisor of a mean, on each rank: the size of the data set is public here (zero-out adjacency)."""
    whole = max(1, int(len(loader.dataset) * sample_rate))  # type: ignore[arg-type]
    return whole if ranks == 1 else whole / ranks


def check_same_parameters(module: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer of another module."""
    own = {id(p) for p in module.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise ValueError("Module parameters are different than optimizer Parameters")
