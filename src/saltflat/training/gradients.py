"""`check_gradients`: does every trainable tensor get a gradient? Asked on made-up rows, before anything is spent.

Noise moves every trainable weight, whether a gradient reaches it or not. So weights that change prove nothing, and
a part that was cut off by mistake looks as if it were trained.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saltflat.data.source import as_source, map_tensors
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import call_model, untouched, without_compilation
from saltflat.errors import InputError
from saltflat.methods.ascent import displaced
from saltflat.training.build import trainable
from saltflat.training.losses import default_loss
from saltflat.training.synthetic import FAILURES, Synthetic

Finding = Literal["gradient", "later", "cancels", "unused", "cut off"]
MEANING: dict[Finding, str] = {
    "gradient": "gets a gradient",
    "later": "gets a gradient once the other weights have moved",
    "cancels": "gets rounding errors only: the outputs do not depend on it",
    "unused": "gets none: the loss does not depend on it",
    "cut off": "gets none, though the loss depends on it: detach, no_grad or rounding is in the way",
}
DRAWS = 2
# How far weights are moved, in units of their own size, to tell "zero here" from "zero everywhere".
MOVES = (0.1, 0.1, 1.0, 1.0)
LEAST_SIZE = 0.02  # of weights that are all zero, such as one half of LoRA at its start
SUSPICIOUS, ROUNDING = 1e-5, 1e-11  # of the largest gradient, in float32 and in float64
GIVEN_ROWS = 64


@dataclass(frozen=True)
class Gradients:
    """What each trainable tensor gets, by its name.

    ``found`` holds one of ``gradient``, ``later``, ``cancels``, ``unused`` and ``cut off``, explained by `MEANING`;
    ``sizes`` the root mean square of the gradient at the weights as they are.
    """

    found: dict[str, Finding]
    sizes: dict[str, float]

    @property
    def idle(self) -> tuple[str, ...]:
        """The tensors that noise alone would move."""
        return tuple(name for name, finding in self.found.items() if finding in ("unused", "cut off"))

    def __str__(self) -> str:
        width = max(map(len, self.found))
        return "\n".join(
            f"{name:{width}}  {self.sizes[name]:8.1e}  {MEANING[finding]}"
            for name, finding in self.found.items()
        )


class NothingTriedError(Exception):
    """No made-up rows went through the model and its loss with finite gradients."""


def check_gradients(model: nn.Module, data: Any, loss_fn: LossFunction | None = None) -> Gradients:
    """Which trainable tensors get a gradient, without noise, on made-up rows in the form of ``data``.

    A tensor whose gradient is zero at the weights as they are, such as one half of LoRA at its start, is tried again
    with the trainable weights moved. `fit` asks the same before it spends anything, and refuses a model in which
    a tensor gets none.

    Guarantee: of ``data``, shapes and types alone are looked at. The model is left as it was, bit for bit.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body, self.head, self.spare = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)
    ...     def forward(self, x):
    ...         return self.head(self.body(x).relu().detach())
    >>> found = check_gradients(Net(), (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)))
    >>> {name: found.found[name] for name in ("body.weight", "head.weight", "spare.weight")}
    {'body.weight': 'cut off', 'head.weight': 'gradient', 'spare.weight': 'unused'}
    """
    if not isinstance(model, nn.Module) or not trainable(model):
        raise InputError("model", model, "a torch.nn.Module with parameters that require gradients")
    inputs, targets = as_source(data).fetch(torch.tensor([0]))
    device = next(iter(trainable(model).values())).device
    trial = Trial.made_up(model, inputs, targets, loss_fn or default_loss(targets), device)
    try:
        return trial.examined()
    except NothingTriedError as error:
        raise InputError(
            "data", data, "data in whose form rows can be made up", problem=f"does not allow it: {error}"
        ) from error


def require_gradients(
    model: nn.Module, inputs: Any, targets: Tensor, loss_fn: LossFunction, device: torch.device, asked: Any
) -> None:
    """Refuse a model in which a trainable tensor gets no gradient; ``asked`` is what `fit` was told.

    Of ``inputs`` and ``targets`` only the form is looked at, unless ``asked`` brings rows of its own.
    """
    if asked is False:
        return
    if asked is True:
        trial = Trial.made_up(model, inputs, targets, loss_fn, device)
    else:
        given = _given(asked)
        trial = Trial(model, lambda model, _: loss_fn(*_called(model, given, device)))
    try:
        found = trial.examined(thoroughly=False)
    except NothingTriedError as error:
        if asked is not True:
            raise InputError(
                "check_gradients", asked, "rows that the model and its loss take", problem=f"failed: {error}"
            ) from error
        warnings.warn(
            f"It was not checked that every trainable tensor gets a gradient, because made-up rows failed ({error}). "
            "Pass made-up rows of your own, check_gradients=(inputs, targets), or check_gradients=False.",
            UserWarning,
            stacklevel=4,
        )
        return
    if found.idle:
        raise without_gradient(model, found)


def without_gradient(model: nn.Module, found: Gradients) -> InputError:
    """The error of a model that has tensors without a gradient."""
    reasons = {
        "unused": "not part of the loss",
        "cut off": "part of the loss, with detach, no_grad or rounding in the way",
    }
    kinds = {kind: [n for n in found.idle if found.found[n] == kind] for kind in ("unused", "cut off")}
    told = "; ".join(f"{_listed(names)} ({reasons[kind]})" for kind, names in kinds.items() if names)
    return InputError(
        "model", model, "a gradient for every trainable tensor",
        problem=f"has trainable tensors that noise alone would move, {len(found.idle)} of {len(found.found)}. "
        f"On made-up rows they get no gradient: {told}",
        cure="Freeze them: model.get_parameter(name).requires_grad_(False), or "
        "sf.models.tune_only(model, part, freeze=[...]). If it is meant to be so, pass check_gradients=False.",
    )  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A model and a way to its losses on rows that are not private: ``losses(model, number of the draw)``."""

    model: nn.Module
    losses: Any

    @classmethod
    def made_up(
        cls, model: nn.Module, inputs: Any, targets: Tensor, loss_fn: LossFunction, device: torch.device
    ) -> Trial:
        """With rows in the form of ``inputs`` and ``targets``."""
        form = map_tensors(lambda t: t[:1].to(device), inputs), targets[:1].to(device)
        core: nn.Module = getattr(model, "_orig_mod", model)
        rows: list[Synthetic] = []

        def losses(asked: nn.Module, number: int) -> Tensor:
            if not rows:
                rows.append(Synthetic(core, *form))
            if asked is core:
                return rows[0].losses(loss_fn, number)
            longer = copy.copy(rows[0])  # the same rows in float64
            longer.model, longer.inputs = asked, map_tensors(_longer, rows[0].inputs)
            longer.targets = _longer(rows[0].targets)
            return longer.losses(loss_fn, number)

        return cls(core, losses)

    def examined(self, thoroughly: bool = True) -> Gradients:
        """What each tensor gets. With ``thoroughly`` also which gradients are rounding errors."""
        weights = trainable(self.model)
        with untouched(self.model), without_compilation(self.model):
            sizes = self._sizes(self.model, range(DRAWS))
            found: dict[str, Finding] = {n: "gradient" for n in weights if sizes[n] > 0}
            for name in self._later(weights, {n for n in weights if n not in found}):
                found[name] = "later"
            for name in weights:
                if name not in found:
                    found[name] = "cut off" if self._matters(weights, name) else "unused"
            for name in self._cancelling(sizes) if thoroughly else ():
                found[name] = "cancels"
        return Gradients({name: found[name] for name in weights}, sizes)

    def _gradients(self, model: nn.Module, number: int) -> dict[str, Tensor] | None:
        """The gradient of the summed losses of one draw; None if it is not finite."""
        weights = trainable(model)
        torch.manual_seed(number)
        with torch.enable_grad():
            total = self.losses(model, number).sum()
        if not total.requires_grad:
            return {name: torch.zeros(()) for name in weights} if bool(total.isfinite()) else None
        grads = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        named = {n: torch.zeros(()) if g is None else g.detach() for n, g in zip(weights, grads)}
        return named if all(bool(torch.isfinite(g).all()) for g in named.values()) else None

    def _sizes(
        self, model: nn.Module, numbers: Iterable[int], wanted: set[str] | None = None
    ) -> dict[str, float]:
        """The largest root mean square of each tensor's gradient over some draws, until all that matter have one."""
        sizes, error, usable = dict.fromkeys(trainable(model), 0.0), "its gradients are not finite", 0
        for number in numbers:
            try:
                grads = self._gradients(model, number)
            except FAILURES as problem:
                error = str(problem).partition("\n")[0] or type(problem).__name__
                continue
            if grads is None:
                continue
            usable += 1
            for name, grad in grads.items():
                sizes[name] = max(sizes[name], float(grad.abs().double().square().mean().sqrt()))
            if all(sizes[name] > 0 for name in (sizes if wanted is None else wanted)):
                break
        if not usable:
            raise NothingTriedError(error)
        return sizes

    def _later(self, weights: Mapping[str, nn.Parameter], pending: set[str]) -> set[str]:
        """Those that get a gradient when the trainable weights are moved at random."""
        found: set[str] = set()
        for number, far in enumerate(MOVES, start=DRAWS):
            if not pending - found:
                break
            with displaced(weights, {name: _move(w, far, number) for name, w in weights.items()}):
                try:
                    sizes = self._sizes(self.model, [number, number + 1], pending)
                except NothingTriedError:
                    continue
            found |= {name for name in pending if sizes[name] > 0}
        return found

    def _matters(self, weights: Mapping[str, nn.Parameter], name: str) -> bool:
        """Whether the losses change with a tensor."""
        moves = {n: _move(w, 1.0, 0) if n == name else torch.zeros_like(w) for n, w in weights.items()}
        before = self._values()
        with displaced(weights, moves):
            return not torch.equal(before, self._values())

    @torch.no_grad()
    def _values(self) -> Tensor:
        torch.manual_seed(0)
        return self.losses(self.model, 0).nan_to_num().clone()

    def _cancelling(self, sizes: dict[str, float]) -> set[str]:
        """Those whose gradient vanishes with the rounding errors, when all is computed in float64."""
        largest = max(sizes.values())
        doubtful = {name for name, size in sizes.items() if 0 < size < SUSPICIOUS * largest}
        if not doubtful:
            return set()
        try:
            exact = self._sizes(copy.deepcopy(self.model).double(), range(DRAWS))
        except (NothingTriedError, *FAILURES):  # a model that insists on its precision
            return set()
        return {name for name in doubtful if exact[name] < ROUNDING * max(exact.values())}


def _move(weight: Tensor, far: float, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    size = max(float(weight.detach().abs().double().square().mean().sqrt()), LEAST_SIZE)
    return far * size * torch.randn(weight.shape, generator=generator).to(weight)


def _longer(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _given(asked: Any) -> tuple[Any, Tensor]:
    """Rows that the caller made up."""
    if isinstance(asked, bool) or not isinstance(asked, tuple | list) or len(asked) != 2:
        raise InputError("check_gradients", asked, "True, False, or made-up rows (inputs, targets)")
    source = as_source(asked)
    return source.fetch(torch.arange(min(GIVEN_ROWS, len(source))))


def _called(model: nn.Module, rows: tuple[Any, Tensor], device: torch.device) -> tuple[Any, Tensor]:
    precision = next(iter(trainable(model).values())).dtype
    inputs, targets = rows
    if precision == torch.float64:
        inputs, targets = map_tensors(_longer, inputs), _longer(targets)
    return call_model(model, map_tensors(lambda t: t.to(device), inputs)), targets.to(device)


def _listed(names: list[str]) -> str:
    shown, more = ", ".join(names[:6]), len(names) - 6
    return shown if more <= 0 else f"{shown} and {more} more"
