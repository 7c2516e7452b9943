"""Names and modes: how scripts ask for a way to compute per-example gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from saltflat.compat.opacus.grad_sample import grad_sample_module as modules
from saltflat.compat.opacus.grad_sample import grad_sample_module_fast_gradient_clipping_fsdp as fsdp
from saltflat.compat.opacus.grad_sample import grad_sample_module_fast_gradient_clipping_tp as tp
from saltflat.compat.opacus.utils.module_utils import enter
from saltflat.errors import PrivacyWarning

MODES: dict[str, type[modules.GradSampleModule]] = {
    "hooks": modules.GradSampleModule,
    "functorch": modules.GradSampleModule,
    "ew": modules.GradSampleModuleExpandedWeights,
    "ghost": modules.GradSampleModuleFastGradientClipping,
    "ghost_fsdp": fsdp.GradSampleModuleFastGradientClippingFSDP,
    "no_op": modules.GradSampleModuleNoOp,
}
NOT_WRAPPED: dict[str, type[modules.GradSampleHooks]] = {
    "hooks": modules.GradSampleHooks,
    "functorch": modules.GradSampleHooks,
    "ghost": modules.GradSampleHooksFastGradientClipping,
    "ghost_fsdp": fsdp.GradSampleHooksFastGradientClippingFSDP,
    "ghost_tp": tp.GradSampleHooksFastGradientClippingTP,
    "no_op": modules.GradSampleHooksNoOp,
}
Kind = TypeVar("Kind")


def get_gsm_class(grad_sample_mode: str) -> type[modules.AbstractGradSampleModule]:
    """The class of a mode. All compute the same, by the one engine."""
    cure = "; ghost_tp with wrap_model=False, as in Opacus" if grad_sample_mode == "ghost_tp" else ""
    return _known(MODES, grad_sample_mode, "Allowed values", cure)


def get_hooks_class(grad_sample_mode: str) -> type[modules.GradSampleHooks]:
    """The class of a mode for modules that are not wrapped."""
    return _known(NOT_WRAPPED, grad_sample_mode, "Hooks-based approach supports")


def _known(table: dict[str, Kind], mode: str, said: str, cure: str = "") -> Kind:
    if mode not in table:
        raise ValueError(f"Unexpected grad_sample_mode: {mode}. {said}: {', '.join(table)}{cure}")
    return table[mode]


def prepare_module(
    model: nn.Module, grad_sample_mode: str, wrap_model: bool = True, *args: Any, **kwargs: Any
) -> modules.AbstractGradSampleHooks:
    """Wrap a model, or record it as it is."""
    if grad_sample_mode == "functorch":
        kwargs["force_functorch"] = True
    maker: Any = get_gsm_class(grad_sample_mode) if wrap_model else get_hooks_class(grad_sample_mode)
    made: modules.AbstractGradSampleHooks = maker(model, *args, **kwargs)
    return made


def wrap_model(
    model: nn.Module, grad_sample_mode: str, wrap_model: bool = True, *args: Any, **kwargs: Any
) -> modules.AbstractGradSampleHooks:
    """The older name of `prepare_module`."""
    return prepare_module(model, grad_sample_mode, wrap_model, *args, **kwargs)


def _kept(table: dict[type[nn.Module], Callable[..., Any]], target: Any) -> Callable[..., Any]:
    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        warnings.warn(
            f"{function.__name__} is kept, but not called: the engine sees every operation of a layer, and "
            "computes its gradients itself.", PrivacyWarning, stacklevel=2,
        )  # fmt: skip
        kept: Callable[..., Any] = enter(table, target)(function)
        return kept

    return decorator


def register_grad_sampler(
    target_class_or_classes: type[nn.Module] | Sequence[type[nn.Module]],
) -> Callable[..., Any]:
    """Accepted, and not needed: a layer of one's own is seen operation by operation."""
    return _kept(modules.AbstractGradSampleHooks.GRAD_SAMPLERS, target_class_or_classes)


def register_norm_sampler(
    target_class_or_classes: type[nn.Module] | Sequence[type[nn.Module]],
) -> Callable[..., Any]:
    """Accepted, and not needed."""
    return _kept(modules.AbstractGradSampleHooks.NORM_SAMPLERS, target_class_or_classes)
