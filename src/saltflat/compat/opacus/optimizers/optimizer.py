"""The optimizer: clips, adds up, accounts, adds noise, and lets the user's optimizer step with the release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from saltflat.compat.opacus.grad_sample.parameters import GivenRecord, Record, records_of
from saltflat.engine.clipping import automatic, flat
from saltflat.engine.passes import Clip, clipped_uses
from saltflat.errors import InputError
from saltflat.mechanism.noise import gaussian
from saltflat.mechanism.streams import CryptographicStream

if TYPE_CHECKING:
    from saltflat.compat.opacus.averages import Averager
    from saltflat.compat.opacus.methods import FlatSearch
    from saltflat.compat.opacus.unused import UseCheck

NOT_CLEARED = (
    "Gradients haven't been cleared since the last optimizer step. "
    "In order to obtain privacy guarantees you must call optimizer.zero_grad() on each step"
)
NOT_INITIALIZED = "Per sample gradient is not initialized. Not updated in backward pass?"


def params(optimizer: Optimizer) -> list[nn.Parameter]:
    """The trainable parameters of all groups, in order."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _generate_noise(
    std: float, reference: Tensor, generator: Any = None, secure_mode: bool = False
) -> Tensor:
    """Gaussian noise of the shape of ``reference``, drawn in float64.

    ``generator`` is a torch generator, a cryptographic stream, or None for torch's own generator.
    """
    if std == 0:
        return torch.zeros_like(reference)
    if secure_mode and not isinstance(generator, CryptographicStream):
        generator = CryptographicStream.fresh()
    return gaussian(reference.shape, std, reference.device, generator)


def _of_the_wrapped(name: str) -> property:
    def get(self: Any) -> Any:
        return getattr(self.original_optimizer, name)

    def put(self: Any, value: Any) -> None:
        setattr(self.original_optimizer, name, value)

    return property(get, put, doc="That of the wrapped optimizer.")


class DPOptimizer(Optimizer):
    """An optimizer around another one, whose step is a release: clipped sum, noise, division by a constant.

    Guarantees: each example moves the sum by at most ``max_grad_norm``, whatever it holds; the noise has
    standard deviation ``noise_multiplier`` · ``max_grad_norm``, drawn in float64; what the accountant records is
    what is used, and it is recorded before the noise is drawn. One gradient is used once: who forgets
    ``zero_grad()`` gets an error, and not a second release of the same batch.

    >>> from saltflat.compat.opacus.grad_sample import GradSampleModule
    >>> model = GradSampleModule(nn.Linear(2, 1))
    >>> inner = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
    >>> model(torch.ones(4, 2)).mean().backward()
    >>> optimizer.step()
    """

    keeps_gradients = True  # p.grad_sample can still be read after the step

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: float | None,
        loss_reduction: str = "mean",
        generator: Any = None,
        secure_mode: bool = False,
        **kwargs: Any,
    ) -> None:
        # Not Optimizer.__init__: groups, state and defaults are those of the wrapped one.
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"Unexpected value for loss_reduction: {loss_reduction}")
        if loss_reduction == "mean" and expected_batch_size is None:
            raise ValueError("You must provide expected batch size of the loss reduction is mean")
        if kwargs:
            raise InputError("kwargs", ", ".join(kwargs), "arguments that exist", problem="is not known here")
        self.original_optimizer = optimizer
        self.noise_multiplier, self.max_grad_norm = noise_multiplier, max_grad_norm
        self.loss_reduction, self.expected_batch_size = loss_reduction, expected_batch_size
        self.generator, self.secure_mode = generator, secure_mode
        self.step_hook: Callable[[DPOptimizer], None] | None = None
        # Set by the engine: what records a release, looks for flat minima, notices unused weights, and averages.
        self.account: Callable[[DPOptimizer], None] | None = None
        self.search: FlatSearch | None = None
        self.use_check: UseCheck | None = None
        self.averager: Averager | None = None
        self._step_skip_queue: list[bool] = []
        self._is_last_step_skipped = False
        for p in self.params:
            p.summed_grad = None  # type: ignore[attr-defined]

    # --- what it is asked -------------------------------------------------------------------------

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return params(self)

    @property
    def grad_samples(self) -> list[Tensor]:
        """Per-example gradients, one tensor a parameter. Not private."""
        return [torch.cat([record.gradients(p) for record in self._records_of(p)]) for p in self.params]

    @property
    def accumulated_iterations(self) -> int:
        """How many batches were accumulated and not yet used."""
        counts = {len(self._records_of(p)) for p in self.params}
        if len(counts) > 1:
            raise ValueError("Number of accumulated steps is inconsistent across parameters")
        return counts.pop() if counts else 1

    @staticmethod
    def _records_of(p: nn.Parameter) -> list[Record]:
        found = records_of(p)
        if not found:
            raise ValueError(NOT_INITIALIZED)
        return found

    # --- clip, account, noise ---------------------------------------------------------------------

    def clip(self) -> Clip:
        """How each example's gradient is clipped at the moment."""
        return Clip(flat, float(self.max_grad_norm), "flat")

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients to ``p.summed_grad``. Each record is used once."""
        trained = self.params
        by_parameter = [self._records_of(p) for p in trained]
        for records in zip(*by_parameter, strict=True):
            if any(record.processed for record in records):
                raise ValueError(NOT_CLEARED)
            sums, norms = _clipped(trained, records, self.clip())
            self._observe_norms(norms)
            if self.use_check is not None:
                self.use_check.saw(sums)
            for p in trained:
                _add_to_sum(p, sums.get(id(p)))
            for record in set(records):
                record.processed = True
                if not self.keeps_gradients:
                    record.forget()

    def _observe_norms(self, norms: Tensor) -> None:
        """For optimizers that adapt to how many gradients are clipped."""

    def gradient_noise_multiplier(self) -> float:
        """The noise on the gradient, over the clip norm; other queries may share the ``noise_multiplier``."""
        return float(self.noise_multiplier)

    def add_noise(self) -> None:
        """Make ``p.grad`` the noised sum."""
        deviation = self.gradient_noise_multiplier() * float(self.max_grad_norm)
        for p in self.params:
            total: Tensor = p.summed_grad  # type: ignore[attr-defined]
            if getattr(total, "_processed", False):
                raise ValueError(NOT_CLEARED)
            if deviation == 0:
                p.grad = total.clone()
            else:
                noise = _generate_noise(deviation, total, self.generator, self.secure_mode)
                p.grad = noise.add_(total).to(total.dtype)
            total._processed = True  # type: ignore[attr-defined]

    def scale_grad(self) -> None:
        """Divide by the expected size of what was accumulated: a public constant, never the realised size."""
        if self.loss_reduction == "mean":
            divisor = float(self.expected_batch_size or 1) * self.accumulated_iterations
            for p in self.params:
                if p.grad is not None:
                    p.grad.div_(divisor)

    def meet(self) -> None:
        """For optimizers that step together with others: wait for them before anything is recorded."""

    def reduce_gradients(self) -> None:
        """For optimizers that step together with others: add up over all of them."""

    # --- the step ---------------------------------------------------------------------------------

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Make the release; False if the logical batch goes on."""
        if not self.params:
            return True  # nothing private is trained
        self.clip_and_accumulate()
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            return False
        if self.use_check is not None:
            self.use_check.before_release(self.params)
        if self.search is not None:
            self.search.before_release()
        self.meet()
        if self.account is not None:
            self.account(
                self
            )  # before the noise is drawn: what is recorded may fail to happen, never the reverse
        self.add_noise()
        self.scale_grad()
        self.reduce_gradients()
        if self.search is not None:
            self.search.after_release()
        if self.step_hook is not None:
            self.step_hook(self)
        self._is_last_step_skipped = False
        return True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Release, and let the wrapped optimizer step with it."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        if not self.pre_step():
            return None
        if self.keeps_gradients:
            for record in {record for p in self.params for record in records_of(p)}:
                record.before_the_step()
        done = self.original_optimizer.step()
        if self.averager is not None:
            self.averager.after_step()
        return done

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients of every kind; the sum of a logical batch that goes on stays."""
        for p in self.params:
            p.grad_sample = None  # type: ignore[attr-defined]
            if not self._is_last_step_skipped:
                p.summed_grad = None  # type: ignore[attr-defined]
        self.original_optimizer.zero_grad(set_to_none)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Tell whether the next ``step()`` only adds up."""
        self._step_skip_queue.append(do_skip)

    def _check_skip_next_step(self, pop_next: bool = True) -> bool:
        if not self._step_skip_queue:
            return False
        return self._step_skip_queue.pop(0) if pop_next else self._step_skip_queue[0]

    def drop_unfinished(self) -> None:
        """Forget signals that were not used, and the sum of a logical batch that never ended."""
        self._step_skip_queue.clear()
        if self._is_last_step_skipped:
            self._is_last_step_skipped = False
            for p in self.params:
                p.summed_grad = None  # type: ignore[attr-defined]

    def attach_step_hook(self, fn: Callable[[DPOptimizer], None]) -> None:
        """Call a function after each release. It cannot replace the accounting of an engine."""
        account: Any = self.account
        if account is not None and getattr(fn, "accountant", None) is account.accountant:
            if getattr(fn, "sample_rate", None) != account.sample_rate:
                raise InputError(
                    "sample_rate", getattr(fn, "sample_rate", None), f"sample_rate={account.sample_rate}",
                    problem="is not the rate at which the loader samples",
                    cure="Call make_private again with a loader of another batch size.",
                )  # fmt: skip
            return  # each release is recorded already
        self.step_hook = fn

    # --- the wrapped optimizer --------------------------------------------------------------------

    param_groups: Any = _of_the_wrapped("param_groups")
    state: Any = _of_the_wrapped("state")
    defaults: Any = _of_the_wrapped("defaults")

    def __getattr__(self, name: str) -> Any:
        if name == "original_optimizer":
            raise AttributeError(name)
        return getattr(self.original_optimizer, name)

    def __repr__(self) -> str:
        return repr(self.original_optimizer)

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimizer."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Into the wrapped optimizer."""
        self.original_optimizer.load_state_dict(state_dict)


class DPOptimizerFastGradientClipping(DPOptimizer):
    """The optimizer of ``grad_sample_mode="ghost"``: per-example gradients are not kept for reading."""

    keeps_gradients = False

    def accumulate(self) -> None:
        """`clip_and_accumulate`; in Opacus the gradients are clipped before this is called."""
        self.clip_and_accumulate()


class AutomaticDPOptimizer(DPOptimizer):
    """Normalises each example's gradient instead of clipping it: C·g/(‖g‖ + 0.01) (Bu et al. 2023)."""

    def clip(self) -> Clip:
        """To the clip norm, also where a gradient is shorter."""
        return Clip(automatic, float(self.max_grad_norm), "automatic")


def _add_to_sum(parameter: Any, value: Tensor | None) -> None:
    """Into ``summed_grad``; a weight that nobody used has a sum as well, of zeros."""
    total = torch.zeros_like(parameter, requires_grad=False) if value is None else value.view_as(parameter)
    parameter.summed_grad = total if parameter.summed_grad is None else parameter.summed_grad + total


def _clipped(
    trained: Sequence[nn.Parameter], records: Sequence[Record], clip: Clip
) -> tuple[dict[int, Tensor], Tensor]:
    """The clipped sum over the examples of one batch."""
    first = records[0]
    if not any(isinstance(record, GivenRecord) for record in records) and all(r is first for r in records):
        return first.clipped(trained, clip)
    # Gradients that somebody assigned: one record a parameter.
    uses = {}
    units = {sum(count for count, _ in record.parts()) for record in records}
    if len(units) != 1:
        raise ValueError("The per-example gradients of the parameters have different numbers of examples")
    for p, record in zip(trained, records, strict=True):
        own = GivenRecord(p, record.gradients(p))
        uses[id(p)] = own.parts()[0][1][id(p)]
    return clipped_uses(trained, uses, units.pop(), clip)
