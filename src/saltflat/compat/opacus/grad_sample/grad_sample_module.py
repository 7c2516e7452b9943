"""Modules whose parameters answer ``grad_sample``: wrapped, or left as they are with their forward intercepted.

Opacus has one class for each way to compute gradients. Here all of them are the one engine; the names stay,
because scripts import them and ask for them by ``grad_sample_mode``.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from saltflat.compat.opacus.grad_sample.functorch import prepare_layer
from saltflat.compat.opacus.grad_sample.parameters import Watched
from saltflat.compat.opacus.grad_sample.recorder import Recorder
from saltflat.compat.opacus.over_ranks import check_layout, plain
from saltflat.compat.opacus.utils.module_utils import trainable_modules


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of the module's class: the one of the instance is the interceptor."""
    return type(module).forward(module, *args, **kwargs)


class AbstractGradSampleHooks:
    """What wrapped and unwrapped modules have in common."""

    GRAD_SAMPLERS: ClassVar[dict[type[nn.Module], Callable[..., Any]]] = {}
    NORM_SAMPLERS: ClassVar[dict[type[nn.Module], Callable[..., Any]]] = {}
    GHOST: ClassVar[bool] = False  # p.grad_sample stays None, and only norms are shown

    _module: nn.Module

    def __init__(
        self,
        m: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        strict: bool = True,
        force_functorch: bool = False,
        max_grad_norm: Any = 1,
        use_ghost_clipping: bool = True,
    ) -> None:
        if any(isinstance(p, Watched) for p in m.parameters()):
            raise ValueError("Trying to add hooks twice to the same model")
        check_layout(m)
        self.validate(m, strict=strict)
        self._module = m
        self.batch_first, self.loss_reduction = batch_first, loss_reduction
        self.max_grad_norm = max_grad_norm
        self.force_functorch, self.use_ghost_clipping = force_functorch, use_ghost_clipping
        self.recorder: Recorder | None = Recorder(
            plain(m), batch_first=batch_first, loss_reduction=loss_reduction
        )
        self.recorder.ghost = self.GHOST
        for _, layer in trainable_modules(m):
            if type(layer) not in (*self.GRAD_SAMPLERS, nn.EmbeddingBag) and not list(layer.buffers()):
                prepare_layer(layer, batch_first)

    @property
    def hooks_enabled(self) -> bool:
        """Whether calls are recorded."""
        return self.recorder is not None and self.recorder.enabled

    def _tell(self, flag: str, value: bool) -> None:
        """Set a flag of the recorder, as long as there is one."""
        if self.recorder is not None:
            setattr(self.recorder, flag, value)

    def enable_hooks(self) -> None:
        """Record calls again."""
        self._tell("enabled", True)

    def disable_hooks(self) -> None:
        """Let calls pass unrecorded: they then leave ordinary gradients."""
        self._tell("enabled", False)

    def forbid_grad_accumulation(self) -> None:
        """Refuse a second backward pass before the gradients of the first were used and cleared."""
        self._tell("accumulation_allowed", False)

    def allow_grad_accumulation(self) -> None:
        """Collect the gradients of several backward passes."""
        self._tell("accumulation_allowed", True)

    def set_grad_sample_to_none(self) -> None:
        """Forget the per-example gradients."""
        for p in self._module.parameters():
            if isinstance(p, Watched):
                p.grad_sample = None

    def del_grad_sample(self) -> None:
        """Make the parameters plain ones again."""
        for p in self._module.parameters():
            if hasattr(p, "grad_sample"):
                del p.grad_sample

    def add_hooks(
        self, *, loss_reduction: str = "mean", batch_first: bool = True, force_functorch: bool = False
    ) -> None:
        """Record calls again after `remove_hooks`; ``force_functorch`` changes nothing, as all is one engine."""
        if self.recorder is None:
            raise ValueError("The module was cleaned up, and is a plain one again. Wrap it again.")
        if self.recorder.enabled:
            raise ValueError("Trying to add hooks twice to the same model")
        self.batch_first = self.recorder.batch_first = batch_first
        self.loss_reduction = self.recorder.loss_reduction = loss_reduction
        self.enable_hooks()

    def remove_hooks(self) -> None:
        """Stop recording for good."""
        self.disable_hooks()

    def cleanup(self) -> None:
        """Leave the module as it was found."""
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
        for layer in self._module.modules():
            layer.__dict__.pop("ft_compute_sample_grad", None)
        if isinstance(self._module.__dict__.get("forward"), _Interceptor):
            del self._module.__dict__["forward"]

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[NotImplementedError]:
        """Trainable layers whose buffers change with the data they see: these would leave without noise."""
        errors = [
            NotImplementedError(
                f"Model contains a trainable layer with buffers that are computed from private data ({name}: {layer})."
            )
            for name, layer in trainable_modules(module)
            if getattr(layer, "track_running_stats", False)
        ]
        if strict and errors:
            raise NotImplementedError(errors)
        return errors

    @classmethod
    def is_supported(cls, module: nn.Module) -> bool:
        """Always true: layers without a rule of their own are computed by torch.func."""
        warnings.warn("GradSampleModule.is_supported is deprecated.", DeprecationWarning, stacklevel=2)
        return True

    # --- what the ghost mode of Opacus offers -----------------------------------------------------

    def get_norm_sample(self) -> Tensor:
        """Each example's gradient norm in the last batch. Not private."""
        found = [p._norm_sample for p in self._module.parameters() if isinstance(p, Watched)]
        return torch.stack([norms for norms in found if norms is not None]).norm(2, dim=0)

    @property
    def per_sample_gradient_norms(self) -> Tensor:
        """Each example's gradient norm in the last batch. Not private."""
        if not any(isinstance(p, Watched) and p.records() for p in self._module.parameters()):
            raise AttributeError(
                "per_sample_gradient_norms is not set. Please call forward and backward on the model before "
                "accessing this property."
            )
        return self.get_norm_sample()

    def get_clipping_coef(self) -> Tensor:
        """By how much each example's gradient is scaled."""
        clip: Tensor = (self.max_grad_norm / (self.get_norm_sample() + 1e-6)).clamp(max=1.0)
        return clip


class AbstractGradSampleModule(nn.Module, AbstractGradSampleHooks):
    """A module around another one. Its ``state_dict`` has the prefix ``_module.``, as in Opacus."""

    def __init__(self, m: nn.Module, **options: Any) -> None:
        nn.Module.__init__(self)
        AbstractGradSampleHooks.__init__(self, m, **options)
        self.grad_accumulation_hook = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's outputs; while it trains, the call is recorded."""
        recorder = self.recorder
        return self._module(*args, **kwargs) if recorder is None else recorder(_call, args, kwargs)

    def __getattr__(self, item: str) -> Any:
        try:
            return super().__getattr__(item)
        except AttributeError:
            if item == "_module":
                raise
            submodules = dict(self._module.named_modules())
            if item in submodules:
                return submodules[item]
            if hasattr(self._module, item):
                return getattr(self._module, item)
            raise

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear ordinary and per-example gradients."""
        self.set_grad_sample_to_none()
        super().zero_grad(set_to_none)

    def to_standard_module(self) -> nn.Module:
        """The wrapped module, without traces of privacy."""
        self._close()
        return self._module

    def _close(self) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._module!r})"


class GradSampleModule(AbstractGradSampleModule):
    """A module whose parameters have ``grad_sample`` after each backward pass.

    >>> model = GradSampleModule(nn.Linear(3, 1))
    >>> model(torch.ones(4, 3)).mean().backward()
    >>> model._module.weight.grad_sample.shape
    torch.Size([4, 1, 3])
    """


class GradSampleModuleFastGradientClipping(GradSampleModule):
    """The class of ``grad_sample_mode="ghost"``; the engine underneath is the same."""

    GHOST = True


class GradSampleModuleExpandedWeights(GradSampleModule):
    """The class of ``grad_sample_mode="ew"``; the engine underneath is the same."""


class _Interceptor:
    """Stands in for the forward of a module that is not wrapped."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._recorder(_forward, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A copy of the module is an ordinary module, whose calls nobody records.
        copied = memo[id(self._recorder.module)]
        return types.MethodType(type(copied).forward, copied)


class GradSampleHooks(AbstractGradSampleHooks):
    """Records the calls of a module that stays as it is (``wrap_model=False``); `cleanup` ends it."""

    def __init__(self, m: nn.Module, **options: Any) -> None:
        if "forward" in m.__dict__:
            raise ValueError(
                "The module's forward was replaced on the instance already; it cannot be recorded unwrapped. "
                "Use wrap_model=True."
            )
        super().__init__(m, **options)
        assert self.recorder is not None
        m.__dict__["forward"] = _Interceptor(self.recorder)


class GradSampleHooksFastGradientClipping(GradSampleHooks):
    """`GradSampleHooks` under the name of ``grad_sample_mode="ghost"``."""

    GHOST = True


class _NoOp(AbstractGradSampleHooks):
    """``p.grad_sample`` is left to the caller."""

    def __init__(self, m: nn.Module, *, batch_first: bool = True, loss_reduction: str = "mean") -> None:
        if not batch_first:
            raise NotImplementedError("grad_sample_mode='no_op' knows batch_first=True only")
        super().__init__(m, batch_first=batch_first, loss_reduction=loss_reduction)
        self.disable_hooks()


class GradSampleModuleNoOp(_NoOp, GradSampleModule):
    """The class of ``grad_sample_mode="no_op"``."""


class GradSampleHooksNoOp(_NoOp, GradSampleHooks):
    """The same for a model that is not wrapped."""
