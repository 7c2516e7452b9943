"""Per-example gradients, by the one engine."""

from saltflat.compat.opacus.grad_sample import embedding_norm_sample
from saltflat.compat.opacus.grad_sample.grad_sample_module import (
    AbstractGradSampleHooks,
    AbstractGradSampleModule,
    GradSampleHooks,
    GradSampleHooksFastGradientClipping,
    GradSampleHooksNoOp,
    GradSampleModule,
    GradSampleModuleExpandedWeights,
    GradSampleModuleFastGradientClipping,
    GradSampleModuleNoOp,
)
from saltflat.compat.opacus.grad_sample.utils import (
    get_gsm_class,
    prepare_module,
    register_grad_sampler,
    register_norm_sampler,
    wrap_model,
)

__all__ = [
    "AbstractGradSampleHooks",
    "AbstractGradSampleModule",
    "GradSampleHooks",
    "GradSampleHooksFastGradientClipping",
    "GradSampleHooksNoOp",
    "GradSampleModule",
    "GradSampleModuleExpandedWeights",
    "GradSampleModuleFastGradientClipping",
    "GradSampleModuleNoOp",
    "embedding_norm_sample",
    "get_gsm_class",
    "prepare_module",
    "register_grad_sampler",
    "register_norm_sampler",
    "wrap_model",
]
