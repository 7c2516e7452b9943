"""The probe: does this model treat its examples apart, and does the engine see all of it?

Run once for a model and a shape of input, on a few rows, before any budget is spent:

- layers that mix examples or keep statistics of them are refused by name;
- one row is poisoned with NaN: if another row changes, examples mix;
- buffers that depend on the data are found, because they would leave without noise;
- the engine's gradients are compared with plain autograd on single rows, and on another batch size, which
  also finds a model that keeps the batch in another dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from saltflat.engine.clipped_sum import call_model, check_losses, leaves, take, without_compilation
from saltflat.engine.fallback import example_by_example
from saltflat.engine.tape import OffTapeError, Tape
from saltflat.errors import RefusedError

# Two ways to compute one gradient in float32 differ by rounding, some 1e-5; a wrong one differs by itself.
TOLERANCE = 1e-3
CURE = "sf.models.make_private_friendly(model) replaces it and keeps the weights."


def examine(model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any, targets: Tensor) -> bool:
    """Refuse what cannot be private; True if the model must be computed example by example."""
    refuse_by_name(model)
    core: nn.Module = getattr(model, "_orig_mod", model)
    rows = torch.arange(3, device=targets.device) % len(targets)
    few, answers = _finite(take(inputs, rows)), targets[rows]
    with _untouched(core):
        _refuse_mixing(core, few)
        return _off_tape(core, loss_fn, few, answers)


def refuse_by_name(model: nn.Module) -> None:
    """Refuse layers that are known to mix examples or to keep statistics of them."""
    for name, module in model.named_modules():
        where = f"{type(module).__name__} ({name or 'the model itself'})"
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise RefusedError(
                where, "it normalises each example by statistics of the whole batch, so examples mix.",
                f"{CURE} Or freeze its statistics with .eval().",
            )  # fmt: skip
        if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
            raise RefusedError(
                where, "track_running_stats=True stores statistics of private data without noise.", CURE
            )
        if isinstance(module, nn.EmbeddingBag) and module.max_norm is not None:
            raise RefusedError(
                where, "max_norm rewrites the rows that were looked up, without noise.", "Leave max_norm out."
            )
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
            raise RefusedError(
                where, "its parameters do not exist yet, and their shape must not come from private data.",
                "Run the model once on a synthetic batch first.",
            )  # fmt: skip


def _refuse_mixing(model: nn.Module, inputs: Any) -> None:
    """Poison row 1 and see whether rows 0 and 2, or a buffer, notice."""
    clean, buffers = _outputs(model, inputs)
    poisoned, poisoned_buffers = _outputs(model, _poisoned(inputs))
    if clean is None or poisoned is None:  # the model refuses NaN: change the row to another one instead
        poisoned, poisoned_buffers = _outputs(model, take(inputs, torch.tensor([0, 0, 2])))
        if clean is None or poisoned is None:
            return
    for before, after in zip(clean, poisoned):
        if before.dim() == 0 or before.shape[0] != 3 or before.shape != after.shape:
            raise RefusedError(
                "This model", "its output does not have one row per example in the first dimension.",
                "Return a tensor whose first dimension is the batch.",
            )  # fmt: skip
        others = torch.tensor([0, 2], device=before.device)
        if not torch.allclose(before[others], after[others], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise RefusedError(
                "This model", "one example changes the outputs of the others: examples mix, or the batch is not the first dimension.",
                "Normalise within an example (GroupNorm, LayerNorm), keep the batch in the first dimension, and give recurrent layers batch_first=True.",
            )  # fmt: skip
    for name, before in buffers.items():
        if not torch.equal(before.nan_to_num(), poisoned_buffers[name].nan_to_num()):
            raise RefusedError(
                f"This model's buffer {name}", "it changes with the data it sees and would leave without noise.",
                "Freeze it, or compute it from public data.",
            )  # fmt: skip


def _off_tape(model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any, targets: Tensor) -> bool:
    """Compare the engine with plain autograd; True if the tape cannot follow the model at all."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with _WithoutDropout():
        three = _engine(model, loss_fn, inputs, targets, parameters)
        if three is None:
            return True
        again = _engine(model, loss_fn, inputs, targets, parameters)
        if again is None or not _agree(three, again, parameters, 3):
            return False  # the model draws at random: two passes cannot be compared
        explicit = _explicit(model, loss_fn, inputs, targets, parameters)
        two = _engine(model, loss_fn, take(inputs, slice(0, 2)), targets[:2], parameters) or {}
    references = [two] if explicit is None else [explicit, two]
    for reference, rows in zip(references[::-1], (2, 3)):
        if not _agree(three, reference, parameters, rows):
            raise RefusedError(
                "This model", "the gradient of one example depends on the rest of its batch, or the batch is not kept in the first dimension of every layer.",
                "Keep the batch in the first dimension throughout (batch_first=True; no transpose before a layer with weights), and let no operation look across it.",
            )  # fmt: skip
    return False


def _engine(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Tensor,
    parameters: list[nn.Parameter],
) -> dict[int, Tensor] | None:
    tape = Tape(parameters, len(targets))
    tape.mark([*leaves(inputs), targets])
    try:
        with torch.enable_grad(), without_compilation(model), tape:
            losses = loss_fn(call_model(model, inputs), targets)
            check_losses(losses, len(targets))
        if not tape.backward(losses):
            return None
        return {key: use.gradients() for key, use in tape.collected().items()}
    except OffTapeError:
        return None


def _explicit(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Tensor,
    parameters: list[nn.Parameter],
) -> dict[int, Tensor] | None:
    def losses_of(row: slice) -> Tensor:
        with torch.enable_grad(), without_compilation(model):
            return loss_fn(call_model(model, take(inputs, row)), targets[row])

    try:
        uses = example_by_example(parameters, losses_of, len(targets), 1)
    except (RuntimeError, IndexError, ValueError):  # a model that does not take a batch of one
        return None
    return {key: use.grads for key, use in uses.items()}


def _agree(a: dict[int, Tensor], b: dict[int, Tensor], parameters: list[nn.Parameter], rows: int) -> bool:
    error = torch.zeros(rows, dtype=torch.float64)
    scale = torch.zeros(rows, dtype=torch.float64)
    for p in parameters:
        zero = torch.zeros(rows, *p.shape, dtype=p.dtype, device=p.device)
        first, second = (
            a.get(id(p), zero)[:rows].reshape(rows, -1),
            b.get(id(p), zero)[:rows].reshape(rows, -1),
        )
        error += (first - second).double().square().sum(1).cpu()
        scale += second.double().square().sum(1).cpu()
    usable = torch.isfinite(scale)
    return bool((error[usable].sqrt() <= TOLERANCE * scale[usable].sqrt() + 1e-9).all())


def _outputs(model: nn.Module, inputs: Any) -> tuple[list[Tensor] | None, dict[str, Tensor]]:
    """Output tensors and buffers after one pass, from the same state of the generators each time."""
    with torch.random.fork_rng(devices=[]), _untouched(model), torch.no_grad(), without_compilation(model):
        torch.manual_seed(0)
        try:
            out = call_model(model, inputs)
        except (RuntimeError, ValueError, AssertionError):
            return None, {}
        found = [t.detach().clone() for t in _floats_in(out)]
        return found, {name: b.clone() for name, b in model.named_buffers() if b.is_floating_point()}


def _floats_in(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out] if out.is_floating_point() else []
    if isinstance(out, dict):
        return [t for value in out.values() for t in _floats_in(value)]
    if isinstance(out, tuple | list):
        # hidden states and attention maps may keep the batch elsewhere; the loss decides by the first
        return _floats_in(out[0]) if out else []
    return []


def _finite(inputs: Any) -> Any:
    def clean(t: Any) -> Any:
        return t.nan_to_num(0.0, 1.0, -1.0) if isinstance(t, Tensor) and t.is_floating_point() else t

    if isinstance(inputs, dict):
        return {key: clean(value) for key, value in inputs.items()}
    return tuple(map(clean, inputs)) if isinstance(inputs, tuple | list) else clean(inputs)


def _poisoned(inputs: Any) -> Any:
    """Row 1 becomes NaN, or another row's numbers where the inputs are whole numbers."""

    def poison(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        changed = t.clone()
        changed[1] = float("nan") if t.is_floating_point() else t[0].roll(1, 0) if t.dim() > 1 else t[0]
        return changed

    if isinstance(inputs, dict):
        return {key: poison(value) for key, value in inputs.items()}
    return tuple(map(poison, inputs)) if isinstance(inputs, tuple | list) else poison(inputs)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put generators and buffers back as they were."""
    buffers = [(b, b.clone()) for b in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for buffer, before in buffers:
                if buffer.shape == before.shape:
                    buffer.data.copy_(before)


class _WithoutDropout(TorchFunctionMode):
    """Dropout is the identity: otherwise two passes could not be compared."""

    _functions = (
        F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    )  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._functions:
            return (args[0] if args else kwargs["input"]).clone()
        return func(*args, **(kwargs or {}))
