"""Which weights of a pretrained model are trained: all, the last layer, biases, or low-rank additions (LoRA)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from torch import nn

from saltflat.errors import (
    InputError,
    MissingDependencyError,
    check_count,
    check_known,
    check_positive,
    nearest,
)

Part = Literal["all", "last-layer", "bias-only", "lora"]
HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# They read the weights of the layers in them instead of calling them: an addition there would be passed by.
CLOSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def tune_only(
    model: nn.Module,
    part: Part,
    *,
    head: str | None = None,
    freeze: Sequence[str] = (),
    rank: int = 8,
    alpha: float | None = None,
    layers: Sequence[str] | None = None,
) -> nn.Module:
    """Train only a part of ``model`` from here on. The model is changed in place, and returned.

    - ``"all"``: every weight.
    - ``"last-layer"``: the head alone.
    - ``"bias-only"``: every bias, and the head (Zaken et al. 2022).
    - ``"lora"``: to each of the ``layers`` a product of two matrices of this ``rank`` is added, times ``alpha`` /
      ``rank`` (``alpha`` is twice the rank unless told otherwise), and only they are trained, with the head (Hu et
      al. 2022). It starts at zero, so the model computes what it did. Needs peft: ``pip install
      'saltflat[transformers]'``.

    ``head`` is the name of the module that is new; unless told otherwise, the last linear or convolutional layer.
    ``layers`` are names or patterns of linear layers, such as ``("query", "value")``; all but the head unless told
    otherwise. ``freeze`` are patterns of parameter names that stay frozen in any case, such as ``("*pooler*",)``.

    Frozen parts cost nothing: they get no noise, no gradient, and the engine takes no norm and keeps no record of them.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [name for name, p in tune_only(model, "last-layer").named_parameters() if p.requires_grad]
    ['2.weight', '2.bias']
    >>> [name for name, p in tune_only(model, "bias-only").named_parameters() if p.requires_grad]
    ['0.bias', '2.weight', '2.bias']
    """
    check_known("part", part, get_args(Part), "a known part")
    top = _head_of(model, head) if part != "all" or head is not None else ""
    if part == "lora":
        _add_lora(model, top, rank, alpha, layers)
    in_head = model.get_submodule(top).parameters() if top else ()
    new = {id(p) for p in in_head}  # by identity: a head may be tied
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_trained(part, name, id(parameter) in new))
    _freeze(model, freeze)
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("freeze", ", ".join(freeze), "patterns that leave something to train")
    return model


def _is_trained(part: Part, name: str, in_head: bool) -> bool:
    last = name.rpartition(".")[2]
    return {
        "all": True,
        "last-layer": in_head,
        "bias-only": in_head or last.startswith("bias") or last.endswith("bias"),
        "lora": in_head or ".lora_" in name,
    }[part]


def _head_of(model: nn.Module, head: str | None) -> str:
    """The name of the head."""
    if head is not None:
        try:
            found = model.get_submodule(head) if head else None
        except AttributeError:
            found = None
        if found is None or not any(True for _ in found.parameters()):
            known = [name for name, m in model.named_modules() if name and isinstance(m, HEADS)]
            raise InputError(
                "head", head, "the name of a module with weights", cure=nearest(str(head), known)
            )
        return head
    names = [name for name, module in model.named_modules() if isinstance(module, HEADS) and name]
    # what LoRA added lies inside of a layer
    names = [name for name in names if not re.search(r"\.(lora_\w+|base_layer)(\.|$)", f".{name}")]
    if not names:
        raise InputError(
            "head", None, "the name of the last layer", problem="is missing, and no layer looks like one"
        )
    return names[-1]


def _freeze(model: nn.Module, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        found = [p for name, p in model.named_parameters() if fnmatchcase(name, pattern)]
        if not found:
            raise InputError(
                "freeze", pattern, "patterns that match names of parameters, such as '*pooler*'",
                problem="matches none",
            )  # fmt: skip
        for parameter in found:
            parameter.requires_grad_(False)


def _add_lora(
    model: nn.Module, head: str, rank: int, alpha: float | None, layers: Sequence[str] | None
) -> None:
    check_count("rank", rank)
    alpha = 2.0 * rank if alpha is None else alpha
    check_positive("alpha", alpha)
    if any(".lora_" in name for name, _ in model.named_parameters()):
        raise InputError(
            "part", "lora", "a model without LoRA", problem="is there already",
            cure="sf.models.merge_lora(model) adds it to the weights and takes it out.",
        )  # fmt: skip
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingDependencyError("peft", "LoRA", "transformers") from error
    chosen = _adapted_layers(model, head, layers)
    targets = "|".join(re.escape(name) for name in chosen)
    turned = any(_is_turned(model.get_submodule(name)) for name in chosen)
    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=f"(?:{targets})", fan_in_fan_out=turned
    )
    inject_adapter_in_model(config, model)


def _adapted_layers(model: nn.Module, head: str, layers: Sequence[str] | None) -> list[str]:
    """Names of the linear layers that get an addition."""
    closed = [name for name, module in model.named_modules() if isinstance(module, CLOSED)]
    known = {}
    for name, module in model.named_modules():
        if (
            name
            and (isinstance(module, nn.Linear) or _is_turned(module))
            and name != head
            and not name.startswith(f"{head}.")
        ):
            known[name] = any(name.startswith(f"{outer}.") or not outer for outer in closed)
    if layers is None:
        chosen = [name for name, inside in known.items() if not inside]
    else:
        chosen = [name for name in known if any(_named(name, pattern) for pattern in layers)]
        for pattern in layers:
            if not any(_named(name, pattern) for name in known):
                raise InputError(
                    "layers", pattern, "names of linear layers", problem="is none", cure=nearest(pattern, list(known))
                )  # fmt: skip
    passed_by = [name for name in chosen if known[name]]
    if passed_by or not chosen:
        raise InputError(
            "layers", ", ".join(passed_by) or None, "linear layers that are called as modules",
            problem="lie in an attention layer of torch, which reads their weights and would pass LoRA by"
            if passed_by else "is missing: no linear layer is left to add to",
            cure="Choose other layers, or another part: 'bias-only', 'last-layer'.",
        )  # fmt: skip
    return chosen


def _is_turned(module: nn.Module) -> bool:
    """Whether this is the linear layer of Hugging Face's GPT-2, whose weight lies the other way round."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _named(name: str, pattern: str) -> bool:
    """Whether a pattern means this module: its whole name, or its last words."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def merge_lora(model: nn.Module) -> nn.Module:
    """Add LoRA to the weights it belongs to and take it out, in place: the same outputs, from a plain model.

    What is merged was released already, so this is post-processing. ``requires_grad`` stays as it is.

    >>> merge_lora(nn.Linear(2, 2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    for name, module in list(model.named_modules()):
        base: Any = getattr(module, "base_layer", None)
        if isinstance(base, nn.Module) and hasattr(module, "lora_A"):
            merge: Any = module.merge
            merge()
            outer, _, last = name.rpartition(".")
            setattr(model.get_submodule(outer), last, base)
    return model
