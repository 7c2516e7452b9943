"""The probe: does this model treat its examples apart, and does the engine see all of it?

Run once for a model and a shape of input, on a few rows, before any budget is spent:

- layers that mix examples or keep statistics of them are refused by name;
- one row is poisoned with NaN: if another row changes, examples mix;
- buffers that depend on the data are found, because they would leave without noise;
- the engine's gradients are compared with plain autograd on single rows, and on another batch size, which
  also finds a model that keeps the batch in another dimension.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from saltflat.engine.batch import Batch, Facts, LossFunction
from saltflat.engine.calling import (
    call_model,
    holding,
    leaves,
    map_tensors,
    take,
    untouched,
    without_compilation,
)
from saltflat.engine.fallback import example_by_example
from saltflat.engine.sketch import DIRECTIONS, sketch
from saltflat.engine.tape import BatchElsewhereError, OffTapeError, Tape
from saltflat.errors import RefusedError

# Two ways to compute one gradient in float32 differ by rounding, some 1e-5; a wrong one differs by itself.
TOLERANCE = 1e-3
# Models are tried on two and on three rows, and on five where three happen to be a size in the model.
MOST = 5
FIRST = "the batch must be the first dimension of every layer (batch_first=True; no transpose before it)."
MIXING = (
    "one example changes the outputs of the others: examples mix, or the batch is not the first dimension."
)
CURE = "sf.models.make_private_friendly(model) replaces it and keeps the weights."


def examine(model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Tensor) -> Facts:
    """Refuse what cannot be private; otherwise say how the model is to be computed."""
    refuse_by_name(model)
    core: nn.Module = getattr(model, "_orig_mod", model)
    few = _few(inputs)
    with untouched(core):
        _refuse_mixing(core, few)
        return _compared(_Trial(Batch(core, loss_fn, few, _few(targets, unlike=False))))


def refuse_if_mixed(model: nn.Module, inputs: Any) -> None:
    """Refuse a model whose outputs for one example change with the others, in the mode that it is in."""
    core: nn.Module = getattr(model, "_orig_mod", model)
    with untouched(core):
        _refuse_mixing(core, _few(inputs))


def is_apart(model: nn.Module, inputs: Any) -> bool:
    """Whether a model is seen not to mix its examples; False also where that cannot be seen."""
    try:
        with untouched(model):
            return _refuse_mixing(model, _few(inputs))
    except RefusedError:
        return False


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
        if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
            raise RefusedError(
                where, "its parameters do not exist yet, and their shape must not come from private data.",
                "Run the model once on a synthetic batch first.",
            )  # fmt: skip


def _refuse_mixing(model: nn.Module, few: Any) -> bool:
    """Poison row 1 and see whether rows 0 and 2, or a buffer, notice. True if row 1 itself was seen to notice."""
    inputs = take(few, slice(0, 3))
    clean, buffers = _outputs(model, inputs)
    poisoned, poisoned_buffers = _outputs(model, _poisoned(inputs))
    seen = poisoned is not None
    if clean is None or poisoned is None:  # the model refuses NaN: change the row to another one instead
        poisoned, poisoned_buffers = _outputs(model, take(inputs, torch.tensor([0, 0, 2])))
        if clean is None or poisoned is None:
            return False
    with_rows = [(a, b) for a, b in zip(clean, poisoned) if a.dim() and len(a) == 3 and a.shape == b.shape]
    if clean and not with_rows:
        raise RefusedError(
            "This model",
            "its output does not have one row per example in the first dimension.",
            "Return a tensor whose first dimension is the batch.",
        )
    for before, after in with_rows:
        others = torch.tensor([0, 2], device=before.device)
        if not torch.allclose(before[others], after[others], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise RefusedError(
                "This model", MIXING, f"Normalise within an example (GroupNorm, LayerNorm); {FIRST}"
            )
    for name, buffer in buffers.items():
        if not torch.equal(buffer.nan_to_num(), poisoned_buffers[name].nan_to_num()):
            raise RefusedError(
                f"This model's buffer {name}",
                "it changes with the data it sees and would leave without noise.",
                "Freeze it, or compute it from public data.",
            )
    return seen and any(not torch.equal(before[1], after[1]) for before, after in with_rows)


@dataclass(frozen=True)
class _Trial:
    """A few rows, and ways to compute sketches of their gradients: by parameter id, one row an example."""

    batch: Batch

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.batch.model.parameters() if p.requires_grad]

    def by_engine(self, rows: int) -> tuple[dict[int, Tensor], frozenset[int]]:
        """The engine's gradients of the first rows, and how many rows a unit had on the way."""
        tape = Tape(self.parameters, rows)
        if not tape.backward(self.batch.losses(slice(0, rows), Facts(), tape=tape)):
            raise OffTapeError
        uses = tape.collected()
        found = {}
        for place, p in enumerate(self.parameters):
            if id(p) in uses:
                found[id(p)] = sketch(uses.pop(id(p)).gradients(), place)
        return found, frozenset(tape.ratios)

    def one_by_one(self) -> dict[int, Tensor] | None:
        """Plain autograd on three single rows; None if the model does not take a batch of one."""
        try:
            rows = [self._alone(row) for row in range(3)]
        except (RuntimeError, IndexError, ValueError):
            return None
        return {key: torch.cat([row[key] for row in rows]) for key in rows[0]}

    def _alone(self, row: int) -> dict[int, Tensor]:
        own = slice(row, row + 1)
        uses = example_by_example(self.parameters, lambda _: self.batch.losses(own, Facts()), 1, 1)
        return {id(p): sketch(uses[id(p)].grads, place) for place, p in enumerate(self.parameters)}

    def is_right(self, rows: int, reference: dict[int, Tensor]) -> bool:
        """Whether the engine has these gradients for a batch of so many rows."""
        return _agree(self.by_engine(rows)[0], reference, self.parameters, min(rows, 3))

    def is_right_in_float64(self, rows: int) -> bool:
        """The same question, where rounding cannot be the answer."""
        inputs, targets = map_tensors(_longer, self.batch.inputs), _longer(self.batch.targets)
        longer = _Trial(replace(self.batch, inputs=inputs, targets=targets))
        try:
            with _in_float64(self.batch.model):
                alone = longer.one_by_one()
                return longer.is_right(rows, longer.by_engine(3)[0] if alone is None else alone)
        except (RuntimeError, TypeError):  # a model that insists on its precision
            return False


def _compared(trial: _Trial) -> Facts:
    """Compare the engine with plain autograd on batches of several sizes, and refuse what differs."""
    with _WithoutChance():
        alone = trial.one_by_one()
        off_tape = Facts(off_tape=True, needs_company=alone is None)
        if any(p._backward_hooks for p in trial.parameters):  # plain autograd alone calls them
            return off_tape
        elsewhere: BatchElsewhereError | None = None
        found = dict.fromkeys((3, 2, MOST), False)
        for rows in found:
            try:
                gradients, ratios = trial.by_engine(rows)
                if rows == 3:
                    on_tape, first = Facts(needs_company=alone is None, ratios=ratios), gradients
                    if not trial.is_right(3, first):
                        return on_tape  # the model draws at random: two passes cannot be compared
                    alone = gradients if alone is None else alone
                found[rows] = trial.is_right(rows, alone or gradients) or trial.is_right_in_float64(rows)
            except BatchElsewhereError as shape:
                elsewhere = shape
            except OffTapeError:
                return off_tape
            if rows == 2 and found[2] and found[3]:
                return on_tape
        # Before a model is refused: a few more passes, in case it draws from few numbers and two were alike.
        if elsewhere is None and not all(trial.is_right(3, first) for _ in range(8)):
            return on_tape
    if elsewhere is not None:
        why = f"a layer gets an input of shape {elsewhere}, with the batch in its second dimension."
        raise RefusedError("This model", why, FIRST[0].upper() + FIRST[1:])
    raise RefusedError(
        "This model",
        "the gradient of one example depends on the rest of its batch, or the batch is not kept in the first "
        "dimension of every layer.",
        f"Let no operation look across the batch; {FIRST}",
    )


def _agree(a: dict[int, Tensor], b: dict[int, Tensor], parameters: list[nn.Parameter], rows: int) -> bool:
    error = torch.zeros(rows, dtype=torch.float64)
    scale = torch.zeros(rows, dtype=torch.float64)
    for p in parameters:
        zero = torch.zeros(rows, DIRECTIONS + 1, dtype=torch.float64)
        first, second = a.get(id(p), zero)[:rows], b.get(id(p), zero)[:rows]
        error += (first - second)[:, :-1].square().mean(1)
        scale += second[:, -1]
    usable = torch.isfinite(scale)
    return bool((error[usable].sqrt() <= TOLERANCE * scale[usable].sqrt() + 1e-9).all())


def _outputs(model: nn.Module, inputs: Any) -> tuple[list[Tensor] | None, dict[str, Tensor]]:
    """Output tensors and buffers after one pass, from the same state of the generators each time."""
    with torch.random.fork_rng(devices=[]), untouched(model), torch.no_grad(), without_compilation(model):
        torch.manual_seed(0)
        try:
            out = call_model(model, inputs)
        except (RuntimeError, ValueError, AssertionError):
            return None, {}
        found = [t.detach().clone() for t in _floats_in(out)]
        return found, {name: b.clone() for name, b in model.named_buffers()}


def _floats_in(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out] if out.is_floating_point() else []
    if isinstance(out, dict):
        return [t for value in out.values() for t in _floats_in(value)]
    if isinstance(out, tuple | list):
        # hidden states and attention maps may keep the batch elsewhere; the loss decides by the first
        return _floats_in(out[0]) if out else []
    return []


def _longer(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


def _few(values: Any, unlike: bool = True) -> Any:
    """The first rows, with numbers of a common size in place of wild ones: none decides, or hides, a refusal.

    With ``unlike``, rows that are copies of one another become different.
    """

    def tame(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        filling = torch.arange(1, t.numel() + 1, device=t.device, dtype=torch.float64).mul(0.618034).frac()
        mild = torch.where(t.abs() <= 1e4, t, filling.view(t.shape).to(t.dtype))
        shrinking = torch.linspace(1.0, 0.6, len(t)).to(t).view(-1, *[1] * (t.dim() - 1))
        return mild * shrinking if unlike else mild

    rows = torch.arange(MOST) % len(leaves(values)[0])
    return map_tensors(tame, take(values, rows))


def _poisoned(inputs: Any) -> Any:
    """Row 1 becomes NaN, or another row's numbers where the inputs are whole numbers."""

    def poison(t: Tensor) -> Tensor:
        changed = t.clone()
        if t.is_floating_point():
            changed[1] = float("nan")
            return changed
        changed[1] = t[0].roll(1, 0) if t.dim() > 1 else t[0]
        return changed.index_fill(0, torch.tensor(1), 0) if torch.equal(changed, t) else changed

    return map_tensors(poison, inputs)


def _in_float64(model: nn.Module) -> AbstractContextManager[None]:
    """The same parameter objects, for a moment with longer numbers."""
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    return holding(tensors, [t.data.double() for t in tensors])


class _WithoutChance(TorchFunctionMode):
    """Dropout is the identity and draws are constants: otherwise two passes could not be compared."""

    _dropouts = (
        F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
        torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
    )  # fmt: skip
    _draws: ClassVar[dict[Any, float]] = {
        torch.rand: 0.5, torch.rand_like: 0.5, Tensor.uniform_: 0.5, torch.randn: 0.0, torch.randn_like: 0.0,
        torch.normal: 0.0, Tensor.normal_: 0.0, torch.bernoulli: 1.0, Tensor.bernoulli: 1.0,
        Tensor.bernoulli_: 1.0, Tensor.exponential_: 1.0,
    }  # fmt: skip
    # Where a layer that is one function has its dropout: the name, and the place in the arguments.
    _layers: ClassVar[dict[Any, tuple[str, int]]] = {
        F.multi_head_attention_forward: ("dropout_p", 10), F.scaled_dot_product_attention: ("dropout_p", 4),
        torch.lstm: ("dropout", 5), torch.gru: ("dropout", 5), torch.rnn_tanh: ("dropout", 5),
        torch.rnn_relu: ("dropout", 5),
    }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._dropouts:
            return (args[0] if args else kwargs["input"]).clone()
        if func in self._draws:
            return func(*args, **kwargs).fill_(self._draws[func])
        if func in self._layers:
            name, place = self._layers[func]
            # a packed sequence has one more argument before it
            place += name == "dropout" and isinstance(args[1], Tensor) and isinstance(args[3], list | tuple)
            if place < len(args):
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs[name] = 0.0
        return func(*args, **kwargs)
