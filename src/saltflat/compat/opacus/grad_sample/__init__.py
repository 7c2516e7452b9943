"""Per-example gradients, by the one engine."""

from saltflat.compat.opacus.grad_sample import embedding_norm_sample
from saltflat.compat.opacus.grad_sample.conv import compute_conv_grad_sample
from saltflat.compat.opacus.grad_sample.dp_multihead_attention import compute_sequence_bias_grad_sample
from saltflat.compat.opacus.grad_sample.embedding import compute_embedding_grad_sample
from saltflat.compat.opacus.grad_sample.embedding_norm_sample import compute_embedding_norm_sample
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
from saltflat.compat.opacus.grad_sample.grad_sample_module_fast_gradient_clipping_fsdp import (
    GradSampleHooksFastGradientClippingFSDP,
    GradSampleModuleFastGradientClippingFSDP,
)
from saltflat.compat.opacus.grad_sample.grad_sample_module_fast_gradient_clipping_tp import (
    GradSampleHooksFastGradientClippingTP,
    GradSampleModuleFastGradientClippingTP,
)
from saltflat.compat.opacus.grad_sample.group_norm import compute_group_norm_grad_sample
from saltflat.compat.opacus.grad_sample.instance_norm import compute_instance_norm_grad_sample
from saltflat.compat.opacus.grad_sample.layer_norm import compute_layer_norm_grad_sample
from saltflat.compat.opacus.grad_sample.linear import compute_linear_grad_sample
from saltflat.compat.opacus.grad_sample.rms_norm import compute_rms_norm_grad_sample
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
    "GradSampleHooksFastGradientClippingFSDP",
    "GradSampleHooksFastGradientClippingTP",
    "GradSampleHooksNoOp",
    "GradSampleModule",
    "GradSampleModuleExpandedWeights",
    "GradSampleModuleFastGradientClipping",
    "GradSampleModuleFastGradientClippingFSDP",
    "GradSampleModuleFastGradientClippingTP",
    "GradSampleModuleNoOp",
    "compute_conv_grad_sample",
    "compute_embedding_grad_sample",
    "compute_embedding_norm_sample",
    "compute_group_norm_grad_sample",
    "compute_instance_norm_grad_sample",
    "compute_layer_norm_grad_sample",
    "compute_linear_grad_sample",
    "compute_rms_norm_grad_sample",
    "compute_sequence_bias_grad_sample",
    "embedding_norm_sample",
    "get_gsm_class",
    "prepare_module",
    "register_grad_sampler",
    "register_norm_sampler",
    "wrap_model",
]
