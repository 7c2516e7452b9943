"""Is a model fit for private training, and what would make it so?"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from saltflat.compat.opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from saltflat.compat.opacus.utils.module_utils import (
    clone_module,
    enter,
    has_trainable_params,
    trainable_modules,
)
from saltflat.compat.opacus.validators.errors import (
    IllegalModuleConfigurationError,
    ShouldReplaceModuleError,
    UnsupportableModuleError,
    UnsupportedModuleError,
)
from saltflat.errors import InputError
from saltflat.models.friendly import make_private_friendly

logger = logging.getLogger(__name__)


class ModuleValidator:
    """Checks and fixes models, by Opacus's names.

    LSTM, GRU and MultiheadAttention are replaced as in Opacus, so that a fixed model has its names and fits its
    checkpoints. The engine computes them also as they are: `PrivacyEngine` does not insist (see `hindrances`).
    What a list of layer types cannot find, a model whose own code mixes examples, is refused at its first
    training batch.

    >>> ModuleValidator.is_valid(nn.BatchNorm2d(4)), ModuleValidator.is_valid(nn.Linear(3, 4))
    (False, True)
    >>> ModuleValidator.fix(nn.Sequential(nn.LSTM(3, 4)))
    Sequential(
      (0): DPLSTM(3, 4)
    )
    """

    VALIDATORS: ClassVar[dict[type[nn.Module], Callable[..., list[UnsupportedModuleError]]]] = {}
    FIXERS: ClassVar[dict[type[nn.Module], Callable[..., nn.Module]]] = {}

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """The faults of a model; with ``strict`` they are raised."""
        errors: list[UnsupportedModuleError] = []
        if not module.training:
            errors.append(IllegalModuleConfigurationError("Model needs to be in training mode"))
        for name, layer in module.named_modules():
            if any(is_lazy(p) for p in layer.parameters(recurse=False)):
                errors.append(
                    IllegalModuleConfigurationError(
                        f"{_place(name, layer)} has parameters that do not exist yet; run the model on synthetic data."
                    )
                )
        for name, layer in trainable_modules(module):
            check = cls.VALIDATORS.get(type(layer), faults)
            errors += faults(layer, name) if check is faults else check(layer)
        if strict and errors:
            raise UnsupportedModuleError(errors)
        return errors

    @classmethod
    def hindrances(cls, module: nn.Module) -> list[UnsupportedModuleError]:
        """The faults for which a model cannot be trained: those of `validate` but for what the engine can compute."""
        return [fault for fault in cls.validate(module) if not isinstance(fault, ReplacedInOpacusError)]

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether a model has no faults."""
        return not cls.validate(module, strict=False)

    @classmethod
    def fix(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """A copy that can be trained privately, by `saltflat.models.make_private_friendly`: BatchNorm becomes
        GroupNorm with the same scale and shift, running statistics go, activations stop working in place.

        ``num_groups=`` chooses the groups; ``replace_bn_with_in=True`` takes InstanceNorm instead.
        """
        fixed = clone_module(module)
        replaced: dict[int, nn.Module] = {}
        try:
            for name, layer in list(fixed.named_modules(remove_duplicate=False)):
                kept = fix_batch_norm if isinstance(layer, _BatchNorm) else None  # for kinds of one's own
                fixer = cls.FIXERS.get(type(layer), kept)
                if fixer is None or not (fixer in OWN_FIXERS or has_trainable_params(layer)):
                    continue
                if id(layer) not in replaced:  # a layer in two places stays one layer
                    replaced[id(layer)] = fixer(layer, **kwargs)
                fixed = _with_replacement(fixed, name, replaced[id(layer)])
            fixed = make_private_friendly(fixed)
        except InputError as error:
            raise UnsupportableModuleError(str(error)) from error
        before = dict(module.named_modules())
        for name, layer in fixed.named_modules():
            if name in before and type(layer) is not type(before[name]):
                logger.info("Replaced sub_module %s : %s with %s", name, before[name], layer)
        return fixed

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """Fix, then raise what is left."""
        fixed = cls.fix(module, **kwargs)
        cls.validate(fixed, strict=True)
        return fixed


def _place(name: str, layer: nn.Module) -> str:
    return f"{type(layer).__name__} ({name or 'the model itself'})"


class ReplacedInOpacusError(ShouldReplaceModuleError):
    """A layer that Opacus replaces because its hooks cannot see into it."""


def faults(layer: nn.Module, name: str = "") -> list[UnsupportedModuleError]:
    """What is wrong with a layer; the validator of every kind that nobody registered another for."""
    place = _place(name, layer)
    if isinstance(layer, _BatchNorm):
        why = "normalises each example by statistics of the whole batch, so examples mix."
        return [ShouldReplaceModuleError(f"{place} {why} ModuleValidator.fix replaces it by GroupNorm.")]
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        why = "stores running statistics of private data without noise."
        return [IllegalModuleConfigurationError(f"{place} {why}")]
    if isinstance(layer, nn.EmbeddingBag) and layer.max_norm is not None:
        why = "with max_norm rewrites the rows that were looked up, without noise."
        return [IllegalModuleConfigurationError(f"{place} {why}")]
    if type(layer) in REPLACED_IN_OPACUS:
        why = f"is replaced by {REPLACED_IN_OPACUS[type(layer)].__name__} in Opacus."
        return [
            ReplacedInOpacusError(f"{place} {why} ModuleValidator.fix does so; PrivacyEngine takes either.")
        ]
    return []


def fix_recurrent(layer: Any, **_: Any) -> nn.Module:
    """`DPLSTM` or `DPGRU` with the same weights."""
    new: Any = REPLACED_IN_OPACUS[type(layer)](
        layer.input_size, layer.hidden_size, layer.num_layers, layer.bias, layer.batch_first, layer.dropout,
        layer.bidirectional, layer.proj_size,
    )  # fmt: skip
    return _with_state_of(layer, new)


def fix_attention(layer: nn.MultiheadAttention, **_: Any) -> nn.Module:
    """`DPMultiheadAttention` with the same weights."""
    new = DPMultiheadAttention(
        layer.embed_dim, layer.num_heads, layer.dropout, layer.in_proj_bias is not None,
        layer.bias_k is not None, layer.add_zero_attn, layer.kdim, layer.vdim, layer.batch_first,
    )  # fmt: skip
    return _with_state_of(layer, new)


def _with_state_of(layer: nn.Module, new: nn.Module) -> nn.Module:
    like = next(layer.parameters())
    new.to(like.device, like.dtype).load_state_dict(layer.state_dict())
    return new.train(layer.training)


def fix_batch_norm(
    layer: _BatchNorm, *, num_groups: int | None = None, replace_bn_with_in: bool = False, **_: Any
) -> nn.Module:
    """GroupNorm with the same scale and shift; InstanceNorm if asked for."""
    if replace_bn_with_in and num_groups is not None:
        raise ValueError("replace_bn_with_in and num_groups are mutually exclusive")
    if replace_bn_with_in:
        return _instance_norm(layer)
    if num_groups is None and isinstance(layer, nn.BatchNorm1d):
        friendly: Any = make_private_friendly(layer)
        num_groups = int(friendly.num_groups)  # large enough for rows without maps
    # as many groups as Opacus takes, so that weights fit into models that were trained there
    groups = math.gcd(32, layer.num_features) if num_groups is None else num_groups
    new = nn.GroupNorm(groups, layer.num_features, layer.eps, affine=layer.affine)
    return _with_scale_of(layer, new.train(layer.training))


def fix_instance_norm(layer: _InstanceNorm, **_: Any) -> nn.Module:
    """The same without running statistics; the layer itself if it keeps none."""
    if not layer.track_running_stats:
        return layer
    return _with_scale_of(layer, make_private_friendly(layer))


def _with_scale_of(norm: Any, new: Any) -> nn.Module:
    if norm.affine:
        new.weight, new.bias = norm.weight, norm.bias
    made: nn.Module = new
    return made


def _instance_norm(norm: _BatchNorm) -> nn.Module:
    kinds = {
        nn.BatchNorm1d: nn.InstanceNorm1d,
        nn.BatchNorm2d: nn.InstanceNorm2d,
        nn.BatchNorm3d: nn.InstanceNorm3d,
    }
    for kind, replacement in kinds.items():
        if isinstance(norm, kind):
            return replacement(norm.num_features).train(norm.training)
    raise UnsupportableModuleError(f"There is no InstanceNorm in the place of a {type(norm).__name__}.")


def _with_replacement(root: nn.Module, name: str, new: nn.Module) -> nn.Module:
    if not name:
        return new
    parent, _, last = name.rpartition(".")
    root.get_submodule(parent)._modules[last] = new
    return root


def register_module_validator(
    target_class_or_classes: type[nn.Module] | Sequence[type[nn.Module]],
    validator_class: Any = ModuleValidator,
) -> Callable[..., Any]:
    """A check of one's own for a type of layer."""
    return enter(validator_class.VALIDATORS, target_class_or_classes)


def register_module_fixer(
    target_class_or_classes: type[nn.Module] | Sequence[type[nn.Module]],
    validator_class: Any = ModuleValidator,
) -> Callable[..., Any]:
    """A replacement of one's own for a type of layer."""
    return enter(validator_class.FIXERS, target_class_or_classes)


OWN_FIXERS = (fix_batch_norm, fix_instance_norm)
"""What these do is needed also where nothing is trained: statistics of private rows leave with the model."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
REPLACED_IN_OPACUS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: DPLSTM,
    nn.GRU: DPGRU,
    nn.MultiheadAttention: DPMultiheadAttention,
}
ModuleValidator.VALIDATORS.update(
    dict.fromkeys((*_BATCH_NORMS, *_INSTANCE_NORMS, nn.EmbeddingBag, *REPLACED_IN_OPACUS), faults)
)
ModuleValidator.FIXERS.update(dict.fromkeys((nn.LSTM, nn.GRU), fix_recurrent))
ModuleValidator.FIXERS[nn.MultiheadAttention] = fix_attention
ModuleValidator.FIXERS.update(dict.fromkeys(_BATCH_NORMS, fix_batch_norm))
ModuleValidator.FIXERS.update(dict.fromkeys(_INSTANCE_NORMS, fix_instance_norm))
